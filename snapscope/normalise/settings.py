"""`allocator_settings` → `AllocatorSettings`.

What the dict lacks is parsed from the settings string (`PYTORCH_ALLOC_CONF` and its
older names), whose syntax is `key:value,key:[a:b,c:d]`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from snapscope.model import AllocatorSettings
from snapscope.normalise.notices import NoticeLog

_CONF_KEYS: Final = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
)
_PAIR: Final = re.compile(r"\s*([a-z_0-9]{1,60})\s*:\s*(\[[^\]]{0,500}\]|[^,]{0,60})", re.ASCII)
_NUM_DIVISIONS: Final = 16
# torch_npu's round_size adds 32 bytes, and its expandable segments align large blocks to
# 16 KiB (both seen in every block of a real recording).
_NPU: Final[dict[str, Any]] = {"request_padding_bytes": 32, "large_alignment_bytes": 16 << 10}


def normalise_settings(raw: Any, *, backend: str, notices: NoticeLog) -> AllocatorSettings:
    """Read the settings leniently: a wrong type falls back to PyTorch's default, noted."""
    fork: dict[str, Any] = _NPU if backend == "npu" else {}
    if type(raw) is not dict:
        notices.add("bad_settings", "allocator_settings is no dict: ignored", count=raw is not None)
        return AllocatorSettings(**fork)
    settings = {key: value for key, value in raw.items() if type(key) is str}
    conf = next((settings[key] for key in _CONF_KEYS if type(settings.get(key)) is str), "")[:10_000]
    pairs = {match[1]: match[2].strip() for match in _PAIR.finditer(conf)}
    max_split = settings.get("max_split_size", -1)
    return AllocatorSettings(
        known=True,
        conf=conf,
        # Unlimited is SIZE_MAX, written through a signed cast as -1.
        max_split_size_bytes=max_split if type(max_split) is int and 0 < max_split < (1 << 60) else None,
        max_non_split_rounding_bytes=_megabytes(pairs, "max_non_split_rounding_mb", 20),
        large_segment_size_bytes=_megabytes(pairs, "large_segment_size_mb", 20),
        roundup_power2_divisions=_divisions(settings.get("roundup_power2_divisions")),
        expandable_segments=settings.get("expandable_segments") is True,
        garbage_collection_threshold=_fraction(settings.get("garbage_collection_threshold"), 0.0),
        per_process_memory_fraction=_fraction(pairs.get("per_process_memory_fraction"), 1.0),
        **fork,
        raw={key: value for key, value in settings.items() if _is_plain(value)},
    )


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return len(value) <= 64 and all(
            type(key) is str and type(item) in (str, int, float, bool) for key, item in value.items()
        )
    return type(value) in (str, int, float, bool, type(None))


def _megabytes(pairs: dict[str, str], key: str, default: int) -> int:
    text = pairs.get(key, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else default
    return (number or default) << 20


def _fraction(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return default
    return number if 0.0 <= number <= 1.0 else default


def _divisions(value: Any) -> tuple[int, ...]:
    """Return the divisions of the 16 intervals from 1 MiB to 32 GiB."""
    if type(value) is not dict:
        return (0,) * _NUM_DIVISIONS
    found = (value.get(str(1 << power), 0) for power in range(_NUM_DIVISIONS))
    return tuple(number if type(number) is int and 0 <= number <= 1 << 20 else 0 for number in found)

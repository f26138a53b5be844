"""Which PyTorch releases write the keys that a snapshot has.

The release isn't in the file. Each feature below appeared in a release; the newest one
present gives the lower bound, the first one absent (where it would show) the upper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from snapscope.load import EventColumns
from snapscope.model import FormatFacts
from snapscope.normalise.interning import text_of

# Release in which each event key appeared (PRs #112266, #152707, #165490, #177717).
_EVENT_KEYS: Final = (
    ("time_us", "2.2"),
    ("compile_context", "2.8"),
    ("user_metadata", "2.10"),
    ("pool_id", "2.12"),
)
# Release in which each top-level key appeared (PRs #119404, #129072, #182407).
_TOP_KEYS: Final = (("allocator_settings", "2.3"), ("external_annotations", "2.5"), ("host_traces", "2.14"))
_RELEASES: Final = ("1.13", "2.0", "2.1", "2.2", "2.3", "2.5", "2.8", "2.10", "2.12", "2.14")


def find_format(
    raw: Mapping[str, Any], *, is_list: bool, segments: Sequence[Any], strings: Sequence[str]
) -> FormatFacts:
    """Tell the form, the range of PyTorch releases and the backend from the keys alone."""
    traces = raw.get("device_traces") or ()
    event = _first_event(traces)
    segment = next((s for s in segments if type(s) is dict), None)
    block = _first_block(segments)
    form = "list" if is_list else "dict"
    if block is not None and "history" in block:
        form = "history"
    elif event is not None and "category" in event:
        form = "profiler"
    if form == "profiler":
        version = "unknown (made from a profile)"
    else:
        present = _present(raw, is_list, event, segment, form)
        version = _range(present)
    keys = tuple(map(text_of, raw))
    return FormatFacts(form=form, torch_version=version, backend=_backend(raw, strings), keys=keys[:50])


def _first_event(traces: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return the first event of all; of one in columns, the common keys only."""
    trace = next((t for t in traces if isinstance(t, (list, EventColumns)) and len(t)), None)
    if trace is None:
        return None
    if isinstance(trace, EventColumns):
        return trace.first_entry()
    return trace[0] if type(trace[0]) is dict else None


def _first_block(segments: Sequence[Any]) -> Mapping[str, Any] | None:
    for segment in segments:
        blocks = segment.get("blocks") if type(segment) is dict else None
        if isinstance(blocks, list):
            for block in blocks:
                if type(block) is dict and block.get("state") != "inactive":
                    return block
    return None


def _present(
    raw: Mapping[str, Any],
    is_list: bool,
    event: Mapping[str, Any] | None,
    segment: Mapping[str, Any] | None,
    form: str,
) -> dict[str, bool]:
    """Return, per release, whether its feature is there; releases that can't show are left out."""
    present: dict[str, bool] = {}
    if segment is not None:
        present["2.1"] = "is_expandable" in segment and form != "history"
    if not is_list:
        present["2.0"] = True
        present.update((release, key in raw) for key, release in _TOP_KEYS)
    if event is not None:
        present.update((release, key in event) for key, release in _EVENT_KEYS)
    return present


def _range(present: Mapping[str, bool]) -> str:
    shown = [release for release in _RELEASES if present.get(release)]
    lower = shown[-1] if shown else None
    later = _RELEASES[_RELEASES.index(lower) + 1 :] if lower else _RELEASES
    upper = next((release for release in later if present.get(release) is False), None)
    if lower and upper:
        return f"{lower} or later, before {upper}"
    if lower:
        return f"{lower} or later"
    return f"before {upper}" if upper else "unknown"


def _backend(raw: Mapping[str, Any], strings: Sequence[str]) -> str:
    settings = raw.get("allocator_settings")
    if any("torch_npu" in text for text in strings):
        return "npu"
    if type(settings) is dict:
        if "PYTORCH_CUDA_ALLOC_CONF" in settings:
            return "cuda"
        if "PYTORCH_ALLOC_CONF" in settings:
            return "xpu"
    # ROCm and most forks write exactly what CUDA writes.
    return "unknown"

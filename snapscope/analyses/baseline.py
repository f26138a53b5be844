"""A profile as a small file to commit and review, which stands in for its snapshot.

One line a site, sorted, so that a change of one site is a change of one line. The frames are
listed once.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import orjson

from snapscope.analyses.profile import MemoryProfile, SiteEntry
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import Category, Confidence
from snapscope.errors import MalformedError

MARK: Final = "snapscope_baseline"
"""The first key of a baseline; its value is the number of its form."""

FORM: Final = 1
_MAX_INT: Final = 1 << 62
# One for each category and bracketed label.
_MAX_UNNAMED: Final = 100
_NUMBERS: Final = (
    "requested_bytes", "allocated_bytes", "pending_bytes", "reserved_bytes", "free_segments_bytes", "holes_bytes",
    "private_pool_bytes", "largest_hole_bytes",
)  # fmt: skip
_FINE: Final = {f"{category.label}/{label}": (category, label) for category in Category for label in FINE_LABELS}
_PEAKS: Final = ("requested", "allocated", "active", "reserved")


def write_baseline(profile: MemoryProfile) -> bytes:
    """Return a baseline as JSON, the same bytes for the same profile."""
    frames = sorted({name for entry in profile.sites for name in entry.key})
    number = {name: place for place, name in enumerate(frames)}
    head: dict[str, Any] = {
        MARK: FORM,
        "file": _safe(posixpath.basename(profile.name.replace("\\", "/"))),
        "device": profile.device,
        "event": profile.event,
        "at": _safe(profile.label),
        "phase": None if profile.phase is None else _safe(profile.phase),
        **{name: getattr(profile, name) for name in _NUMBERS},
        "peaks": profile.peak_bytes,
        "categories": {category.label: profile.categories[category] for category in Category},
        "fine": {f"{category.label}/{label}": size for (category, label), size in sorted(profile.fine.items())},
        "num_steps": profile.num_steps,
        "step_peaks": [[_safe(name), size] for name, size in profile.step_peaks],
        "settings": {_safe(name): _safe(value) for name, value in profile.settings.items()},
        "has_history": profile.has_history,
        "num_ooms": profile.num_ooms,
    }
    lines = [f"{_json(name)}: {_json(value)}" for name, value in head.items()]
    lines.append(f'"frames": {_json_lines(_json(_safe(frame)) for frame in frames)}')
    rows = sorted(_site(entry, number) for entry in profile.sites)
    lines.append(f'"sites": {_json_lines(rows)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _site(entry: SiteEntry, number: dict[str, int]) -> str:
    return _json(
        {
            "site": _safe(entry.label),
            "category": entry.category.label,
            "bytes": entry.bytes,
            "count": entry.count,
            "fine": entry.fine,
            "confidence": entry.confidence.label,
            "lines": list(entry.lines),
            "sizes": [list(size) for size in entry.sizes],
            "stack": [number[name] for name in entry.key],
        }
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _json_lines(items: Iterator[str] | list[str]) -> str:
    body = ",\n  ".join(items)
    return f"[\n  {body}\n]" if body else "[]"


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_baseline(document: Any, name: str) -> MemoryProfile:
    """Return the profile that a baseline holds; nothing in it is trusted.

    Args:
        document: the parsed JSON.
        name: of the file, for messages.

    Raises:
        MalformedError: a value is missing, of a wrong type, or doesn't add up.
    """
    reader = _Reader(name)
    top = reader.mapping(document, "it")
    if top.get(MARK) != FORM:
        reader.fail(f"{MARK} is {top.get(MARK)!r}: this version reads {FORM}")
    frames = [reader.text(value, "a frame") for value in reader.items(top.get("frames"), "frames")]
    read = [_read_site(reader, value, frames) for value in reader.items(top.get("sites"), "sites")]
    # A profile has them by weight, the file by name.
    sites = tuple(sorted(read, key=lambda entry: (-entry.bytes, entry.label, entry.key)))
    if sum(not entry.key for entry in sites) > _MAX_UNNAMED:
        reader.fail("more sites without a stack than there can be")
    categories = {
        category: reader.number(reader.mapping(top.get("categories"), "categories").get(category.label), category.label)
        for category in Category
    }
    requested = reader.number(top.get("requested_bytes"), "requested_bytes")
    if sum(categories.values()) != requested or sum(entry.bytes for entry in sites) != requested:
        reader.fail("its categories or sites don't sum to requested_bytes")
    fine = {
        reader.one_of(key, _FINE, "a fine label"): reader.number(size, "a fine label")
        for key, size in reader.mapping(top.get("fine"), "fine").items()
    }
    if sum(fine.values()) != requested:
        reader.fail("its fine labels don't sum to requested_bytes")
    has_history = top.get("has_history")
    if not isinstance(has_history, bool):
        reader.fail("has_history is neither true nor false")
    steps = top.get("num_steps")
    return MemoryProfile(
        name=name,
        device=reader.number(top.get("device"), "device", low=-1),
        event=reader.number(top.get("event"), "event", low=-1),
        label=reader.text(top.get("at"), "at"),
        phase=None if top.get("phase") is None else reader.text(top.get("phase"), "phase"),
        requested_bytes=requested,
        allocated_bytes=reader.number(top.get("allocated_bytes"), "allocated_bytes"),
        pending_bytes=reader.number(top.get("pending_bytes"), "pending_bytes"),
        reserved_bytes=reader.number(top.get("reserved_bytes"), "reserved_bytes"),
        free_segments_bytes=reader.number(top.get("free_segments_bytes"), "free_segments_bytes"),
        holes_bytes=reader.number(top.get("holes_bytes"), "holes_bytes"),
        private_pool_bytes=reader.number(top.get("private_pool_bytes"), "private_pool_bytes"),
        largest_hole_bytes=reader.number(top.get("largest_hole_bytes"), "largest_hole_bytes"),
        peak_bytes={key: reader.number(reader.mapping(top.get("peaks"), "peaks").get(key), key) for key in _PEAKS},
        categories=categories,
        fine=fine,
        sites=sites,
        num_steps=None if steps is None else reader.number(steps, "num_steps"),
        step_peaks=tuple(
            (reader.text(pair[0], "a step"), reader.number(pair[1], "a step's peak"))
            for pair in map(reader.pair, reader.items(top.get("step_peaks"), "step_peaks"))
        ),
        settings={
            reader.text(key, "a setting"): reader.text(value, "a setting")
            for key, value in reader.mapping(top.get("settings"), "settings").items()
        },
        has_stacks=any(entry.key for entry in sites),
        has_history=has_history,
        num_ooms=reader.number(top.get("num_ooms"), "num_ooms"),
    )


def _read_site(reader: _Reader, value: Any, frames: list[str]) -> SiteEntry:
    row = reader.mapping(value, "a site")
    stack = [reader.number(place, "stack") for place in reader.items(row.get("stack"), "stack")]
    if any(place >= len(frames) for place in stack):
        reader.fail("a site names a frame that isn't listed")
    fine = reader.text(row.get("fine"), "fine")
    entry = SiteEntry(
        key=tuple(frames[place] for place in stack),
        label=reader.text(row.get("site"), "site"),
        lines=tuple(reader.number(line, "lines") for line in reader.items(row.get("lines"), "lines")),
        category=reader.one_of(row.get("category"), {category.label: category for category in Category}, "category"),
        confidence=reader.one_of(row.get("confidence"), {level.label: level for level in Confidence}, "confidence"),
        fine=fine if fine in FINE_LABELS else reader.fail("a fine label is unknown"),
        bytes=reader.number(row.get("bytes"), "bytes"),
        count=reader.number(row.get("count"), "count"),
        sizes=tuple(
            (reader.number(pair[0], "a size"), reader.number(pair[1], "a count"))
            for pair in map(reader.pair, reader.items(row.get("sizes"), "sizes"))
        ),
    )
    if sum(size * count for size, count in entry.sizes) > entry.bytes:
        reader.fail("the sizes of a site sum to more than its bytes")
    if sum(count for _, count in entry.sizes) > entry.count or (entry.bytes and not entry.count):
        reader.fail("the count of a site is less than its blocks")
    return entry


class _Reader:
    """Checks values of a document that a stranger may have written."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fail(self, what: str) -> NoReturn:
        raise MalformedError(f"{self._name}: no valid baseline: {what}")

    def mapping(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"{what} is no object")
        return value

    def items(self, value: Any, what: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail(f"{what} is no list")
        return value

    def pair(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) != 2:
            self.fail("a pair is expected")
        return value

    def number(self, value: Any, what: str, *, low: int = 0) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MAX_INT:
            self.fail(f"{what} is no number of bytes, or none that can be")
        return value

    def text(self, value: Any, what: str) -> str:
        if not isinstance(value, str):
            self.fail(f"{what} is no text")
        return value

    def one_of(self, value: Any, known: dict[str, Any], what: str) -> Any:
        if not isinstance(value, str) or value not in known:
            self.fail(f"{what} is unknown")
        return known[value]

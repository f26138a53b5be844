from __future__ import annotations

from typing import Any

import orjson
import pytest

from snapscope.errors import NotASnapshotError
from snapscope.load.unwrap import find_snapshot
from tests.load.samples import SNAPSHOT, dump, load_bytes

OTHER: dict[str, Any] = {"segments": [], "device_traces": [[]], "which": "other"}
SEGMENTS: list[Any] = SNAPSHOT["segments"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (SNAPSHOT, ()),
        ({"segments": []}, ()),
        ({"device_traces": []}, ()),
        ({"segments": (), "device_traces": ()}, ()),
        (SEGMENTS, ()),
        ({"snapshot": SNAPSHOT, "rank": 3}, ("key 'snapshot'",)),
        ({"rank": 3, "meta": {"a": [1]}, "snapshot": SNAPSHOT}, ("key 'snapshot'",)),
        ({"memory": {"snapshot": SNAPSHOT}}, ("key 'memory'", "key 'snapshot'")),
        ({"a": {"b": {"c": SNAPSHOT}}}, ("key 'a'", "key 'b'", "key 'c'")),
        ({0: SNAPSHOT}, ("key 0",)),
        ({"segments_only": SEGMENTS}, ("key 'segments_only'",)),
        ([SNAPSHOT], ("item 0",)),
        ((SNAPSHOT, 3), ("item 0",)),
        ([(3, SNAPSHOT)], ("item 0", "item 1")),
        ({"a\n\x1b[1m": SNAPSHOT}, (r"key 'a\n\x1b[1m'",)),
        # Near the surface wins over what comes first.
        ({"old": {"snapshot": OTHER}, "new": SNAPSHOT}, ("key 'new'",)),
    ],
)
def test_found(value: Any, path: tuple[str, ...]) -> None:
    found = find_snapshot(value)
    assert found.path == path
    assert found.value in (SNAPSHOT, SEGMENTS, {"segments": []}, {"device_traces": []}, value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": {"c": {"d": SNAPSHOT}}}},
        {"a": []},
        {"segments": "none"},
        {"segments": {"0": {"blocks": []}}},
        {"segments": [1, 2]},
        {"pinned_by": [{"site": "a.py:1", "blocks": 8, "bytes": 512}]},
        [[], []],
        [{"action": "alloc", "addr": 1}],
        "text",
        3.5,
        True,
    ],
)
def test_not_found(value: Any) -> None:
    with pytest.raises(NotASnapshotError, match=r"^no snapshot: found "):
        find_snapshot(value)


def test_notice_and_container_name_the_path() -> None:
    for content in (dump({"run": [SNAPSHOT], "rank": 3}), orjson.dumps({"run": [SNAPSHOT], "rank": 3})):
        raw = load_bytes(content)
        assert raw.source.containers == ("wrapper key 'run', item 0",)
        assert [(notice.code, notice.message, notice.count) for notice in raw.notices] == [
            ("unwrapped", "unwrapped key 'run', item 0", 1)
        ]


def test_the_first_of_several_is_taken() -> None:
    raw = load_bytes(dump([SNAPSHOT, OTHER, SNAPSHOT]))
    assert raw.value == SNAPSHOT
    # The third is the first one again.
    assert [(notice.code, notice.message, notice.count) for notice in raw.notices] == [
        (
            "unwrapped",
            "unwrapped item 0: the first of 2 snapshots in the file, the others weren't read",
            2,
        )
    ]


def test_search_is_bounded() -> None:
    wide = {f"key{number}": [[number], {"x": [number]}] for number in range(100_000)}
    with pytest.raises(NotASnapshotError, match="and 99,992 more"):
        find_snapshot(wide)


def test_keys_that_cannot_be_shown() -> None:
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(NotASnapshotError, match="found keys list-less, tuple"):
        find_snapshot({"list-less": 1, _Unhashed(deep): 2})


class _Unhashed(tuple):  # type: ignore[type-arg]
    """A tuple too deep to be hashed or shown."""

    def __hash__(self) -> int:
        return 1


_Unhashed.__name__ = "tuple"

"""What would have helped a failed request."""

from __future__ import annotations

from typing import Any, Final

import pytest

from snapscope.analyses.oom import OomReport, find_oom
from snapscope.analyses.remedies import Remedy
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.analyses.test_oom import held, waiting
from tests.builders import MIB
from tests.conftest import fixture_path, recordings
from tests.replay.test_properties import history_of

CAPTURED: Final[dict[str, Any]] = {"stream": 9, "pool": (1, 0)}


def report(size: int, device_free: int, *segments: b.Raw, conf: b.Raw | None = None, **fields: Any) -> OomReport:
    """Report on a request of MiB that fails over segments that were there all the time."""
    events = [b.oom(size * MIB, device_free * MIB, **fields)]
    return find_oom(history_of(b.snapshot([events], segments, allocator_settings=conf or b.settings())))


def remedy(found: OomReport, word: str) -> Remedy:
    """Return the remedy whose action has a word."""
    (one,) = [each for each in found.remedies if word in each.action]
    return one


@pytest.mark.parametrize(
    ("found", "word", "frees"),
    [
        (report(100, 100, held(0, 500)), "per_process_memory_fraction", 100),
        (report(100, 0, waiting(0, 120), held(1, 500)), "record_stream", 120),
        (report(100, 60, held(0, -40), held(1, 500), **CAPTURED), "empty_cache", 40),
        (report(100, 60, held(0, -40, pool=(1, 0)), held(1, 500)), "private pools", 40),
        (report(100, 10, held(0, 500), held(1, 10, -200, stream=7)), "stream that caches it", 200),
        (report(100, 20, held(0, 70, -130), conf=b.settings(max_split_size=80 * MIB, expandable_segments=True)),
         "max_split_size_mb", 130),
        (report(100, 20, held(0, 70, -60, 70, -60)), "expandable_segments:True", 120),
    ],
    ids=["limit", "pending_free", "capture", "private_pool", "other_stream", "fitting_hole", "fragmentation"],
)  # fmt: skip
def test_every_cause_has_its_remedy(found: OomReport, word: str, frees: int) -> None:
    one = remedy(found, word)
    assert one.frees_bytes == frees * MIB
    assert one.is_enough
    assert found.remedies[0].is_enough


def test_live_blocks_of_a_private_pool_keep_its_segment() -> None:
    """Of 60 idle 20 are in a segment of their own: they don't make 100 of the driver's 60."""
    one = remedy(report(100, 60, held(0, 10, -40, pool=(1, 0)), held(1, -20, pool=(1, 0)), held(2, 500)), "private")
    assert (one.frees_bytes, one.is_enough) == (60 * MIB, False)


def test_the_cheapest_blocks_to_end() -> None:
    """Between holes of 60 lie 12 MiB, at the end of the second 70: 132 in one piece without the 12."""
    one = remedy(report(100, 20, held(0, 70, -60, 12, -60, 70)), "end 1 block")
    assert one.blocks is not None
    assert (one.blocks.block_bytes, one.blocks.freed_bytes, one.frees_bytes) == (12 * MIB, 132 * MIB, 132 * MIB)
    # Cheaper still: a segment of 80 with 4 in use, which gives the driver 100.
    one = remedy(report(100, 20, held(0, 70, -60, 12, -60, 70), held(1, 4, -76)), "end 1 block")
    assert one.blocks is not None
    assert (one.blocks.block_bytes, one.blocks.freed_bytes) == (4 * MIB, 80 * MIB)


def test_blocks_are_no_remedy_for_a_card_that_is_too_small() -> None:
    found = report(100, 20, held(0, 900, -40, 10, -20))
    assert not [each for each in found.remedies if each.blocks is not None]


def test_a_request_whose_segment_is_larger_than_itself() -> None:
    """5 MiB fail with 15 at the driver, since a segment of 20 is made for them."""
    one = remedy(report(5, 15, held(0, 500)), "part of a larger one")
    assert (one.frees_bytes, one.is_enough) == (15 * MIB, False)
    assert "20.00 MiB" in one.why


def test_expandable_segments_are_not_advised_where_they_are_on() -> None:
    conf = b.settings(expandable_segments=True)
    found = report(100, 0, held(0, 70, -60, 70, -60, is_expandable=True), conf=conf)
    assert not [each for each in found.remedies if "expandable_segments" in each.action]


@pytest.mark.parametrize("name", [*recordings("runs/oom"), "cases/01_capacity_oom/a.pickle",
                                  "cases/02_fragmentation_oom/a.pickle", "torch-2.14/fragmentation"])  # fmt: skip
def test_remedies_on_recordings(name: str) -> None:
    """What suffices comes first; blocks to end are alive, and theirs is what they are said to take."""
    history = DeviceHistory(load_snapshot(fixture_path(name)))
    found = find_oom(history)
    keys = [(not each.is_enough, -each.frees_bytes) for each in found.remedies]
    assert keys == sorted(keys)
    for each in found.remedies:
        assert each.frees_bytes >= 0
        if each.blocks is not None:
            event = found.failures[-1].at.event
            alive = {*history.lifetimes.live_at(event).tolist(), *history.lifetimes.pending_at(event).tolist()}
            assert set(each.blocks.lifetimes.tolist()) <= alive
            assert each.blocks.block_bytes == history.blocks.block_bytes[each.blocks.lifetimes].sum()
            request = found.failures[-1].request
            missing = request.driver_bytes - (request.device_free_bytes or 0)
            assert each.blocks.freed_bytes >= min(request.requested_bytes, missing)


def test_case_01_is_not_told_to_use_expandable_segments() -> None:
    found = find_oom(DeviceHistory(load_snapshot(fixture_path("cases/01_capacity_oom/a.pickle"))))
    assert not [each for each in found.remedies if "expandable" in each.action]
    case_02 = find_oom(DeviceHistory(load_snapshot(fixture_path("cases/02_fragmentation_oom/a.pickle"))))
    assert remedy(case_02, "expandable_segments:True").frees_bytes == 512 * MIB

"""The eight causes, their order, and when a card counts as full."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from snapscope.analyses.projection import Projection
from snapscope.analyses.request import Request
from snapscope.analyses.verdict import Cause, Full, Verdict, judge
from snapscope.model import SizeClass

PLAIN: Final[dict[str, Any]] = {
    "event": 0,
    "requested_bytes": 100,
    "segment_bytes": 100,
    "driver_bytes": 100,
    "device_free_bytes": 10,
    "pool": 0,
    "pool_name": "default pool",
    "stream": 0,
    "size_class": SizeClass.LARGE,
    "is_expandable": False,
    "own_segments": np.array([True]),
    "holes_bytes": 0,
    "num_holes": 0,
    "largest_hole_bytes": 0,
    "usable_hole_bytes": 0,
    "other_stream_holes_bytes": 0,
    "largest_other_stream_hole_bytes": 0,
    "other_class_bytes": 0,
    "private_pool_bytes": 0,
    "private_segments_bytes": 0,
    "pending_bytes": 0,
    "largest_with_pending_bytes": 0,
    "returnable_bytes": 0,
    "is_capture": False,
    "has_only_grown": False,
}
"""A request of 100 bytes for which nothing is there but 10 at the driver."""

WHEN: Final[dict[Cause, dict[str, Any]]] = {
    Cause.LIMIT: {"device_free_bytes": 100},
    Cause.PENDING_FREE: {"pending_bytes": 100, "largest_with_pending_bytes": 100},
    Cause.CAPTURE: {"returnable_bytes": 90, "is_capture": True},
    Cause.PRIVATE_POOL: {"private_pool_bytes": 90},
    Cause.CAPACITY: {},
    Cause.OTHER_STREAM: {"other_stream_holes_bytes": 100, "largest_other_stream_hole_bytes": 100},
    Cause.FRAGMENTATION: {"holes_bytes": 90, "largest_hole_bytes": 50},
    Cause.FITTING_HOLE: {"holes_bytes": 100, "largest_hole_bytes": 100},
}
"""What makes each cause hold, alone or with others."""


def verdict(reserved: int = 1000, active: int = 500, **changes: Any) -> Verdict:
    projection, is_first = changes.pop("projection", None), changes.pop("is_first_step", False)
    return judge(
        Request(**{**PLAIN, **changes}),
        reserved_bytes=reserved,
        active_bytes=active,
        projection=projection,
        is_first_step=is_first,
    )


def needed(num_bytes: int, basis: str = "earlier_step") -> Projection:
    return Projection(needed_bytes=num_bytes, basis=basis, explanation="")


@pytest.mark.parametrize("cause", WHEN)
def test_every_cause(cause: Cause) -> None:
    assert verdict(**WHEN[cause]).cause is cause


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Cause.LIMIT, Cause.PENDING_FREE), (Cause.LIMIT, Cause.OTHER_STREAM), (Cause.LIMIT, Cause.FITTING_HOLE),
        (Cause.PENDING_FREE, Cause.CAPTURE), (Cause.PENDING_FREE, Cause.PRIVATE_POOL),
        (Cause.PENDING_FREE, Cause.CAPACITY), (Cause.PENDING_FREE, Cause.OTHER_STREAM),
        (Cause.PENDING_FREE, Cause.FRAGMENTATION), (Cause.CAPTURE, Cause.PRIVATE_POOL),
        (Cause.CAPTURE, Cause.CAPACITY), (Cause.CAPTURE, Cause.OTHER_STREAM), (Cause.CAPTURE, Cause.FRAGMENTATION),
        (Cause.CAPTURE, Cause.FITTING_HOLE), (Cause.PRIVATE_POOL, Cause.CAPACITY),
        (Cause.OTHER_STREAM, Cause.FRAGMENTATION),
    ],
)  # fmt: skip
def test_the_earlier_cause_is_the_verdict(first: Cause, second: Cause) -> None:
    """Both hold: the one that is tested first is the verdict, and the other goes with it."""
    found = verdict(**{**WHEN[second], **WHEN[first]})
    assert (found.cause, second in found.also) == (first, True)
    order = list(Cause)
    assert [order.index(cause) for cause in (found.cause, *found.also)] == sorted(
        {order.index(cause) for cause in (found.cause, *found.also)}
    )


def test_short_by_is_what_even_one_piece_would_lack() -> None:
    """100 − 10 − 30 − 20; idle private pools and the other size class don't count."""
    found = verdict(
        holes_bytes=30, largest_hole_bytes=20, other_stream_holes_bytes=20, private_pool_bytes=39, other_class_bytes=500
    )
    assert (found.room.short_by_bytes, found.cause) == (40, Cause.CAPACITY)
    assert verdict(holes_bytes=300).room.short_by_bytes == 0


@pytest.mark.parametrize(("private", "cause"), [(89, Cause.CAPACITY), (90, Cause.PRIVATE_POOL)])
def test_private_pools_are_to_blame_only_if_they_have_all_that_is_missing(private: int, cause: Cause) -> None:
    assert verdict(private_pool_bytes=private).cause is cause


@pytest.mark.parametrize(("returnable", "cause"), [(89, Cause.CAPACITY), (90, Cause.CAPTURE)])
def test_a_capture_is_to_blame_only_if_what_it_kept_would_have_sufficed(returnable: int, cause: Cause) -> None:
    assert verdict(returnable_bytes=returnable, is_capture=True).cause is cause


def test_pending_memory_is_not_to_blame_where_a_hole_fits() -> None:
    found = verdict(**{**WHEN[Cause.FITTING_HOLE], "pending_bytes": 1, "largest_with_pending_bytes": 101})
    assert found.cause is Cause.FITTING_HOLE


def test_a_limit_keeps_what_the_driver_has_out_of_the_other_sums() -> None:
    """The driver's 200 weren't to be had: 60 + 40 of another stream are, but 60 in holes alone are too few."""
    found = verdict(
        device_free_bytes=200,
        holes_bytes=60,
        largest_hole_bytes=30,
        other_stream_holes_bytes=40,
        largest_other_stream_hole_bytes=40,
    )
    assert (found.cause, Cause.FRAGMENTATION in found.also) == (Cause.LIMIT, False)
    assert Cause.OTHER_STREAM in found.also


def test_the_driver_had_the_request_but_not_a_segment() -> None:
    """5 of 20 MiB asked for, and 6 at the driver, no hole: nothing else holds."""
    found = verdict(requested_bytes=5, driver_bytes=20, segment_bytes=20, device_free_bytes=6)
    assert (found.cause, found.also, found.room.short_by_bytes) == (Cause.CAPACITY, (), 0)


def test_device_free_unknown() -> None:
    found = verdict(device_free_bytes=None)
    assert (found.cause, found.room.short_by_bytes, found.room.room_bytes) == (Cause.CAPACITY, 100, 1000)


# ------------------------------------------------------------------------------- a full card

IN_PIECES: Final = {"holes_bytes": 300, "num_holes": 10, "largest_hole_bytes": 50}
"""Enough is free for 100, in pieces of a card of 1010."""


@pytest.mark.parametrize(
    ("active", "full"),
    # Of 1010 less than 15 % is left from 859 on.
    [(500, None), (858, None), (859, Full.SHARE), (1000, Full.SHARE)],
)
def test_a_card_without_room_is_full(active: int, full: Full | None) -> None:
    found = verdict(active=active, **IN_PIECES)
    assert found.full is full
    assert found.cause is (Cause.CAPACITY if full else Cause.FRAGMENTATION)
    assert (Cause.FRAGMENTATION in found.also) == (full is not None)
    assert found.room.left_bytes == 1010 - active


@pytest.mark.parametrize(
    ("num_bytes", "full"),
    # 510 are left.
    [(510, None), (511, Full.NEED)],
)
def test_what_the_step_still_needed_decides(num_bytes: int, full: Full | None) -> None:
    found = verdict(projection=needed(num_bytes), **IN_PIECES)
    assert found.full is full
    assert found.projection is not None
    assert found.projection.needed_bytes == num_bytes


def test_a_step_that_would_have_fitted_is_no_full_card() -> None:
    """Only 10 % are left, and 100 of them would have sufficed."""
    assert verdict(active=909, projection=needed(100), **IN_PIECES).full is None
    # A lower bound proves nothing of the kind.
    assert verdict(active=909, projection=needed(100, "optimizer_states"), **IN_PIECES).full is Full.SHARE


def test_a_request_that_could_not_fit_needs_no_full_card() -> None:
    found = verdict(active=1000, holes_bytes=50, largest_hole_bytes=50)
    assert (found.cause, found.full, found.room.short_by_bytes) == (Cause.CAPACITY, None, 40)


def test_a_hole_that_fits_is_no_full_card() -> None:
    assert verdict(active=900, holes_bytes=100, largest_hole_bytes=100).cause is Cause.FITTING_HOLE
    # Unless the step needed more.
    found = verdict(active=900, holes_bytes=100, largest_hole_bytes=100, projection=needed(111))
    assert (found.cause, found.also) == (Cause.CAPACITY, (Cause.FITTING_HOLE,))


def test_idle_private_pools_are_in_use() -> None:
    """500 live and 400 idle in a graph's pool, of 1010: 110 are left."""
    found = verdict(active=500, private_pool_bytes=400, **IN_PIECES)
    assert (found.room.live_bytes, found.room.left_bytes, found.full) == (900, 110, Full.SHARE)

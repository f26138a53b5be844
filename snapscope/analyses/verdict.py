"""Why a request failed: one main verdict, in a fixed order, and what else holds.

PyTorch's own hint looks at "reserved but unallocated" alone and misleads both ways: in
training that memory is usually a few holes in a card that is simply full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from snapscope.analyses.projection import Projection
from snapscope.analyses.request import Request

_FULL_SHARE: Final = 0.15
_FULL_OF_FEW_HOLES: Final = 0.3
_FULL_IN_FIRST_STEP: Final = 0.35
_FULL_WHILE_GROWING: Final = 0.5


class Cause(str, Enum):
    """Why an allocation failed, in the order in which they are tested."""

    LIMIT = "limit"
    PENDING_FREE = "pending_free"
    CAPTURE = "capture"
    PRIVATE_POOL = "private_pool"
    CAPACITY = "capacity"
    OTHER_STREAM = "other_stream"
    FRAGMENTATION = "fragmentation"
    FITTING_HOLE = "fitting_hole"
    NONE = "none"


class Full(str, Enum):
    """What shows that the card was full although its free bytes sum to more than the request."""

    NEED = "need"
    SHARE = "share"
    FEW_HOLES = "few_holes"
    FIRST_STEP = "first_step"
    ONLY_GROWN = "only_grown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the card had for PyTorch at the moment, and what of it was in use.

    Attributes:
        room_bytes: reserved and device free: what PyTorch could have had at most.
        live_bytes: blocks in use or pending, and what idle private pools keep.
        holes_bytes: free pieces of the request's size class, of any stream.
        short_by_bytes: what is missing even if every free byte of the request's size class were
            one piece, the driver's included.
    """

    room_bytes: int
    live_bytes: int
    holes_bytes: int
    short_by_bytes: int

    @property
    def left_bytes(self) -> int:
        """What was not in use."""
        return max(self.room_bytes - self.live_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The main cause and the others that hold as well.

    Attributes:
        cause: the first that holds.
        also: the others, in order.
        room: the arithmetic that the capacity test rests on.
        projection: what the step still needed; None where nothing tells.
        full: what shows that the card was full; None if it wasn't, or if the request couldn't have
            fitted anyway.
    """

    cause: Cause
    also: tuple[Cause, ...]
    room: Room
    projection: Projection | None
    full: Full | None


def judge(
    request: Request,
    *,
    reserved_bytes: int,
    active_bytes: int,
    projection: Projection | None = None,
    is_first_step: bool = False,
) -> Verdict:
    """Judge one failed request.

    Args:
        request: it, and the free memory around it.
        reserved_bytes: reserved at that moment.
        active_bytes: blocks live or pending then.
        projection: what the step still needed, if anything tells.
        is_first_step: whether a first step of training was underway: its gradients and the
            optimizer's states were yet to come, so that less than all of the card counts as full.
    """
    room = _room(request, reserved_bytes, active_bytes)
    if request.requested_bytes <= 0:
        return Verdict(cause=Cause.NONE, also=(), room=room, projection=None, full=None)
    full = None if room.short_by_bytes else _full(request, room, projection, is_first_step=is_first_step)
    holding = list(_causes(request, room, is_full=full is not None))
    if not holding:
        # The driver had the bytes of the request, but not those of a whole segment.
        holding = [Cause.CAPACITY]
    return Verdict(cause=holding[0], also=tuple(holding[1:]), room=room, projection=projection, full=full)


def _room(request: Request, reserved_bytes: int, active_bytes: int) -> Room:
    free = request.device_free_bytes or 0
    holes = request.holes_bytes + request.other_stream_holes_bytes
    return Room(
        room_bytes=reserved_bytes + free,
        live_bytes=active_bytes + request.private_pool_bytes,
        holes_bytes=holes,
        short_by_bytes=max(0, request.requested_bytes - free - holes),
    )


def _causes(request: Request, room: Room, *, is_full: bool) -> Iterator[Cause]:
    """Yield every cause that holds, in the order of precedence."""
    wanted, free = request.requested_bytes, request.device_free_bytes or 0
    has_hole = request.largest_hole_bytes >= wanted
    if request.device_free_bytes is not None and free >= request.driver_bytes:
        yield Cause.LIMIT
        # What the driver had wasn't to be had: only cached memory could have served.
        free = 0
    if request.pending_bytes and request.largest_with_pending_bytes >= wanted and not has_hole:
        yield Cause.PENDING_FREE
    if request.is_capture and free < request.driver_bytes <= free + request.returnable_bytes:
        yield Cause.CAPTURE
    if 0 < room.short_by_bytes <= request.private_pool_bytes:
        yield Cause.PRIVATE_POOL
    if room.short_by_bytes or is_full:
        yield Cause.CAPACITY
    elsewhere = request.other_stream_holes_bytes
    fits_with_others = free + request.holes_bytes < wanted <= free + request.holes_bytes + elsewhere
    if not has_hole and (request.largest_other_stream_hole_bytes >= wanted or fits_with_others):
        yield Cause.OTHER_STREAM
    if not has_hole and request.holes_bytes and free + request.holes_bytes >= wanted:
        yield Cause.FRAGMENTATION
    if has_hole:
        yield Cause.FITTING_HOLE


def _full(request: Request, room: Room, projection: Projection | None, *, is_first_step: bool) -> Full | None:
    """Tell whether the card was full, whatever its holes sum to, and what shows it.

    Where nothing shows what was to come: less than about a seventh unused. More, where the rest
    is at the driver in less than the segment wanted; in a first step of training; and where
    the program had only grown so far.
    """
    if projection is not None:
        if projection.needed_bytes > room.left_bytes:
            return Full.NEED
        if not projection.is_lower_bound:
            return None
    if request.largest_hole_bytes >= request.requested_bytes:
        return None
    has_few_holes = room.holes_bytes < _FULL_SHARE * room.room_bytes
    tests = (
        (Full.SHARE, True, _FULL_SHARE),
        (Full.FEW_HOLES, has_few_holes, _FULL_OF_FEW_HOLES),
        (Full.FIRST_STEP, is_first_step, _FULL_IN_FIRST_STEP),
        (Full.ONLY_GROWN, request.has_only_grown, _FULL_WHILE_GROWING),
    )
    return next((full for full, applies, limit in tests if applies and room.left_bytes < limit * room.room_bytes), None)

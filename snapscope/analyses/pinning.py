"""Which live blocks keep free memory from being used or given back, and which few would free most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.ledger import LedgerRow, group_rows
from snapscope.analyses.pools import sum_by
from snapscope.analyses.selection import LEFT_OUT_KEY
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.model import BoolColumn, Int64Column

_MAX_GRANULES: Final = 1 << 40
_MAX_PREFIXES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRow:
    """The blocks of one site in partly used segments, and what they hold.

    Segment stands for granule where segments are expandable: those go back one by one.

    Attributes:
        row: the site and its category; its bytes are those asked for.
        block_bytes: the same in blocks.
        num_segments: partly used segments (granules) that they lie in.
        held_alone_bytes: free bytes of segments in which nobody else has a block.
        held_any_bytes: free bytes of all these segments; sites share them.
    """

    row: LedgerRow
    block_bytes: int
    num_segments: int
    held_alone_bytes: int
    held_any_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeingSet:
    """Some live blocks whose end would free a contiguous piece, or whole segments.

    Attributes:
        rows: the blocks by site.
        lifetimes: their rows in the lifetime table.
        block_bytes: what they take.
        freed_bytes: the contiguous piece that comes about, or the bytes that could go back to
            the driver.
        num_segments: how many segments (granules) they lie in.
        unit: `segment`, or `granule` where all of these belong to expandable segments.
    """

    rows: tuple[LedgerRow, ...]
    lifetimes: Int64Column
    block_bytes: int
    freed_bytes: int
    num_segments: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestHole:
    """The largest free piece of some segments, and the blocks around it.

    Attributes:
        addr, size_bytes: the piece.
        segment_addr, segment_bytes: the segment that it lies in.
        below, above: rows of the lifetime table of the blocks at its ends; None at the segment's end.
        rows: all blocks of the segment by site: they pin it.
    """

    addr: int
    size_bytes: int
    segment_addr: int
    segment_bytes: int
    below: int | None
    above: int | None
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What the driver takes back as one: segments, or granules of expandable ones, in use.

    Attributes:
        segment: row of the layout's segments, by cell.
        size_bytes, used_bytes: the cell, and what blocks take of it.
        block, cell: pairs of a row of the layout's blocks and a cell that it touches with an
            end of its own.
    """

    segment: Int64Column
    size_bytes: Int64Column
    used_bytes: Int64Column
    block: Int64Column
    cell: Int64Column

    @property
    def free_bytes(self) -> Int64Column:
        """Free bytes by cell."""
        free: Int64Column = np.maximum(self.size_bytes - self.used_bytes, 0)
        return free


def find_cells(layout: Layout) -> Cells:
    """Cut the segments into what can go back alone, and say which blocks are in the way.

    A block longer than a granule fills those between its ends: nobody waits for them, so only
    the cells of its two ends are kept.
    """
    segments, blocks = layout.segments, layout.blocks
    unit = segments.granule_bytes[blocks.segment]
    low = blocks.offset_bytes
    high = low + np.maximum(blocks.size_bytes, 1)
    first, last = low // unit, (high - 1) // unit
    both = np.flatnonzero(last > first)
    block = np.concatenate((np.arange(len(blocks)), both))
    granule = np.concatenate((first, last[both]))
    # Segments hold fewer granules than 2^40: a terabyte of bytes each.
    keys, cell = np.unique(
        blocks.segment[block] * _MAX_GRANULES + np.minimum(granule, _MAX_GRANULES - 1), return_inverse=True
    )
    segment, number = keys // _MAX_GRANULES, keys % _MAX_GRANULES
    start = number * segments.granule_bytes[segment]
    size = np.minimum(segments.granule_bytes[segment], segments.size_bytes[segment] - start)
    inside = np.minimum(high[block], start[cell] + size[cell]) - np.maximum(low[block], start[cell])
    return Cells(
        segment=segment,
        size_bytes=size,
        used_bytes=sum_by(cell, np.maximum(inside, 0), len(keys)),
        block=block,
        cell=cell,
    )


def pin_rows(
    history: DeviceHistory,
    layout: Layout,
    *,
    segments: BoolColumn | None = None,
    cells: Cells | None = None,
    selection: BoolColumn | None = None,
) -> tuple[PinRow, ...]:
    """Say which sites pin the free bytes of partly used segments, most bytes held first.

    Args:
        history: the device.
        layout: the moment.
        segments: which segments count; None = all that aren't a private pool's.
        cells: those of the layout, if they have been found before.
        selection: rows of the lifetime table to group; the others become the last row.
    """
    found = cells or find_cells(layout)
    wanted = ~layout.segments.is_private if segments is None else segments
    free = found.free_bytes
    holds = (free[found.cell] > 0) & wanted[found.segment[found.cell]]
    block, cell = found.block[holds], found.cell[holds]
    if not len(block):
        return ()
    groups = group_rows(history, layout.blocks.row[np.unique(block)], selection=selection)
    owner = np.full(len(history.lifetimes), -1, np.int64)
    for number, group in enumerate(groups):
        owner[group.lifetimes] = number
    pairs = np.unique(np.stack((cell, owner[layout.blocks.row[block]])), axis=1)
    num_owners = np.bincount(pairs[0], minlength=len(free))
    held = free[pairs[0]]
    any_bytes = sum_by(pairs[1], held, len(groups))
    alone = sum_by(pairs[1], np.where(num_owners[pairs[0]] == 1, held, 0), len(groups))
    num_segments = np.bincount(pairs[1], minlength=len(groups))
    rows = [
        PinRow(
            row=group,
            block_bytes=int(history.blocks.block_bytes[group.lifetimes].sum()),
            num_segments=int(num_segments[number]),
            held_alone_bytes=int(alone[number]),
            held_any_bytes=int(any_bytes[number]),
        )
        for number, group in enumerate(groups)
    ]
    return tuple(
        sorted(
            rows, key=lambda row: (row.row.key == LEFT_OUT_KEY, -row.held_any_bytes, -row.held_alone_bytes, row.row.key)
        )
    )


def largest_hole(history: DeviceHistory, layout: Layout, segments: BoolColumn | None = None) -> LargestHole | None:
    """Find the largest free piece that blocks pin; None if there is none.

    Args:
        history: the device.
        layout: the moment.
        segments: which segments count; None = all that aren't a private pool's.
    """
    pieces, table, blocks = layout.pieces, layout.segments, layout.blocks
    wanted = ~table.is_private if segments is None else segments
    is_pinned = wanted[pieces.segment] & (table.num_blocks[pieces.segment] > 0)
    candidates = np.flatnonzero(is_pinned)
    if not len(candidates):
        return None
    place = int(candidates[pieces.size_bytes[candidates].argmax()])
    segment, low = int(pieces.segment[place]), int(pieces.offset_bytes[place])
    own = layout.blocks_of(segment)
    above = own.start + int(np.searchsorted(blocks.offset_bytes[own], low))
    return LargestHole(
        addr=int(table.addr[segment]) + low,
        size_bytes=int(pieces.size_bytes[place]),
        segment_addr=int(table.addr[segment]),
        segment_bytes=int(table.size_bytes[segment]),
        below=int(blocks.row[above - 1]) if above > own.start else None,
        above=int(blocks.row[above]) if above < own.stop else None,
        rows=group_rows(history, blocks.row[own]),
    )


def smallest_for_hole(
    history: DeviceHistory, layout: Layout, segments: BoolColumn, wanted_bytes: int
) -> FreeingSet | None:
    """Find the fewest bytes of blocks whose end would join holes to one of a wanted size.

    Looks at every run of neighbouring blocks in one segment: their own bytes and the gaps
    around them become one piece. One pass with two pointers, since a longer run never needs
    an earlier start.
    """
    blocks, table = layout.blocks, layout.segments
    chosen = np.flatnonzero(segments[blocks.segment])
    home = blocks.segment[chosen].tolist()
    low = blocks.offset_bytes[chosen].tolist()
    size = blocks.size_bytes[chosen].tolist()
    total = table.size_bytes.tolist()
    best: tuple[int, int, int, int] | None = None
    start = taken = 0
    for place, segment in enumerate(home):
        if place and home[place - 1] != segment:
            start, taken = place, 0
        taken += size[place]
        is_last = place + 1 == len(home) or home[place + 1] != segment
        high = total[segment] if is_last else low[place + 1]
        while start <= place:
            is_first = start == 0 or home[start - 1] != segment
            below = 0 if is_first else low[start - 1] + size[start - 1]
            if high - below < wanted_bytes:
                break
            found = (taken, place - start + 1, start, high - below)
            if best is None or found < best:
                best = found
            taken -= size[start]
            start += 1
    if best is None:
        return None
    taken, number, start, piece = best
    return _freeing_set(history, layout, chosen[start : start + number], piece, 1)


def smallest_for_return(
    history: DeviceHistory,
    layout: Layout,
    *,
    wanted_bytes: int | None = None,
    segments: BoolColumn | None = None,
    cells: Cells | None = None,
) -> FreeingSet | None:
    """Find few bytes of blocks whose end would let segments go back to the driver.

    Segments (granules) come in the order of free bytes per byte in use; a block that lies in
    two granules counts for both only once. Picking whole segments best is a knapsack problem:
    this is its greedy answer.

    Args:
        history: the device.
        layout: the moment.
        wanted_bytes: how much must come back, or there is no answer; None = all segments of
            which less than half is in use, else the one of most free bytes for its used ones.
        segments: which segments count; None = all that aren't a private pool's.
        cells: those of the layout, if they have been found before.
    """
    found = cells or find_cells(layout)
    wanted = ~layout.segments.is_private if segments is None else segments
    free = found.free_bytes
    candidates = np.flatnonzero(wanted[found.segment] & (free > 0))
    if not len(candidates):
        return None
    share = found.used_bytes[candidates] / found.size_bytes[candidates]
    order = candidates[np.lexsort((-free[candidates], share))]
    gained = np.cumsum(found.size_bytes[order])
    if wanted_bytes is None:
        order = order[: max(int((found.used_bytes[order] * 2 < found.size_bytes[order]).sum()), 1)]
    elif gained[-1] < wanted_bytes:
        return None
    else:
        order = _enough(found, order, gained, wanted_bytes)
    is_taken = np.zeros(len(free), bool)
    is_taken[order] = True
    rows = np.unique(found.block[is_taken[found.cell]])
    return _freeing_set(history, layout, rows, int(found.size_bytes[order].sum()), len(order))


def _enough(cells: Cells, order: Int64Column, gained: Int64Column, wanted_bytes: int) -> Int64Column:
    """Choose cells of enough bytes: the first of the order, or fewer of these and one that completes them.

    The greedy prefix alone may end with a cell that is far larger than what was missing.
    """
    number = int(np.searchsorted(gained, wanted_bytes)) + 1
    used, size = cells.used_bytes[order], cells.size_bytes[order]
    costs = np.cumsum(used)
    best, chosen = int(costs[number - 1]), order[:number]
    for kept in range(max(number - _MAX_PREFIXES, 0), number):
        missing = wanted_bytes - (int(gained[kept - 1]) if kept else 0)
        completing = kept + np.flatnonzero(size[kept:] >= missing)
        if not len(completing):
            continue
        last = int(completing[used[completing].argmin()])
        cost = int(used[last]) + (int(costs[kept - 1]) if kept else 0)
        if cost < best:
            best, chosen = cost, np.append(order[:kept], order[last])
    return chosen


def _freeing_set(
    history: DeviceHistory, layout: Layout, blocks: Int64Column, freed_bytes: int, num_segments: int
) -> FreeingSet:
    lifetimes = layout.blocks.row[blocks]
    is_expandable = layout.segments.is_expandable[layout.blocks.segment[blocks]]
    return FreeingSet(
        rows=group_rows(history, lifetimes),
        lifetimes=lifetimes,
        block_bytes=int(layout.blocks.size_bytes[blocks].sum()),
        freed_bytes=freed_bytes,
        num_segments=num_segments,
        unit="granule" if is_expandable.all() else "segment",
    )

"""Where everything lies at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.errors import MalformedError
from snapscope.graph import lifetime_ids
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.model import BlockState, SizeClass
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.bench.make_snapshot import build
from tests.builders import INACTIVE, KIB, MIB, PENDING, Raw
from tests.conftest import fixture_path, recordings
from tests.graph.histories import A, split_and_merge
from tests.replay.test_contradictions import EVENTS, SETTINGS
from tests.replay.test_properties import history_of

Picture: TypeAlias = tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[tuple[int, ...]]]
"""Segments, blocks and free pieces, each by address."""


def picture_of(layout: Layout) -> Picture:
    """Return (address, bytes, stream, pool, class) of segments, (.., is pending) of blocks, (..) of pieces."""
    segments, blocks, pieces = layout.segments, layout.blocks, layout.pieces
    starts = segments.addr.tolist()
    columns = (segments.size_bytes, segments.stream, segments.pool, segments.size_class)
    return (
        list(zip(starts, *(column.tolist() for column in columns), strict=True)),
        [
            (starts[home] + offset, size, is_pending)
            for home, offset, size, is_pending in zip(
                *(c.tolist() for c in (blocks.segment, blocks.offset_bytes, blocks.size_bytes, blocks.is_pending)),
                strict=True,
            )
        ],
        [
            (starts[home] + offset, size)
            for home, offset, size in zip(
                *(column.tolist() for column in (pieces.segment, pieces.offset_bytes, pieces.size_bytes)), strict=True
            )
        ],
    )


def check_tiling(layout: Layout, *, is_consistent: bool = True) -> None:
    """Blocks and pieces fill every segment, and nothing is negative.

    Where the file contradicts itself, blocks may overlap or lack a segment, but pieces neither overlap nor leave it.
    """
    segments, blocks, pieces = layout.segments, layout.blocks, layout.pieces
    for column in (blocks.offset_bytes, blocks.size_bytes, pieces.offset_bytes, pieces.returnable_bytes):
        assert (column >= 0).all()
    assert (pieces.size_bytes > 0).all()
    assert (pieces.returnable_bytes <= pieces.size_bytes).all()
    for column in (segments.allocated_bytes, segments.pending_bytes, segments.free_bytes, segments.returnable_bytes):
        assert (column >= 0).all()
    hostages = layout.hostages()
    assert (hostages >= 0).all()
    assert (hostages <= segments.free_bytes[blocks.segment]).all() or not is_consistent
    for number, total in enumerate(segments.size_bytes.tolist()):
        own, gaps = layout.blocks_of(number), layout.pieces_of(number)
        low = np.concatenate((blocks.offset_bytes[own], pieces.offset_bytes[gaps]))
        size = np.concatenate((blocks.size_bytes[own], pieces.size_bytes[gaps]))
        assert (low + size <= total).all()
        gap_low, gap_size = pieces.offset_bytes[gaps], pieces.size_bytes[gaps]
        assert (gap_low[1:] > (gap_low + gap_size)[:-1]).all(), "pieces that touch are one"
        if is_consistent:
            order = np.argsort(low, kind="stable")
            reached = np.cumsum(size[order])
            assert low[order].tolist() == [0, *reached[:-1].tolist()], "a gap or an overlap"
            assert reached[-1] == total
            assert segments.free_bytes[number] == gap_size.sum()
            assert segments.returnable_bytes[number] == pieces.returnable_bytes[gaps].sum()
            assert segments.num_blocks[number] == len(blocks.row[own])


# ------------------------------------------------------------------------------- by hand


def pins_of(history: DeviceHistory, event: int) -> list[tuple[str, int, int]]:
    layout = history.layout_at(event)
    return [
        (name, segment, hostage // MIB)
        for name, segment, hostage in zip(
            lifetime_ids(history, layout.blocks.row),
            layout.blocks.segment.tolist(),
            layout.hostages().tolist(),
            strict=True,
        )
    ]


def test_every_block_holds_the_free_bytes_of_its_segment() -> None:
    history = split_and_merge()
    # 20 − 6 − 4 at the end, 20 − 2 − 4 after event 5, 20 − 8 while a waits for nobody after event 2.
    assert pins_of(history, 11) == [("event:10", 0, 10), ("event:11", 0, 10)]
    assert pins_of(history, 5) == [("event:4", 0, 14), ("event:5", 0, 14)]
    assert pins_of(history, 2) == [("event:1", 0, 12)]
    assert pins_of(history, 3) == []
    assert pins_of(history, -1) == []
    segments = history.layout_at(11).segments
    assert (segments.size_bytes.tolist(), segments.free_bytes.tolist()) == ([20 * MIB], [10 * MIB])
    assert segments.num_blocks.tolist() == [2]


def expandable(sizes: list[tuple[float, bool]], **fields: Any) -> DeviceHistory:
    """Make an expandable segment of (MiB, is used) pieces, without a history."""
    blocks = [
        b.block(int(size * MIB)) if is_used else b.block(int(size * MIB), state=INACTIVE) for size, is_used in sizes
    ]
    return history_of(b.snapshot(segments=[b.segment(A, blocks, is_expandable=True, **fields)]))


@pytest.mark.parametrize(
    ("sizes", "hostage"),
    [
        # 60 MiB in granules of 20: a block in the second holds that one only.
        ([(21, False), (2, True), (37, False)], [18]),
        # A block over the border of two holds both.
        ([(18, False), (4, True), (38, False)], [36]),
        # Two blocks in one granule hold the same bytes.
        ([(2, True), (3, False), (2, True), (53, False)], [16, 16]),
        # The first granule is full.
        ([(20, True), (20, False), (20, True)], [0, 0]),
    ],
)
def test_an_expandable_segment_is_held_by_the_granule(sizes: list[tuple[float, bool]], hostage: list[int]) -> None:
    assert [held for _, _, held in pins_of(expandable(sizes), -1)] == hostage


@pytest.mark.parametrize(
    ("sizes", "kind", "returnable"),
    [
        # Free from 23 to 60: the granule from 40 on; free from 0 to 21: the first.
        ([(21, False), (2, True), (37, False)], "large", [20, 20]),
        # Free from 1 to 19 and from 21 to 39: no whole granule.
        ([(1, True), (18, False), (2, True), (18, False), (1, True)], "large", [0, 0]),
        # A small one has granules of 2: free from 0.5 to 5.5, 2 to 4 go back.
        ([(0.5, True), (5, False), (0.5, True)], "small", [2]),
        # The last granule, of 10, is cut short: it goes back all the same.
        ([(1, True), (29, False)], "large", [10]),
    ],
)
def test_free_granules_can_go_back(sizes: list[tuple[float, bool]], kind: str, returnable: list[int]) -> None:
    layout = expandable(sizes, kind=kind).layout_at(-1)
    assert layout.pieces.returnable_bytes.tolist() == [size * MIB for size in returnable]
    assert layout.segments.returnable_bytes.tolist() == [sum(returnable) * MIB]


def test_the_granule_is_the_one_of_the_settings() -> None:
    blocks = [b.block(2 * MIB), b.block(126 * MIB, state=INACTIVE)]
    value = b.snapshot(
        segments=[b.segment(A, blocks, is_expandable=True)],
        allocator_settings=b.settings("large_segment_size_mb:64", expandable_segments=True),
    )
    history = history_of(value)
    # Of two granules the second is free.
    assert history.layout_at(-1).pieces.returnable_bytes.tolist() == [64 * MIB]
    assert history.layout_at(-1).hostages().tolist() == [62 * MIB]


def test_an_ordinary_segment_goes_back_whole_or_not_at_all() -> None:
    segments = [
        b.segment(A, [b.block(20 * MIB, state=INACTIVE)]),
        b.segment(A + 64 * MIB, [b.block(2 * MIB, state=PENDING), b.block(18 * MIB, state=INACTIVE)]),
    ]
    layout = history_of(b.snapshot(segments=segments)).layout_at(-1)
    assert layout.segments.returnable_bytes.tolist() == [20 * MIB, 0]
    assert layout.pieces.size_bytes.tolist() == [20 * MIB, 18 * MIB]
    assert layout.segments.pending_bytes.tolist() == [0, 2 * MIB]
    assert layout.segments.num_blocks.tolist() == [0, 1]
    assert layout.blocks.is_pending.tolist() == [True]


@pytest.mark.parametrize("pool", [(0, 0), None])
def test_touching_pieces_of_an_expandable_segment_are_one(pool: tuple[int, int] | None) -> None:
    """A block straddles two mapped pieces; then the free half of the second goes back.

    Traces before PyTorch 2.12 have no `pool_id`.
    """
    events: list[b.Events] = [
        b.segment_map(A, 20 * MIB, pool=pool),
        b.segment_map(A + 20 * MIB, 40 * MIB, pool=pool),
        b.alloc(A, 24 * MIB, pool=pool),
        b.segment_unmap(A + 40 * MIB, 20 * MIB, pool=pool),
    ]
    blocks = [b.block(24 * MIB), b.block(16 * MIB, state=INACTIVE)]
    history = history_of(
        b.snapshot(
            [events],
            [b.segment(A, blocks, is_expandable=True)],
            allocator_settings=b.settings(expandable_segments=True),
        )
    )
    by_event = [
        ([20], [], [(0, 20)]),
        ([60], [], [(0, 60)]),
        ([60], [24], [(24, 36)]),
        ([40], [24], [(24, 16)]),
    ]
    for event, (sizes, used, free) in enumerate(by_event):
        segments, placed, pieces = picture_of(history.layout_at(event))
        assert [size // MIB for _, size, *_ in segments] == sizes
        assert [size // MIB for _, size, _ in placed] == used
        assert [((addr - A) // MIB, size // MIB) for addr, size in pieces] == free


def test_a_block_over_mapped_pieces_keeps_its_size_where_pools_are_unknown() -> None:
    """A block of 30 MiB lies in two pieces of 20, of which the second goes back after the free."""
    events: list[b.Events] = [
        b.segment_map(A, 20 * MIB),
        b.alloc(A, 4 * MIB),
        b.segment_map(A + 20 * MIB, 20 * MIB),
        b.alloc(A + 4 * MIB, 30 * MIB),
        b.free(A + 4 * MIB, 30 * MIB),
        b.segment_unmap(A + 20 * MIB, 20 * MIB),
    ]
    segments = [b.segment(A, [b.block(4 * MIB), b.block(16 * MIB, state=INACTIVE)], is_expandable=True)]
    history = history_of(b.snapshot([events], segments, allocator_settings=b.settings(expandable_segments=True)))
    layout = history.layout_at(3)
    assert layout.blocks.size_bytes.tolist() == [4 * MIB, 30 * MIB]
    assert layout.segments.allocated_bytes.sum() == history.block_totals.allocated_bytes[4] == 34 * MIB


def test_small_pieces_that_went_back_together_were_small() -> None:
    """The history begins with a small expandable segment of 6 MiB, of which the free 4 MiB go back at once."""
    segments = [b.segment(A, [b.block(512), b.block(2 * MIB - 512, state=INACTIVE)], is_expandable=True)]
    value = b.snapshot(
        [[b.segment_unmap(A + 2 * MIB, 4 * MIB, pool=(0, 0))]],
        segments,
        allocator_settings=b.settings(expandable_segments=True),
    )
    history = history_of(value)
    assert not history.notices
    layout = history.layout_at(-1)
    assert layout.segments.size_bytes.tolist() == [6 * MIB]
    assert layout.segments.size_class.tolist() == [SizeClass.SMALL]


def test_neighbours_of_two_streams_stay_apart() -> None:
    segments = [
        b.segment(A, [b.block(20 * MIB, state=INACTIVE)], is_expandable=True),
        b.segment(A + 20 * MIB, [b.block(20 * MIB, state=INACTIVE)], is_expandable=True, stream=7),
    ]
    layout = history_of(b.snapshot(segments=segments)).layout_at(-1)
    assert layout.segments.size_bytes.tolist() == [20 * MIB] * 2
    assert layout.pieces.size_bytes.tolist() == [20 * MIB] * 2


def test_nothing() -> None:
    layout = history_of(b.snapshot()).layout_at(-1)
    assert picture_of(layout) == ([], [], [])
    assert len(layout.hostages()) == 0


# ------------------------------------------------------------------------------- a small allocator


@dataclass
class Segment:
    """One segment of `Simulated`: (stream, pool, size class), and its free ranges as (address, bytes)."""

    addr: int
    size: int
    key: tuple[int, int, str]
    free: list[tuple[int, int]]


@dataclass
class Simulated:
    """PyTorch's allocator in few lines: streams, a private pool, expandable segments, frees that wait.

    Free memory is a list of ranges for each segment; what the code under test calls a block is kept beside, so
    that nothing here works as it does there.
    """

    is_expandable: bool
    events: list[Raw] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    live: dict[int, tuple[int, int, Segment]] = field(default_factory=dict)
    waiting: dict[int, tuple[int, int, Segment]] = field(default_factory=dict)
    after: list[Picture] = field(default_factory=list)
    reserved_up_to: int = A

    def picture(self) -> Picture:
        classes = {"small": int(SizeClass.SMALL), "large": int(SizeClass.LARGE)}
        segments = sorted((s.addr, s.size, s.key[0], s.key[1], classes[s.key[2]]) for s in self.segments)
        blocks = [(addr, size, False) for addr, (size, _, _) in self.live.items()]
        blocks += [(addr, size, True) for addr, (size, _, _) in self.waiting.items()]
        return list(segments), sorted(blocks), sorted(piece for s in self.segments for piece in s.free)

    def record(self, action: str, addr: int, size: int, key: tuple[int, int, str]) -> None:
        pool = (1, 0) if key[1] else (0, 0)
        self.events.append(b.event(action, size, addr=addr, stream=key[0], pool=pool, time_us=len(self.events)))
        self.after.append(self.picture())

    def alloc(self, requested: int, stream: int, pool: int) -> None:
        size = -(-requested // 512) * 512
        key = (stream, pool, "small" if size <= MIB else "large")
        pieces = [(length, low, s) for s in self.segments if s.key == key for low, length in s.free if length >= size]
        if not pieces:
            self.reserve(size, key)
            pieces = [
                (length, low, s) for s in self.segments if s.key == key for low, length in s.free if length >= size
            ]
        length, low, home = min(pieces, key=lambda piece: piece[:2])
        rest = length - size
        is_split = rest >= 512 if self.is_expandable or key[2] == "small" else rest > MIB
        home.free.remove((low, length))
        if is_split:
            home.free.append((low + size, rest))
        else:
            size = length
        self.live[low] = (size, requested, home)
        self.record("alloc", low, requested, key)

    def reserve(self, size: int, key: tuple[int, int, str]) -> None:
        if not self.is_expandable:
            total = 2 * MIB if key[2] == "small" else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            made = Segment(self.reserved_up_to, total, key, [(self.reserved_up_to, total)])
            self.reserved_up_to += total
            self.segments.append(made)
            self.record("segment_alloc", made.addr, total, key)
            return
        granule = 2 * MIB if key[2] == "small" else 20 * MIB
        own = [s for s in self.segments if s.key == key]
        last = max(own, key=lambda s: s.addr, default=None)
        # The highest range grows.
        end = last.addr + last.size if last else A + hash_of(key) * RESERVATION
        tail = next(((low, length) for low, length in last.free if low + length == end), (end, 0)) if last else (end, 0)
        total = -(-(size - tail[1]) // granule) * granule
        if last is None:
            last = Segment(end, 0, key, [])
            self.segments.append(last)
        last.size += total
        if tail[1]:
            last.free.remove(tail)
        last.free.append((tail[0], tail[1] + total))
        self.record("segment_map", end, total, key)

    def free(self, number: int, *, waits: bool) -> None:
        if not self.live:
            return
        addr = list(self.live)[number % len(self.live)]
        self.waiting[addr] = self.live.pop(addr)
        _, requested, home = self.waiting[addr]
        self.record("free_requested", addr, requested, home.key)
        if not waits:
            self.complete(addr)

    def complete(self, addr: int) -> None:
        size, requested, home = self.waiting.pop(addr)
        low, high = addr, addr + size
        for piece in list(home.free):
            if piece[0] + piece[1] == low:
                home.free.remove(piece)
                low = piece[0]
            elif piece[0] == high:
                home.free.remove(piece)
                high = piece[0] + piece[1]
        home.free.append((low, high - low))
        self.record("free_completed", addr, requested, home.key)

    def settle(self) -> None:
        """Complete what waits, the oldest first."""
        for addr in list(self.waiting):
            self.complete(addr)

    def empty_cache(self) -> None:
        for home in list(self.segments):
            if not self.is_expandable:
                if home.free == [(home.addr, home.size)]:
                    self.segments.remove(home)
                    self.record("segment_free", home.addr, home.size, home.key)
                continue
            granule = 2 * MIB if home.key[2] == "small" else 20 * MIB
            for low, length in sorted(home.free):
                first = low + -(low - A) % granule
                last = low + length - (low + length - A) % granule
                if last > first:
                    home = self.unmap(home, (low, length), first, last)

    def unmap(self, home: Segment, piece: tuple[int, int], first: int, last: int) -> Segment:
        """Take [first, last) of a free piece out of a segment; return the part above, where the walk goes on."""
        home.free.remove(piece)
        end = home.addr + home.size
        above = Segment(last, end - last, home.key, [each for each in home.free if each[0] >= last])
        home.free = [each for each in home.free if each[0] < first]
        if piece[0] < first:
            home.free.append((piece[0], first - piece[0]))
        if last < piece[0] + piece[1]:
            above.free.append((last, piece[0] + piece[1] - last))
        home.size = first - home.addr
        if not home.size:
            self.segments.remove(home)
        if above.size:
            self.segments.append(above)
        for held in (self.live, self.waiting):
            for addr, (size, requested, where) in list(held.items()):
                if where is home and addr >= last:
                    held[addr] = (size, requested, above)
        self.record("segment_unmap", first, last - first, home.key)
        return above

    def snapshot(self) -> Raw:
        segments = []
        for home in sorted(self.segments, key=lambda each: each.addr):
            placed = [(low, b.block(length, state=INACTIVE)) for low, length in home.free]
            for held, state in ((self.live, b.ALLOCATED), (self.waiting, PENDING)):
                placed += [
                    (addr, b.block(size, requested=requested, state=state))
                    for addr, (size, requested, where) in held.items()
                    if where is home
                ]
            stream, pool, kind = home.key
            segments.append(
                b.segment(
                    home.addr,
                    [block for _, block in sorted(placed, key=lambda each: each[0])],
                    stream=stream,
                    kind=kind,
                    pool=(1, 0) if pool else (0, 0),
                    is_expandable=self.is_expandable,
                )
            )
        conf = b.settings(expandable_segments=self.is_expandable)
        return b.snapshot([self.events], segments, allocator_settings=conf)


RESERVATION: Final = 20 * MIB << 20
"""Apart from one another, and a multiple of every granule."""


def hash_of(key: tuple[int, int, str]) -> int:
    """Number the reservations of expandable segments."""
    return 1 + key[0] * 4 + key[1] * 2 + (key[2] == "large")


SIZES: Final = st.one_of(
    st.integers(1, 4 * KIB), st.integers(1, MIB), st.sampled_from([MIB, MIB + 1]), st.integers(MIB + 1, 45 * MIB)
)
ACTS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.sampled_from([0, 7]), st.sampled_from([0, 0, 0, 1])),
        st.tuples(st.just("free"), st.integers(0, 99), st.booleans(), st.just(0)),
        st.tuples(st.sampled_from(["settle", "empty_cache"]), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def run(acts: list[tuple[Any, ...]], *, is_expandable: bool) -> Simulated:
    memory = Simulated(is_expandable)
    for act, first, second, third in acts:
        if act == "alloc":
            memory.alloc(first, second, third)
        elif act == "free":
            memory.free(first, waits=bool(second))
        elif act == "settle":
            memory.settle()
        else:
            memory.empty_cache()
    return memory


@settings(max_examples=60)
@given(acts=ACTS, is_expandable=st.booleans())
def test_positions_after_every_event_are_the_allocators(acts: list[tuple[Any, ...]], is_expandable: bool) -> None:
    memory = run(acts, is_expandable=is_expandable)
    history = history_of(memory.snapshot())
    assert not history.notices
    for event, expected in enumerate(memory.after):
        layout = history.layout_at(event)
        assert picture_of(layout) == expected, f"after event {event}"
        check_tiling(layout)
    # What it says could go back does.
    returnable = int(history.layout_at(history.num_events - 1).segments.returnable_bytes.sum())
    reserved = sum(segment.size for segment in memory.segments)
    memory.empty_cache()
    assert reserved - sum(segment.size for segment in memory.segments) == returnable


@settings(max_examples=30)
@given(acts=ACTS, is_expandable=st.booleans(), share=st.floats(0, 1))
def test_positions_without_the_head_of_the_history(
    acts: list[tuple[Any, ...]], is_expandable: bool, share: float
) -> None:
    """Segments and starts of blocks are known all the same; a block's size may be an estimate."""
    memory = run(acts, is_expandable=is_expandable)
    value = memory.snapshot()
    lost = int(share * len(memory.events))
    history = history_of({**value, "device_traces": [memory.events[lost:]]})
    unsure = int((~history.blocks.is_exact).sum())
    for event, (_, blocks, pieces) in enumerate(memory.after[lost:]):
        layout = history.layout_at(event)
        check_tiling(layout)
        found = picture_of(layout)
        assert [(addr, is_pending) for addr, _, is_pending in found[1]] == [(at, waits) for at, _, waits in blocks]
        if not unsure:
            assert found[1:] == (blocks, pieces)


def test_the_simulated_allocator_does_all_that_it_can() -> None:
    """A program by hand reaches every kind of event: the comparison above isn't vacuous."""
    acts = [("alloc", 30 * MIB, 0, 0), ("alloc", 6 * MIB, 0, 0), ("alloc", 512, 7, 0), ("alloc", 2 * MIB, 0, 1),
            ("free", 0, True, 0), ("empty_cache", 0, 0, 0), ("settle", 0, 0, 0), ("empty_cache", 0, 0, 0)]  # fmt: skip
    for is_expandable, names in ((True, ["segment_map", "segment_unmap"]), (False, ["segment_alloc", "segment_free"])):
        memory = run(acts, is_expandable=is_expandable)
        assert {event["action"] for event in memory.events} == {"alloc", "free_requested", "free_completed", *names}
        assert len({event["stream"] for event in memory.events}) == 2


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), events=st.integers(1, 3000), window=st.integers(0, 2000), data=st.data())
def test_tiling_of_a_training_run(seed: int, events: int, window: int, data: st.DataObject) -> None:
    history = history_of(build(events, seed=seed, layers=2, window=window))
    for event in data.draw(st.lists(st.integers(-1, history.num_events - 1), max_size=5)):
        check_tiling(history.layout_at(event))


# ------------------------------------------------------------------------------- contradictions


@settings(max_examples=150)
@given(EVENTS, SETTINGS)
def test_contradictory_files_lay_out_somehow(events: list[Raw], conf: dict[str, Any]) -> None:
    try:
        history = history_of({"segments": [], "device_traces": [events], "allocator_settings": conf})
    except MalformedError:
        return
    for event in range(-1, history.num_events):
        check_tiling(history.layout_at(event), is_consistent=False)


@settings(max_examples=15)
@given(data=st.data())
def test_mutilated_histories_lay_out_somehow(data: st.DataObject) -> None:
    value: Any = build(data.draw(st.integers(20, 800)), seed=data.draw(st.integers(0, 99)), layers=1)
    trace = value["device_traces"][0]
    doomed = data.draw(st.sets(st.integers(0, len(trace) - 1), max_size=len(trace) // 4))
    history = history_of({**value, "device_traces": [[event for i, event in enumerate(trace) if i not in doomed]]})
    for event in data.draw(st.lists(st.integers(-1, history.num_events - 1), max_size=5)):
        check_tiling(history.layout_at(event), is_consistent=False)
    assert final_picture(history) == picture_of(history.layout_at(history.num_events - 1))[1:]


# ------------------------------------------------------------------------------- recordings


def final_picture(history: DeviceHistory) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the file's own blocks in use, and its free ones."""
    blocks = history.tables.blocks
    rows = list(zip(blocks.addr.tolist(), blocks.size_bytes.tolist(), blocks.state.tolist(), strict=True))
    return (
        [(addr, size, state == BlockState.PENDING_FREE) for addr, size, state in rows if state != BlockState.INACTIVE],
        [(addr, size) for addr, size, state in rows if state == BlockState.INACTIVE],
    )


def check_recording(history: DeviceHistory, where: str) -> None:
    last = history.num_events - 1
    layout = history.layout_at(last)
    segments, *rest = picture_of(layout)
    assert tuple(rest) == final_picture(history), where
    final = history.tables.segments
    columns = (final.addr, final.size_bytes, final.stream, final.pool, final.size_class)
    assert segments == list(zip(*(column.tolist() for column in columns), strict=True)), where
    check_tiling(layout)
    for event in np.linspace(-1, last, 5).astype(int).tolist():
        layout = history.layout_at(event)
        check_tiling(layout)
        at = event + 1
        assert layout.segments.size_bytes.sum() == history.totals.reserved_bytes[at], where
        assert layout.segments.allocated_bytes.sum() == history.block_totals.allocated_bytes[at], where
        assert layout.segments.pending_bytes.sum() == history.block_totals.pending_bytes[at], where


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_the_end_is_the_final_picture(name: str) -> None:
    snapshot = load_snapshot(fixture_path(name))
    for tables in snapshot.devices:
        check_recording(DeviceHistory(snapshot, tables.device), name)


def test_the_end_is_the_final_picture_in_more_recordings(shared: Path) -> None:
    paths = sorted((shared / "snapshots").rglob("*.pickle"))
    assert len(paths) >= 100
    for path in paths:
        if path.name == NO_POOLS:
            continue
        snapshot = load_snapshot(path)
        for tables in snapshot.devices:
            check_recording(DeviceHistory(snapshot, tables.device), f"{path.name} {tables.label}")


NO_POOLS: Final = "npu-resnet-leak-emptycache-expandable.pickle"


def test_positions_of_an_expandable_recording_without_pools(shared: Path) -> None:
    check_recording(DeviceHistory(load_snapshot(shared / "snapshots/public" / NO_POOLS)), NO_POOLS)

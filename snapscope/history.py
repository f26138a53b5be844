"""One device's history: every stage of the flow, computed when first asked for.

Values are pure functions of the snapshot; this class only remembers them, so that the
command line and the terminal UI share one set.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from snapscope.classify.decide import Classification, classify
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Material
from snapscope.classify.spans import Spans, find_spans
from snapscope.classify.stacks import StackFacts, read_stacks
from snapscope.classify.user_rules import UserRule
from snapscope.errors import UsageError
from snapscope.layout import Layout, lay_out
from snapscope.lifetimes import Context, LifetimeTable, build_lifetimes, find_context
from snapscope.model import HOST_DEVICE, DeviceTables, Notice, Snapshot
from snapscope.replay import (
    BlockSizes,
    BlockTotals,
    Pairing,
    RangeTable,
    Totals,
    pair_events,
    size_blocks,
    sum_block_totals,
    sum_totals,
    trace_ranges,
)
from snapscope.sites import Sites
from snapscope.steps import Steps, find_steps


class DeviceHistory:
    """Lifetimes, totals and block sizes of one device of a snapshot.

    Args:
        snapshot: the whole snapshot.
        device: ordinal or `HOST_DEVICE`; None = `default_device`.
        sites: the snapshot's sites, to share between devices.
        rules: the user's own category rules, which overrule everything else.

    Raises:
        UsageError: the snapshot has no such device.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        device: int | None = None,
        *,
        sites: Sites | None = None,
        rules: tuple[UserRule, ...] = (),
    ) -> None:
        self.snapshot = snapshot
        self.rules = rules
        self.tables = find_device(snapshot, default_device(snapshot) if device is None else device)
        self._sites = sites
        self._layout: Layout | None = None

    @property
    def device(self) -> int:
        """Ordinal of the device."""
        return self.tables.device

    @property
    def num_events(self) -> int:
        """Number of events in the trace; the last event's index is one less."""
        return len(self.tables.events)

    @cached_property
    def pairing(self) -> Pairing:
        """Which events belong to one allocation."""
        return pair_events(self.tables)

    @cached_property
    def _ranges_and_notices(self) -> tuple[RangeTable, tuple[Notice, ...]]:
        return trace_ranges(self.tables, self.snapshot.settings)

    @property
    def ranges(self) -> RangeTable:
        """Reserved ranges over time."""
        return self._ranges_and_notices[0]

    @property
    def has_segment_conflicts(self) -> bool:
        """Whether segment events contradict the final segments: reserved ranges before the end are estimates."""
        return bool(self._ranges_and_notices[1])

    @cached_property
    def totals(self) -> Totals:
        """Requested, pending and reserved bytes after every event (index 0: before the first)."""
        return sum_totals(self.tables, self.pairing, self.ranges)

    @cached_property
    def lifetimes(self) -> LifetimeTable:
        """One row per allocation."""
        return build_lifetimes(self.tables, self.pairing, self.ranges)

    @cached_property
    def context(self) -> Context:
        """What context was recorded."""
        return find_context(self.tables, self.pairing)

    @cached_property
    def blocks(self) -> BlockSizes:
        """Exact block size of every row of `lifetimes`: the sequential walk, done once."""
        is_host = self.device == HOST_DEVICE
        return size_blocks(self.tables, self.pairing, self.ranges, self.snapshot.settings, rounds=not is_host)

    @cached_property
    def block_totals(self) -> BlockTotals:
        """Allocated and pending bytes in real block sizes after every event."""
        return sum_block_totals(self.tables, self.pairing, self.blocks.block_bytes)

    def layout_at(self, event: int) -> Layout:
        """Return where everything lies after `event`; the latest answer is kept."""
        if self._layout is None or self._layout.event != event:
            self._layout = lay_out(self.lifetimes, self.ranges, self.blocks.block_bytes, self.snapshot.settings, event)
        return self._layout

    @cached_property
    def sites(self) -> Sites:
        """Sites of the snapshot's stacks."""
        return self._sites if self._sites is not None else Sites(self.snapshot.stacks)

    @cached_property
    def _material(self) -> Material:
        return Material(
            snapshot=self.snapshot,
            tables=self.tables,
            lifetimes=self.lifetimes,
            context=self.context,
            sites=self.sites,
            requested_bytes=self.totals.requested_bytes,
        )

    @cached_property
    def _stack_facts(self) -> StackFacts:
        return read_stacks(self.snapshot.stacks, self.sites)

    @cached_property
    def spans(self) -> Spans:
        """Backward passes and optimizer steps."""
        return find_spans(self._material, self._stack_facts)

    @cached_property
    def classification(self) -> Classification:
        """Category, fine label, evidence and confidence of every row of `lifetimes`."""
        return classify(self._material, self._stack_facts, self.spans, self.rules)

    @cached_property
    def steps(self) -> Steps:
        """Steps and phases of the run."""
        made = np.isin(self.classification.evidence, (Evidence.UPDATE_TEMPORARY, Evidence.UPDATE_STATE))
        return find_steps(self._material, self.spans, self.lifetimes.birth_event[made])

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Oddities of the snapshot and of this device's replay; does the block replay."""
        replayed = (*self.pairing.notices, *self._ranges_and_notices[1], *self.blocks.notices)
        return (*self.snapshot.notices, *replayed, *self._estimates)

    @cached_property
    def _estimates(self) -> list[Notice]:
        unsure = ~self.blocks.is_exact
        if not unsure.any():
            return []
        message = "blocks whose exact size the file can't prove: counted as the request rounded up"
        num_bytes = int(self.blocks.block_bytes[unsure].sum())
        return [Notice(code="block_size_estimated", message=message, count=int(unsure.sum()), bytes=num_bytes)]


def default_device(snapshot: Snapshot) -> int:
    """Choose the device with the most memory events, else the most reserved bytes, else the lowest.

    A device that ran out of memory comes before all others: it is why the file is looked at.
    """
    gpus = [tables for tables in snapshot.devices if tables.device != HOST_DEVICE] or list(snapshot.devices)
    return max(
        gpus,
        key=lambda tables: (
            bool(len(tables.events.oom_events)),
            len(tables.events),
            tables.reserved_bytes,
            -tables.device,
        ),
    ).device


def find_device(snapshot: Snapshot, device: int) -> DeviceTables:
    """Return the tables of a device.

    Raises:
        UsageError: there is no such device; says which there are.
    """
    for tables in snapshot.devices:
        if tables.device == device:
            return tables
    known = ", ".join(tables.label for tables in snapshot.devices) or "none"
    name = "pinned host memory" if device == HOST_DEVICE else f"device {device}"
    raise UsageError(f"no {name} in this snapshot (there are: {known})")

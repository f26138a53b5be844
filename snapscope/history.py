"""One device's history: every stage of the flow, computed when first asked for.

Values are pure functions of the snapshot; this class only remembers them, so that the
command line and the terminal UI share one set.
"""

from __future__ import annotations

from functools import cached_property

from snapscope.classify.decide import Classification, classify
from snapscope.classify.material import Material
from snapscope.errors import UsageError
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


class DeviceHistory:
    """Lifetimes, totals and block sizes of one device of a snapshot.

    Args:
        snapshot: the whole snapshot.
        device: ordinal or `HOST_DEVICE`; None = `default_device`.
        sites: the snapshot's sites, to share between devices.

    Raises:
        UsageError: the snapshot has no such device.
    """

    def __init__(self, snapshot: Snapshot, device: int | None = None, *, sites: Sites | None = None) -> None:
        self.snapshot = snapshot
        self.tables = find_device(snapshot, default_device(snapshot) if device is None else device)
        self._sites = sites

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
        return trace_ranges(self.tables)

    @property
    def ranges(self) -> RangeTable:
        """Reserved ranges over time."""
        return self._ranges_and_notices[0]

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

    @cached_property
    def sites(self) -> Sites:
        """Sites of the snapshot's stacks."""
        return self._sites if self._sites is not None else Sites(self.snapshot.stacks)

    @cached_property
    def classification(self) -> Classification:
        """Category, fine label, evidence and confidence of every row of `lifetimes`."""
        return classify(
            Material(
                snapshot=self.snapshot,
                tables=self.tables,
                lifetimes=self.lifetimes,
                context=self.context,
                sites=self.sites,
                requested_bytes=self.totals.requested_bytes,
            )
        )

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
    """Choose the device with the most memory events, else the most reserved bytes, else the lowest."""
    gpus = [tables for tables in snapshot.devices if tables.device != HOST_DEVICE] or list(snapshot.devices)
    return max(gpus, key=lambda tables: (len(tables.events), tables.reserved_bytes, -tables.device)).device


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

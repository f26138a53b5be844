"""Replay: from the final picture and the trace to the state at any event.

`pair_events` cuts the trace into allocations, `trace_ranges` finds what was reserved
when, `sum_totals` adds up; `size_blocks` is the sequential walk for exact block sizes,
done only when an answer needs it.
"""

from snapscope.replay.pairing import BEFORE, NEVER, REQUESTED_BEFORE, Pairing, pair_events
from snapscope.replay.ranges import JoinedRanges, RangeTable, trace_ranges
from snapscope.replay.totals import BlockTotals, Totals, sum_block_totals, sum_live_and_pending, sum_totals
from snapscope.replay.walk import BlockSizes, size_blocks

__all__ = [
    "BEFORE",
    "NEVER",
    "REQUESTED_BEFORE",
    "BlockSizes",
    "BlockTotals",
    "JoinedRanges",
    "Pairing",
    "RangeTable",
    "Totals",
    "pair_events",
    "size_blocks",
    "sum_block_totals",
    "sum_live_and_pending",
    "sum_totals",
    "trace_ranges",
]

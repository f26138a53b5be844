"""PyTorch's size rules: rounding of requests, sizes of segments, when a block is split.

Source: c10/cuda/CUDACachingAllocator.cpp (`round_size`, `get_allocation_size`,
`should_split`) and c10/core/AllocatorConfig.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from snapscope.model import AllocatorSettings

MIN_BLOCK_BYTES: Final = 512
"""kMinBlockSize."""

SMALL_REQUEST_BYTES: Final = 1 << 20
"""kSmallSize: rounded requests up to here live in 2 MiB segments."""

SMALL_SEGMENT_BYTES: Final = 2 << 20
"""kSmallBuffer, also the granule of small expandable segments."""

MIN_LARGE_BYTES: Final = 10 << 20
"""kMinLargeAlloc: requests below share a segment of `large_segment_size`."""

ROUND_LARGE_BYTES: Final = 2 << 20
"""kRoundLarge: larger segments are multiples of it."""

_MAX_INTERVAL: Final = 15


def round_request(num_bytes: int, settings: AllocatorSettings) -> int:
    """Round a request to a block size, as `round_size` does."""
    num_bytes += settings.request_padding_bytes
    if num_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    # 16 intervals from 1 MiB to 32 GiB; smaller and larger sizes use the outermost ones.
    interval = min(max(num_bytes.bit_length() - 1 - 20, 0), _MAX_INTERVAL)
    divisions = settings.roundup_power2_divisions[interval]
    if divisions > 1 and num_bytes > MIN_BLOCK_BYTES * divisions:
        power = 1 << (num_bytes.bit_length() - 1)
        if power == num_bytes:
            return num_bytes
        step = power // divisions
        return -(-num_bytes // step) * step if step else power * 2
    return -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def rounder(settings: AllocatorSettings) -> Callable[[int], int]:
    """Return the cheapest function that rounds under these settings."""
    if any(divisions > 1 for divisions in settings.roundup_power2_divisions):
        return lambda num_bytes: round_request(num_bytes, settings)
    padding = settings.request_padding_bytes + MIN_BLOCK_BYTES - 1
    return lambda num_bytes: ((num_bytes + padding) & ~511) or MIN_BLOCK_BYTES


def segment_bytes_for(rounded: int, settings: AllocatorSettings) -> int:
    """Return what the driver is asked for to serve a rounded request (`get_allocation_size`)."""
    if rounded <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_BYTES:
        return settings.large_segment_size_bytes
    return -(-rounded // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES

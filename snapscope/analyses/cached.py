"""Reserved but unused memory at one moment, split by why it is unused."""

from __future__ import annotations

from dataclasses import dataclass

from snapscope.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBytes:
    """The three disjoint parts of cached memory.

    Attributes:
        free_segments_bytes: what `empty_cache()` would return: segments without a block in
            use, and wholly free granules of expandable ones.
        holes_bytes: free ranges that live or pending blocks keep from being returned.
        private_pool_bytes: all inactive bytes of private pools, whatever their shape.
    """

    free_segments_bytes: int
    holes_bytes: int
    private_pool_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of the three."""
        return self.free_segments_bytes + self.holes_bytes + self.private_pool_bytes


def split_cached(layout: Layout) -> CachedBytes:
    """Split what is reserved and in no block."""
    segments = layout.segments
    is_private = segments.is_private
    free, returnable = segments.free_bytes, segments.returnable_bytes
    return CachedBytes(
        free_segments_bytes=int(returnable[~is_private].sum()),
        holes_bytes=int((free - returnable)[~is_private].sum()),
        private_pool_bytes=int(free[is_private].sum()),
    )

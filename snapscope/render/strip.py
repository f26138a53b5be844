"""A segment drawn as one line of letters: who lies where, and where the holes are."""

from __future__ import annotations

from typing import Final

import numpy as np

from snapscope.classify.material import CATEGORY_LABELS
from snapscope.layout import Layout, used_below
from snapscope.model import Int8Column

FREE: Final = "·"
"""Drawn where most bytes of a cell are free."""

PENDING: Final = "="
"""Drawn where most bytes of a cell wait for another stream."""

IDLE: Final = "x"
"""Drawn where most bytes of a cell are free, but only for a private pool."""

_LETTERS: Final = "".join(label[0].upper() for label in CATEGORY_LABELS)


def segment_strip(layout: Layout, segment: int, category: Int8Column, width: int) -> str:
    """Draw a segment in `width` letters: categories, `=` pending, `·` free, `x` idle in a private pool.

    Every letter stands for what takes most of its share of the bytes; a hole that is smaller than
    half a letter doesn't show.

    Args:
        layout: the moment.
        segment: row of its segments.
        category: of every row of the lifetime table.
        width: letters; at least 1.
    """
    blocks = layout.blocks
    own = layout.blocks_of(segment)
    total = int(layout.segments.size_bytes[segment])
    low, size = blocks.offset_bytes[own], blocks.size_bytes[own]
    kind = np.where(blocks.is_pending[own], len(_LETTERS), category[blocks.row[own]])
    # Bytes of each kind below every border between letters, and so within each letter.
    borders = np.linspace(0, total, width + 1).astype(np.int64)
    shares = np.zeros((len(_LETTERS) + 2, width), np.int64)
    for number in np.unique(kind).tolist():
        mine = kind == number
        shares[number] = np.diff(used_below(borders, low[mine], size[mine]))
    shares[-1] = np.diff(borders) - shares[:-1].sum(axis=0)
    signs = _LETTERS + PENDING + (IDLE if layout.segments.is_private[segment] else FREE)
    return "".join(signs[number] for number in shares.argmax(axis=0).tolist())

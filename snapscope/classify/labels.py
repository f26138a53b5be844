"""Labels that the program gave its allocations: the strongest evidence short of a user's rule.

Three places hold them: `category` of a trace that `torch.profiler` made, `user_metadata` of an
alloc (`torch.cuda.memory._set_memory_metadata`), and `annotate` events
(`torch.cuda.memory._annotate_tensor`, PyTorch 2.14). The latter two are free text, so only a text
that names a category outright counts: `optimizer_state`, or `category=gradient` among others.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import numpy as np

from snapscope.classify.draft import Draft
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category
from snapscope.lifetimes import BEFORE, NEVER, LifetimeTable
from snapscope.model import Action, EventTable, Int8Column, Int32Column, Int64Column

_NONE: Final = -1
_MAX_TEXT: Final = 1000
_NAMES: Final = {
    "parameter": Category.PARAMETER,
    "parameters": Category.PARAMETER,
    "gradient": Category.GRADIENT,
    "gradients": Category.GRADIENT,
    "optimizer_state": Category.OPTIMIZER_STATE,
    "optimizer_states": Category.OPTIMIZER_STATE,
    "activation": Category.ACTIVATION,
    "activations": Category.ACTIVATION,
    "temporary": Category.TEMPORARY,
    # torch/profiler/_memory_profiler.py: what autograd makes that is no gradient.
    "autograd_detail": Category.TEMPORARY,
}
_PAIR: Final = re.compile(r"(?:^|[\s;,{\"'])category[\"']?\s*[=:]\s*[\"']?([a-z]+(?:[_ ][a-z]+)?)", re.I)


def apply_labels(draft: Draft) -> None:
    """Let the program's own labels decide."""
    events, lifetimes = draft.material.tables.events, draft.material.lifetimes
    strings = draft.material.snapshot.stacks.strings
    found = np.full(len(lifetimes), _NONE, np.int8)
    for texts in (events.category, events.user_metadata):
        _of_events(found, texts, strings, lifetimes)
    is_annotation = (events.action == Action.ANNOTATE) & (events.user_metadata >= 0)
    of_text = _read(events.user_metadata[is_annotation], strings)
    if (of_text != _NONE).any():
        category_of = dict(zip(np.flatnonzero(is_annotation).tolist(), of_text.tolist(), strict=True))
        for event, row in annotated_rows(events, lifetimes):
            if category_of[event] != _NONE:
                found[row] = category_of[event]
    for category in Category:
        draft.put(found == category, category, Evidence.USER_LABEL)


def annotated_rows(events: EventTable, lifetimes: LifetimeTable) -> Iterator[tuple[int, int]]:
    """Yield (event, row of the lifetime) of every `annotate` event with a text, in order.

    The event has the address at which the tensor's storage begins.
    """
    annotations = np.flatnonzero((events.action == Action.ANNOTATE) & (events.user_metadata >= 0))
    if not len(annotations):
        return
    rows = np.flatnonzero(np.isin(lifetimes.addr, events.addr[annotations]))
    rows = rows[np.argsort(lifetimes.birth_event[rows], kind="stable")]
    by_addr: dict[int, tuple[list[int], list[int]]] = {}
    columns = (lifetimes.addr[rows], lifetimes.birth_event[rows], rows)
    for addr, birth, row in zip(*(column.tolist() for column in columns), strict=True):
        births, own = by_addr.setdefault(addr, ([], []))
        births.append(birth)
        own.append(row)
    for event, addr in zip(annotations.tolist(), events.addr[annotations].tolist(), strict=True):
        births, own = by_addr.get(addr, ([], []))
        place = bisect_right(births, event) - 1
        if place < 0:
            continue
        freed = int(lifetimes.free_requested_event[own[place]])
        if freed == NEVER or freed > event:
            yield event, own[place]


def _of_events(found: Int8Column, texts: Int32Column, strings: tuple[str, ...], lifetimes: LifetimeTable) -> None:
    """Label each lifetime by the text of its alloc; of what is older than the history, by that of its free."""
    if not (texts >= 0).any():
        return
    event = np.where(lifetimes.birth_event != BEFORE, lifetimes.birth_event, lifetimes.free_requested_event)
    known = event >= 0
    labels = _read(texts[event[known]], strings)
    found[known] = np.where(labels != _NONE, labels, found[known])


def _read(texts: Int32Column | Int64Column, strings: tuple[str, ...]) -> Int8Column:
    """Return the category that each text names; −1 none."""
    distinct, which = np.unique(texts, return_inverse=True)
    named = [_category_of(strings[number]) if number >= 0 else _NONE for number in distinct.tolist()]
    return np.array(named, np.int8)[which] if len(distinct) else np.zeros(0, np.int8)


def _category_of(text: str) -> int:
    match = _PAIR.search(text[:_MAX_TEXT])
    words = re.split(r"[_ ]+", (match[1] if match else text[:_MAX_TEXT].strip()).lower())
    # Of `category=gradient name=w` only the first word belongs to the name.
    names = ["_".join(words), words[0]] if match else ["_".join(words)]
    return next((int(_NAMES[name]) for name in names if name in _NAMES), _NONE)

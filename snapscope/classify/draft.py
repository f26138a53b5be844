"""A decision in the making: the columns that every pass reads, and the two that it writes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category, Material
from snapscope.classify.rules import Role
from snapscope.classify.spans import Spans
from snapscope.classify.stacks import StackFacts, StackPhase
from snapscope.model import EMPTY_STACK, BoolColumn, Int8Column, Int64Column
from snapscope.replay import BEFORE, NEVER, REQUESTED_BEFORE

DEFAULT_WORKSPACE_BYTES = 8_519_680
"""cuBLAS's default workspace, 2 × 4096 KiB + 8 × 16 KiB (`getChosenWorkspaceSize`)."""


@dataclass(slots=True)
class Draft:
    """Columns by lifetime.

    Attributes:
        material, facts, spans: what is known.
        category, evidence: what was decided so far.
        size, birth: requested bytes and birth event.
        death: free_requested event; the number of events while alive, −1 if asked before.
        is_alive, is_born: alive at the end; born within the history.
        stack, has_stack: allocation stack, and whether there is one with frames.
        phase: `StackPhase` at birth.
        on_engine: born on an autograd thread.
        roles, free_roles: bit sets of the allocation's and the free's frames.
        free_phase, free_python_phase: phase of the free; by its Python frames alone.
        free_is_users: freed under a frame of the user's code.
        python_phase: phase at birth by Python frames alone.
        own: number of the backward that began last before birth, −1 none.
        in_backward: born within backward `own`.
        next: number of the first backward after birth (the iteration it belongs to).
        next_start, next_end: its events; beyond the history where there is none.
    """

    material: Material
    facts: StackFacts
    spans: Spans
    size: Int64Column
    birth: Int64Column
    death: Int64Column
    is_alive: BoolColumn
    is_born: BoolColumn
    stack: Int64Column
    has_stack: BoolColumn
    phase: Int8Column
    on_engine: BoolColumn
    roles: Int64Column
    free_roles: Int64Column
    free_phase: Int8Column
    free_python_phase: Int8Column
    free_is_users: BoolColumn
    python_phase: Int8Column
    own: Int64Column
    in_backward: BoolColumn
    next: Int64Column
    next_start: Int64Column
    next_end: Int64Column
    category: Int8Column
    evidence: Int8Column
    num_events: int
    # Filled by the passes, in order.
    forward: BoolColumn = field(default_factory=lambda: np.zeros(0, bool))
    user: BoolColumn = field(default_factory=lambda: np.zeros(0, bool))
    freed_by_backward: BoolColumn = field(default_factory=lambda: np.zeros(0, bool))
    work: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))
    first_work: int = 0
    parameter_sizes: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))
    gradient_sizes: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))
    gradient_counts: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))
    is_update: BoolColumn = field(default_factory=lambda: np.zeros(0, bool))
    is_early: BoolColumn = field(default_factory=lambda: np.zeros(0, bool))
    forward_stack: BoolColumn = field(default_factory=lambda: np.zeros(0, bool))
    rank: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def num_backwards(self) -> int:
        """How many backward passes the history holds."""
        return len(self.spans.backward_start)

    def put(self, mask: BoolColumn, category: Category, evidence: Evidence) -> None:
        """Decide for the rows of a mask."""
        self.category[mask] = category
        self.evidence[mask] = evidence

    def has_role(self, role: Role) -> BoolColumn:
        """Return which rows were allocated under a frame of a role."""
        found: BoolColumn = (self.roles & (1 << int(role))) != 0
        return found

    def freed_under(self, role: Role) -> BoolColumn:
        """Return which rows were freed under a frame of a role."""
        found: BoolColumn = (self.free_roles & (1 << int(role))) != 0
        return found

    def of_stack(self, column: BoolColumn) -> BoolColumn:
        """Return a fact of each row's stack; False without one."""
        out: BoolColumn = np.zeros(len(self.stack), bool)
        out[self.has_stack] = column[self.stack[self.has_stack]]
        return out

    def of_free_stack(self, column: BoolColumn) -> BoolColumn:
        """Return a fact of each row's free stack; False without one."""
        stack = self.material.lifetimes.free_stack
        known = stack > EMPTY_STACK
        out: BoolColumn = np.zeros(len(stack), bool)
        out[known] = column[stack[known]]
        return out

    @property
    def workspace(self) -> BoolColumn:
        """Rows that are a library's workspace, by name or by cuBLAS's exact default size."""
        found: BoolColumn = self.has_role(Role.WORKSPACE) | (self.size == DEFAULT_WORKSPACE_BYTES)
        return found

    @property
    def has_model_size(self) -> BoolColumn:
        """Rows of a parameter's or a gradient's size."""
        sizes = np.union1d(self.parameter_sizes, self.gradient_sizes)
        return np.isin(self.size, sizes) & (self.size > 0)

    @property
    def model_bytes(self) -> int:
        """Bytes of the gradients that one backward makes; where none outlives its own, of what was built."""
        trained = int((self.gradient_sizes * self.gradient_counts).sum())
        return trained or int(self.size[self.is_built].sum())

    @property
    def is_built(self) -> BoolColumn:
        """Rows that modules made and kept, within the history or before it."""
        before: BoolColumn = ~self.is_born & self.has_stack & (self.phase == StackPhase.CONSTRUCT)
        built: BoolColumn = (self.evidence == Evidence.CONSTRUCTED) | before
        return built

    @property
    def kept_by_user(self) -> BoolColumn:
        """Rows that the user's code made before the work began, or before the history, and kept while it ran."""
        older = (self.user & (self.birth < self.first_work)) | (
            ~self.is_born & self.has_stack & (self.phase == StackPhase.USER)
        )
        kept: BoolColumn = older & (self.death > self.first_work) & (self.size > 0)
        return kept

    def by_age(self, rows: Int64Column) -> Int64Column:
        """Return rows in the order in which they were made; older than the history by address, a guess."""
        return rows[np.lexsort((self.material.lifetimes.addr[rows], self.birth[rows]))]

    @property
    def uses_optimizer(self) -> bool:
        """Whether an optimizer of PyTorch was seen, if only by its `zero_grad` or its annotation."""
        seen = self.facts.has(Role.OPTIMIZER_ZERO_GRAD) | (self.facts.phase == StackPhase.OPTIMIZER)
        return bool(seen.any()) or bool(len(self.spans.annotated_start))

    def count_of(self, sizes: Int64Column) -> Int64Column:
        """Return how many gradients of each size one backward makes."""
        if not len(self.gradient_sizes):
            return np.zeros(len(sizes), np.int64)
        at = np.minimum(np.searchsorted(self.gradient_sizes, sizes), len(self.gradient_sizes) - 1)
        return np.where(self.gradient_sizes[at] == sizes, self.gradient_counts[at], 0)


def pad(column: Int64Column, value: int) -> Int64Column:
    """Return a column with one more element, so that an index of −1 or len finds `value`."""
    return np.append(column, value)


def sizes_by_order(draft: Draft, rows: Int64Column) -> Int64Column:
    """Return, per row, how many earlier rows have its size."""
    order = np.lexsort((draft.birth[rows], draft.size[rows]))
    sizes = draft.size[rows][order]
    group = np.flatnonzero(np.diff(sizes, prepend=-1))
    ordinal = np.empty(len(rows), np.int64)
    ordinal[order] = np.arange(len(rows)) - np.repeat(group, np.diff(np.append(group, len(rows))))
    return ordinal


def begin(material: Material, facts: StackFacts, spans: Spans) -> Draft:
    """Set up the columns; everything is temporary by default."""
    table = material.lifetimes
    num, num_events = len(table), len(material.tables.events)
    asked, birth = table.free_requested_event, table.birth_event
    is_alive = asked == NEVER
    is_born = birth != BEFORE
    stack = table.alloc_stack.astype(np.int64)
    has_stack = stack > EMPTY_STACK
    free = table.free_stack.astype(np.int64)
    has_free = free > EMPTY_STACK
    has_phases = bool((spans.event_phase > 0).any())

    def by_stack(column: Int64Column | Int8Column | BoolColumn, rows: Int64Column, known: BoolColumn) -> Int64Column:
        out = np.zeros(num, np.int64)
        out[known] = column[rows[known]]
        return out

    phase = by_stack(facts.phase, stack, has_stack)
    on_engine = by_stack(facts.on_engine, stack, has_stack).astype(bool)
    free_phase = by_stack(facts.phase, free, has_free)
    starts, ends = spans.backward_start, spans.backward_end
    own = np.searchsorted(starts, birth, side="right") - 1
    in_backward = (own >= 0) & (birth <= pad(ends, -1)[own])
    following = np.searchsorted(starts, birth, side="right")
    if has_phases:
        nameless = (stack == EMPTY_STACK) & is_born
        phase[nameless] = StackPhase.BACKWARD
        on_engine[nameless] = True
        free_phase[(free == EMPTY_STACK) & (asked != NEVER)] = StackPhase.BACKWARD
    else:
        step = np.searchsorted(spans.optimizer_start, birth, side="right") - 1
        in_step = (step >= 0) & (birth <= pad(spans.optimizer_end, -1)[step])
        unknown = (phase == 0) & is_born
        phase[unknown] = StackPhase.USER
        phase[unknown & in_backward] = StackPhase.BACKWARD
        phase[unknown & in_step] = StackPhase.OPTIMIZER
    return Draft(
        material=material,
        facts=facts,
        spans=spans,
        size=table.requested_bytes,
        birth=birth,
        death=np.where(is_alive, num_events, np.where(asked == REQUESTED_BEFORE, -1, asked)),
        is_alive=is_alive,
        is_born=is_born,
        stack=stack,
        has_stack=has_stack,
        phase=phase.astype(np.int8),
        on_engine=on_engine,
        roles=by_stack(facts.roles, stack, has_stack),
        free_roles=by_stack(facts.roles, free, has_free),
        free_phase=free_phase.astype(np.int8),
        free_python_phase=by_stack(facts.python_phase, free, has_free).astype(np.int8),
        python_phase=by_stack(facts.python_phase, stack, has_stack).astype(np.int8),
        free_is_users=by_stack(facts.has_user, free, has_free).astype(bool),
        own=own,
        in_backward=in_backward,
        next=following,
        next_start=pad(starts, num_events + 1)[following],
        next_end=pad(ends, num_events + 1)[following],
        category=np.full(num, Category.TEMPORARY, np.int8),
        evidence=np.zeros(num, np.int8),
        num_events=num_events,
    )

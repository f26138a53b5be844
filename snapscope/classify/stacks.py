"""What each distinct stack says: its phase, its thread, its purposes. Hundreds, not millions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from snapscope.classify.rules import FrameRoles, Role
from snapscope.model import BoolColumn, Int8Column, Int64Column, StackTable
from snapscope.sites import FrameKind, Sites


class StackPhase(IntEnum):
    """What the program was doing where a stack was taken."""

    UNKNOWN = 0
    USER = 1
    CONSTRUCT = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    ZERO_GRAD = 6
    CLIP = 7


_PHASE_OF_ROLE: Final = {
    Role.MODULE_CALL: StackPhase.FORWARD,
    Role.BACKWARD: StackPhase.BACKWARD,
    Role.OPTIMIZER: StackPhase.OPTIMIZER,
    Role.OPTIMIZER_STATE: StackPhase.OPTIMIZER,
    Role.ZERO_GRAD: StackPhase.ZERO_GRAD,
    Role.OPTIMIZER_ZERO_GRAD: StackPhase.ZERO_GRAD,
    Role.CLIP: StackPhase.CLIP,
    Role.CONSTRUCT: StackPhase.CONSTRUCT,
    Role.CLOSURE: StackPhase.USER,
}
# Where the interpreter itself starts: a Python stack that begins elsewhere was entered from
# C++, on an autograd thread.
_ROOTS: Final = frozenset(
    "<module> _bootstrap _bootstrap_inner _run_module_as_main _run_code run _main_run_module main __main__".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """Columns by stack number.

    Attributes:
        phase: `StackPhase`.
        on_engine: taken on an autograd thread (or inside its engine).
        roles: bit set of `Role`s of all its frames.
        module_key: the stack below its outermost module call, interned: what stays the same
            where only the caller's line differs; −1 without a module call.
        has_python: whether any Python frame is in it.
        has_user: whether any frame of the user's code is in it.
        python_phase: the phase by its Python frames alone, whatever the thread.
        python_key: its Python frames, interned: equal for all operators of one line.
        has_cpp: whether any stack has frames of C++.
    """

    phase: Int8Column
    python_phase: Int8Column
    has_user: BoolColumn
    on_engine: BoolColumn
    roles: Int64Column
    module_key: Int64Column
    has_python: BoolColumn
    python_key: Int64Column
    has_cpp: bool

    def has(self, role: Role) -> BoolColumn:
        """Return which stacks have a frame of this role."""
        found: BoolColumn = (self.roles & (1 << int(role))) != 0
        return found


def read_stacks(stacks: StackTable, sites: Sites) -> StackFacts:
    """Work out the facts of every stack of a snapshot."""
    table = FrameRoles()
    roles: list[Role] = []
    kinds: list[FrameKind] = []
    for frame in range(stacks.num_frames):
        kind = sites.kind_of(frame)
        kinds.append(kind)
        function = stacks.function_of(frame)
        is_cpp = kind >= FrameKind.CPP
        roles.append(table.of_cpp(function) if is_cpp else table.of_python(sites.file_of(frame), function))
    num = stacks.num_stacks
    phase = np.zeros(num, np.int8)
    on_engine = np.zeros(num, bool)
    bits = np.zeros(num, np.int64)
    module_key = np.full(num, -1, np.int64)
    has_python = np.zeros(num, bool)
    has_user = np.zeros(num, bool)
    python_phase = np.zeros(num, np.int8)
    keys: dict[tuple[int, ...], int] = {}
    python_key = np.zeros(num, np.int64)
    python_keys: dict[tuple[int, ...], int] = {}
    names = [(stacks.frame_function[f], stacks.frame_file[f]) for f in range(stacks.num_frames)]
    # Where no stack begins at a known place (stacks made by hand, an embedded interpreter), an
    # unknown one says nothing.
    knows_roots = any(_outermost(stacks, stack, kinds) in _ROOTS for stack in range(num))
    for stack in range(num):
        frames = stacks.frames_of(stack).tolist()
        python = [frame for frame in frames if kinds[frame] < FrameKind.CPP]
        python_key[stack] = python_keys.setdefault(tuple(python), len(python_keys))
        found = 0
        for frame in frames:
            found |= 1 << int(roles[frame])
        own = [_role_in_place(stacks, python, place, roles, kinds) for place in range(len(python))]
        for role in own:
            found |= 1 << int(role)
        engine = bool(found & (1 << int(Role.ENGINE)))
        has_python[stack] = bool(python)
        if knows_roots and python and stacks.function_of(python[-1]) not in _ROOTS:
            engine = True
        structural = next((role for role in own if role in _PHASE_OF_ROLE), None)
        if structural is not None:
            phase[stack] = _PHASE_OF_ROLE[structural]
        elif python:
            phase[stack] = StackPhase.USER
        python_phase[stack] = phase[stack]
        has_user[stack] = any(kinds[frame] is FrameKind.USER for frame in python)
        if engine and phase[stack] in (StackPhase.USER, StackPhase.FORWARD, StackPhase.UNKNOWN, StackPhase.CONSTRUCT):
            phase[stack] = StackPhase.BACKWARD
        if found & (1 << int(Role.RECOMPUTE)) and engine and phase[stack] in (StackPhase.USER, StackPhase.FORWARD):
            phase[stack] = StackPhase.BACKWARD
        if engine and Role.BACKWARD in (roles[frame] for frame in python):
            found |= 1 << int(Role.NESTED_BACKWARD)
        on_engine[stack] = engine
        bits[stack] = found
        calls = [place for place, role in enumerate(own) if role is Role.MODULE_CALL]
        if calls:
            key = tuple(int(x) for frame in python[: calls[-1] + 1] for x in names[frame]) + tuple(
                stacks.line_of(frame) for frame in python[: calls[-1]]
            )
            module_key[stack] = keys.setdefault(key, len(keys))
    return StackFacts(
        phase=phase,
        python_phase=python_phase,
        has_user=has_user,
        on_engine=on_engine,
        roles=bits,
        module_key=module_key,
        has_python=has_python,
        python_key=python_key,
        has_cpp=any(kind >= FrameKind.CPP for kind in kinds),
    )


def _outermost(stacks: StackTable, stack: int, kinds: list[FrameKind]) -> str:
    """Return the function of a stack's outermost Python frame."""
    frames = reversed(stacks.frames_of(stack).tolist())
    return next((stacks.function_of(frame) for frame in frames if kinds[frame] < FrameKind.CPP), "")


def _role_in_place(
    stacks: StackTable, python: list[int], place: int, roles: list[Role], kinds: list[FrameKind]
) -> Role:
    """Return a frame's role, where its neighbours decide it."""
    role = roles[python[place]]
    if role is Role.AUTOGRAD_APPLY:
        # `Function.apply` (forward) and `BackwardCFunction.apply` (backward) share a name.
        inner = stacks.function_of(python[place - 1]) if place else ""
        is_root = place == len(python) - 1
        return Role.BACKWARD if inner in ("backward", "vjp", "wrapper") or is_root else Role.NONE
    if role is Role.NONE and kinds[python[place]] is FrameKind.USER:
        # What an optimizer's own `step` calls in the user's file is the closure that it was given.
        caller = next((frame for frame in python[place + 1 :] if roles[frame] is not Role.NO_GRAD), None)
        if caller is not None and roles[caller] is Role.OPTIMIZER and stacks.function_of(caller) == "step":
            return Role.CLOSURE
    return role

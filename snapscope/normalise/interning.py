"""Interning of strings, frames, stacks and pools while a snapshot is normalised.

PyTorch makes one frame *list* per captured traceback but shares the frame *dicts*
between lists, so a stack is recognised by the identities of its frames. Most events of a
training loop are followed by the same event as last time, so the stack of an event is
first guessed from the stack before it and only checked (a list comparison whose elements
are identical objects runs at C speed); 95 % of the guesses hold in real traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from snapscope.model import Int32Column, StackTable

_FX_KEYS = ("fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace")
_FRAME_KEYS = frozenset(("name", "filename", "line", *_FX_KEYS))
_MAX_LINE = (1 << 63) - 1

# Longer stacks are remembered by the identity of their list instead of being compared, so
# that a file can't make two huge lists cost their length at every event.
_LONGEST_COMPARED = 512
# No name of a function (C++ templates are the longest) or file is longer; what is, is cut.
_MAX_NAME = 4096
# Longer values aren't compared at every event either.
_LONGEST_COMPARED_TEXT = 1000
_MOST_COMPARED_KEYS = 16

# Equals no `frames` of any event, unlike None, which events without a context have.
_NO_SAMPLE = object()

# Numbers inside the interner are one higher than in the table, so that the guess for
# "no stack" (-1 in the table) has a place of its own in the lists.
_SHIFT = 1


class Interner(dict[Any, int]):
    """A mapping that numbers each new key in order of appearance."""

    def __missing__(self, key: Any) -> int:
        number = len(self)
        self[key] = number
        return number

    def has_only_text(self) -> bool:
        """Tell whether all keys are strings."""
        return all(type(key) is str for key in self)

    def forget_other_types(self) -> None:
        """Replace keys that aren't strings by placeholders, so that all numbers stay."""
        kept: dict[Any, int] = {}
        for key, number in self.items():
            name = key
            if type(key) is not str:
                name = f"<{number}>"
                while name in self or name in kept:
                    name += "_"
            kept[name] = number
        self.clear()
        self.update(kept)


def text_of(value: Any) -> str:
    """Return a string for any value of the file, without ever walking into containers.

    `str()` of a nested container that shares its parts could take exponential time.
    """
    if type(value) is str:
        return value
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return str(value)[:40]
    return f"<{type(value).__name__}>"


class StackInterner:
    """Gives every distinct stack a number, and every distinct frame and string too.

    Args:
        by_identity: whether the file shares frame dicts (pickle does, JSON doesn't).
            The raw snapshot must outlive the interner, since identities are keys.
    """

    def __init__(self, *, by_identity: bool) -> None:
        self.strings = Interner({"": 0})
        self.num_bad_frames = 0
        self.by_identity = by_identity
        self._frames = Interner()
        self._unknown_keys: set[tuple[int, str]] = set()
        self._frame_extras: dict[int, Mapping[str, str]] = {}
        self._frame_by_id: dict[int, int] = {}
        self._stack_by_ids: dict[tuple[int, ...], int] = {}
        self._long_stack_by_id: dict[int, int] = {}
        self._stack_by_value: dict[tuple[int, ...], int] = {(): 1}
        self._stacks: list[tuple[int, ...]] = [()]
        # Per shifted stack number: a list known to be that stack, and the number that
        # came after it last time.
        self._samples: list[Any] = [None, []]
        self._successor: list[int] = [0, 0]

    @property
    def num_unknown_frame_keys(self) -> int:
        """Keys that nobody knows, of all distinct frames."""
        return len(self._unknown_keys)

    def column(self, frame_lists: Iterable[Any], num_rows: int) -> Int32Column:
        """Number the stacks of a whole trace.

        Args:
            frame_lists: one `frames` value per event, None where the key is absent.
            num_rows: how many there are.
        """
        return np.fromiter(self._numbers(frame_lists), dtype=np.int32, count=num_rows)

    def _numbers(self, frame_lists: Iterable[Any]) -> Iterable[int]:
        samples, successor = self._samples, self._successor
        last_list: Any = None
        last = 0
        for frames in frame_lists:
            if frames is not last_list:
                guess = successor[last]
                # Samples are flat dicts of scalars, so this comparison can't run away
                # whatever the file holds.
                if samples[guess] != frames:
                    guess = self._number(frames)
                    successor[last] = guess
                last = guess
                last_list = frames
            yield last - _SHIFT

    def number(self, frames: Any) -> int:
        """Return the number of one stack (`NO_STACK` for None)."""
        return self._number(frames) - _SHIFT

    def _number(self, frames: Any) -> int:
        if frames is None:
            return 0
        if not isinstance(frames, (list, tuple)):
            self.num_bad_frames += 1
            return 1
        if not frames:
            return 1
        is_long = len(frames) > _LONGEST_COMPARED
        if is_long and id(frames) in self._long_stack_by_id:
            return self._long_stack_by_id[id(frames)]
        ids: tuple[int, ...] = ()
        if self.by_identity:
            ids = tuple(map(id, frames))
            known = self._stack_by_ids.get(ids)
            if known is not None:
                if is_long:
                    self._long_stack_by_id[id(frames)] = known
                return known
        numbers = tuple(self._frame(frame) for frame in frames)
        stack = self._stack_by_value.get(numbers)
        if stack is None:
            stack = len(self._stacks) + _SHIFT
            self._stack_by_value[numbers] = stack
            self._stacks.append(numbers)
            self._samples.append(frames if not is_long and self._is_flat(frames) else _NO_SAMPLE)
            self._successor.append(stack)
        if self.by_identity:
            self._stack_by_ids[ids] = stack
        if is_long:
            self._long_stack_by_id[id(frames)] = stack
        return stack

    @staticmethod
    def _is_flat(frames: Any) -> bool:
        return type(frames) is list and all(
            type(frame) is dict
            and len(frame) <= _MOST_COMPARED_KEYS
            and all(
                value is None or type(value) is int or (type(value) is str and len(value) <= _LONGEST_COMPARED_TEXT)
                for value in frame.values()
            )
            for frame in frames
        )

    def _frame(self, frame: Any) -> int:
        if self.by_identity:
            known = self._frame_by_id.get(id(frame))
            if known is not None:
                return known
        if type(frame) is not dict:
            self.num_bad_frames += 1
            key = (0, self.strings["<not a frame>"], 0)
            return self._frames[key]
        line = frame.get("line", 0)
        if type(line) is not int or not -_MAX_LINE <= line <= _MAX_LINE:
            line = 0
        name, filename = text_of(frame.get("name"))[:_MAX_NAME], text_of(frame.get("filename"))[:_MAX_NAME]
        key = (self.strings[name], self.strings[filename], line)
        number = self._frames[key]
        if len(frame) > 3:
            self._note_extras(number, frame)
        if self.by_identity:
            self._frame_by_id[id(frame)] = number
        return number

    def _note_extras(self, number: int, frame: Mapping[Any, Any]) -> None:
        extras = {key: text_of(frame[key])[:_MAX_NAME] for key in _FX_KEYS if frame.get(key) is not None}
        if extras:
            self._frame_extras.setdefault(number, extras)
        self._unknown_keys.update((number, text_of(key)[:60]) for key in frame if key not in _FRAME_KEYS)

    def table(self) -> StackTable:
        """Return all that was interned as a table."""
        frames = np.fromiter(
            (part for key in self._frames for part in key), dtype=np.int64, count=3 * len(self._frames)
        ).reshape(-1, 3)
        lengths = np.fromiter(map(len, self._stacks), dtype=np.int64, count=len(self._stacks))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return StackTable(
            strings=tuple(self.strings),
            frame_function=frames[:, 0].astype(np.int32),
            frame_file=frames[:, 1].astype(np.int32),
            frame_line=np.ascontiguousarray(frames[:, 2]),
            stack_offsets=offsets,
            stack_frames=np.fromiter(
                (number for stack in self._stacks for number in stack), dtype=np.int32, count=int(offsets[-1])
            ),
            frame_extras=self._frame_extras,
        )

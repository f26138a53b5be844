"""Find the files of a job's ranks: in a folder, one folder below it, or as given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from snapscope.analyses.rank_names import RankSet, choose_set, natural_key
from snapscope.errors import InputError, NotASnapshotError, UsageError
from snapscope.load import Encoding, detect_file
from snapscope.model import Notice
from snapscope.units import count_of

_MAX_NAMED: Final = 3
_PACKED: Final = 10
"""A compressed snapshot unpacks to about ten times its size, or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInput:
    """One file to read.

    Attributes:
        path: as it was given or found.
        size_bytes: about what it comes to unpacked; 0 unknown.
    """

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInputs:
    """What to read, and what was left.

    Attributes:
        name: what reports call the whole.
        files: at least one.
        unread: (name, why) of files in a folder that can't be read.
        notices: sets and files that were left.
    """

    name: str
    files: tuple[RankInput, ...]
    unread: tuple[tuple[str, str], ...]
    notices: tuple[Notice, ...]


def find_inputs(arguments: Sequence[str]) -> RankInputs:
    """Find the files to compare.

    Raises:
        UsageError: standard input is one of several files.
        InputError: a folder can't be read, or holds no snapshot.
    """
    if "-" in arguments and len(arguments) > 1:
        raise UsageError("- can't be one of several files: name files, or the folder that holds them")
    files: list[RankInput] = []
    unread: list[tuple[str, str]] = []
    notices: list[Notice] = []
    for argument in arguments:
        if os.path.isdir(argument):
            found, damaged, said = _search(argument)
            files += found
            unread += damaged
            notices += said
        else:
            files.append(RankInput(path=argument, size_bytes=_given_size(argument)))
    # A file that a folder given as well holds is one file.
    distinct = {file.path if file.path == "-" else os.path.realpath(file.path): file for file in reversed(files)}
    return RankInputs(
        name=arguments[0] if len(arguments) == 1 else _common_folder(arguments),
        files=tuple(reversed(distinct.values())),
        unread=tuple(unread),
        notices=tuple(notices),
    )


def _common_folder(arguments: Sequence[str]) -> str:
    folders = [argument if os.path.isdir(argument) else os.path.dirname(argument) for argument in arguments]
    try:
        return os.path.commonpath(folders) or "."
    except ValueError:
        return folders[0] or "."


def _given_size(path: str) -> int:
    # A pipe can't be read twice.
    if not os.path.isfile(path):
        return 0
    try:
        return os.path.getsize(path) * (_PACKED if detect_file(path)[1] else 1)
    except (InputError, OSError):
        # Whoever reads it says what is wrong with it.
        return 0


def _search(folder: str) -> tuple[list[RankInput], list[tuple[str, str]], list[Notice]]:
    pickles: dict[str, int] = {}
    texts: dict[str, int] = {}
    strangers: list[str] = []
    damaged: list[tuple[str, str]] = []
    for path in _paths_below(folder):
        try:
            encoding, is_packed = detect_file(os.path.join(folder, path))
            kind = pickles if encoding is Encoding.PICKLE else texts
            kind[path] = os.path.getsize(os.path.join(folder, path)) * (_PACKED if is_packed else 1)
        except NotASnapshotError:
            strangers.append(path)
        except (InputError, OSError) as error:
            damaged.append((path, str(error)))
    # JSON beside pickles is something else: traces of the profiler, metrics.
    sizes = pickles or texts
    if not sizes:
        why = f": {damaged[0][0]}: {damaged[0][1]}" if damaged else ""
        raise InputError(f"{folder}: no snapshot in this folder, nor one folder below{why}")
    chosen = choose_set(list(sizes))
    places = {PurePath(path).parent for path in chosen.paths}
    if pickles:
        strangers += texts
    notices = [
        *_set_notices(folder, chosen),
        *_stranger_notices([path for path in strangers if PurePath(path).parent in places]),
    ]
    found = [RankInput(path=os.path.join(folder, path), size_bytes=sizes[path]) for path in chosen.paths]
    return found, [(path, why) for path, why in damaged if PurePath(path).parent in places], notices


def _paths_below(folder: str) -> list[str]:
    """Return the files of a folder and of the folders in it, as people sort them; hidden ones are left."""
    found: list[str] = []
    for name, is_folder in _entries(folder):
        if not is_folder:
            found.append(name)
            continue
        try:
            found += [
                os.path.join(name, inner) for inner, is_deeper in _entries(os.path.join(folder, name)) if not is_deeper
            ]
        except InputError:
            # One folder that may not be read hides no other.
            continue
    return sorted(found, key=natural_key)


def _entries(folder: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return [
                (entry.name, entry.is_dir())
                for entry in entries
                if not entry.name.startswith(".") and (entry.is_dir() or entry.is_file())
            ]
    except OSError as error:
        raise InputError(f"{folder}: can't be opened: {(error.strerror or str(error)).lower()}") from None


def _set_notices(folder: str, chosen: RankSet) -> list[Notice]:
    if not chosen.others:
        return []
    message = f"{folder} holds several sets: read {chosen.name}, not {_named(list(chosen.others))}"
    return [Notice(code="several_sets", message=message, count=1)]


def _stranger_notices(paths: Sequence[str]) -> list[Notice]:
    if not paths:
        return []
    message = f"{count_of(len(paths), 'other file')} in the folder left alone: {_named(paths)}"
    return [Notice(code="other_files", message=message, count=1)]


def unread_notices(failures: Sequence[tuple[str, str]]) -> list[Notice]:
    """Say which files couldn't be read, and why, in one notice."""
    if not failures:
        return []
    named = _named([f"{path} ({why})" for path, why in failures])
    message = f"{count_of(len(failures), 'file')} couldn't be read: {named}"
    return [Notice(code="unreadable_files", message=message, count=1)]


def _named(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MAX_NAMED
    return ", ".join(known) if more <= 1 else f"{', '.join(known[:_MAX_NAMED])} and {more} more"

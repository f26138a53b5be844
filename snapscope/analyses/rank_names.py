"""Which rank a file is of, by its name, and which of several sets of rank files is the last.

Nothing but names is looked at; where they don't tell, the device that a file's memory is on does.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, TypeAlias

RankId: TypeAlias = int | str
"""A rank's number; text where there is none, or where two files have the same."""

_RANK: Final = re.compile(r"(?:([a-z]+)[_\-.]?)?rank[_=\-.:# ]{0,2}(\d{1,6})(?!\d)", re.IGNORECASE)
_COORDINATE: Final = re.compile(
    r"(?<![a-z])(dp|tp|pp|ep|etp|cp|sp|mp|stage|node|host|local)(?:[_\-]?rank)?[_=\-]?(\d{1,6})(?!\d)", re.IGNORECASE
)
# Ranks within a part of the job only.
_PARTIAL: Final = frozenset(("local", "node", "group", "dp", "tp", "pp", "ep", "etp", "cp", "sp", "mp", "parallel"))
# These mean a rank only where every file has one, and each another.
_WEAK: Final = (
    re.compile(r"(?<![a-z\d])r(\d{1,5})(?![a-z\d])", re.IGNORECASE),
    re.compile(r"(?<![a-z])(?:gpu|cuda|device|dev|worker|proc|process)[_=\-:]?(\d{1,5})(?!\d)", re.IGNORECASE),
)
_PLACE: Final = re.compile(r"(?<![a-z])(?:node|host|rank|worker|gpu|proc)[_=\-]?\w*\d", re.IGNORECASE)
_PROGRESS: Final = re.compile(r"iter|step|epoch|ckpt|checkpoint|batch|attempt|exit|\d{4}-\d\d", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+")
_SUFFIX: Final = re.compile(r"(?:\.(?:pickle|pkl|p|json|html?|gz|zst|zstd|bz2|xz|snapshot|pt|bin))+$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    """The files of one set: those that were written together.

    Attributes:
        name: what tells it from the others; empty if it is the only one.
        paths: its files.
        others: names of the sets that were left.
    """

    name: str
    paths: tuple[str, ...]
    others: tuple[str, ...]


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts names as people do: `iteration_9` before `iteration_10`."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def sort_key(rank: RankId) -> tuple[bool, int, tuple[tuple[int, int, str], ...]]:
    """Return what sorts ranks: numbers first."""
    return (False, rank, ()) if isinstance(rank, int) else (True, 0, natural_key(rank))


def number_of(path: str) -> int | None:
    """Return the rank that a file's name, or else its folder's, says; None if neither says one.

    `rank0_memory_snapshot.pickle`, `snap_rank3.pickle.gz`, `rank-7.pkl`, `global_rank=12`. A local rank, or
    one along a dimension such as `tp_rank0`, isn't the rank.
    """
    pure = PurePath(path)
    for text in (_stem(pure.name), pure.parent.name):
        found = {(match[1] or "").lower(): int(match[2]) for match in reversed(list(_RANK.finditer(text)))}
        whole = {prefix: number for prefix, number in found.items() if prefix not in _PARTIAL}
        if whole:
            return whole["global"] if "global" in whole else next(reversed(whole.values()))
    return None


def name_ranks(paths: Sequence[str], devices: Sequence[int]) -> list[RankId]:
    """Name the rank of every file; no two have the same.

    Args:
        paths: the files of one set.
        devices: the device that each one's memory is on, which is the rank where no name tells.
    """
    ranks: list[RankId | None] = [number_of(path) for path in paths]
    unnamed = [place for place, rank in enumerate(ranks) if rank is None]
    if unnamed:
        rest = [paths[place] for place in unnamed]
        names = _from_rest(rest, [devices[place] for place in unnamed])
        if set(names) & set(ranks):
            names = list(_plain_names(rest))
        for place, name in zip(unnamed, names, strict=True):
            ranks[place] = name
    return _tell_apart([rank if rank is not None else "?" for rank in ranks], paths)


def _from_rest(paths: Sequence[str], devices: Sequence[int]) -> list[RankId]:
    """Name ranks whose names don't say `rank`: by other words, else by device, else by number or name."""
    stems = [_stem(PurePath(path).name) for path in paths]
    if len(paths) > 1:
        coordinates = [_coordinates(path) for path in paths]
        if all(coordinates) and _are_distinct(coordinates):
            return coordinates
        for pattern in _WEAK:
            matches = [pattern.search(stem) for stem in stems]
            numbers = [int(match[1]) for match in matches if match is not None]
            if len(numbers) == len(paths) and _are_distinct(numbers):
                return list(numbers)
    if _are_distinct(devices) and min(devices) >= 0:
        return list(devices)
    running = _running_numbers(paths)
    if running is not None:
        return list(running)
    return list(_plain_names(paths))


def _plain_names(paths: Sequence[str]) -> list[str]:
    """Return what tells paths apart: their names without suffixes, else their folders', else both."""
    stems = [_stem(PurePath(path).name) for path in paths]
    folders = [PurePath(path).parent.name for path in paths]
    if _are_distinct(stems):
        return stems
    return folders if _are_distinct(folders) and all(folders) else [_relative(path) for path in paths]


def _coordinates(path: str) -> RankId:
    pure = PurePath(path)
    found = {match[1].lower(): match[2] for match in _COORDINATE.finditer(f"{pure.parent.name}/{_stem(pure.name)}")}
    if list(found) == ["local"]:
        return int(found["local"])
    return "_".join(f"{name}{int(number)}" for name, number in found.items())


def _running_numbers(paths: Sequence[str]) -> list[int] | None:
    """Return 0, 1, 2, … if this is the one number in which all names differ; None else."""
    relative = [_relative(path) for path in paths]
    if len({_NUMBER.sub("#", name) for name in relative}) != 1:
        return None
    columns = list(zip(*(map(int, _NUMBER.findall(name)) for name in relative), strict=True))
    differing = [column for column in columns if len(set(column)) > 1]
    if len(differing) != 1 or sorted(differing[0]) != list(range(len(paths))):
        return None
    return list(differing[0])


def _tell_apart(ranks: list[RankId], paths: Sequence[str]) -> list[RankId]:
    """Name files that have the same rank by their folders too, or else by their names."""
    counts = Counter(ranks)
    for rank in [rank for rank, count in counts.items() if count > 1]:
        places = [place for place, other in enumerate(ranks) if other == rank]
        folders = [PurePath(paths[place]).parent.name for place in places]
        names = [PurePath(paths[place]).name for place in places]
        for number, place in enumerate(places):
            if _are_distinct(folders) and all(folders):
                ranks[place] = f"{folders[number]}/{rank}"
            elif _are_distinct(names):
                ranks[place] = f"{rank} ({names[number]})"
            else:
                ranks[place] = f"{rank} ({paths[place]})"
    if _are_distinct(ranks):
        return ranks
    return [f"{rank} #{place}" if ranks.count(rank) > 1 else rank for place, rank in enumerate(ranks)]


def choose_set(paths: Sequence[str]) -> RankSet:
    """Choose the last set of the rank files below a folder.

    Files in the folder itself come before those in folders below it. Of folders that are iterations
    the last is taken that half the ranks or more have written, in the order of people; folders of
    nodes or ranks are one set together, and so are those whose ranks complete each other. Of several
    files of one rank the last is taken.

    Args:
        paths: relative to the folder, at most one folder deep.
    """
    folders: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths, key=natural_key):
        parent = PurePath(path).parent.as_posix()
        folders["" if parent == "." else parent].append(path)
    names = sorted(folders, key=natural_key)
    if "" in folders and len(folders) > 1:
        return _last_of_each(folders[""], name="the folder itself", others=[name for name in names if name])
    if len(names) <= 1 or _is_one_set(folders):
        return _last_of_each([path for name in names for path in folders[name]])
    name = _last_whole(names, folders)
    return _last_of_each(folders[name], name=name, others=[other for other in names if other != name])


def _last_whole(names: Sequence[str], sets: dict[str, list[str]]) -> str:
    """Return the last set, but of one that most ranks didn't write the one before."""
    most = max(len(paths) for paths in sets.values())
    return next(name for name in reversed(names) if 2 * len(sets[name]) >= most)


def _is_one_set(folders: dict[str, list[str]]) -> bool:
    if all(_PLACE.search(name) for name in folders):
        return True
    if all(len(paths) == 1 for paths in folders.values()) and not any(map(_PROGRESS.search, folders)):
        return True
    ranks = [number_of(path) for paths in folders.values() for path in paths]
    return None not in ranks and _are_distinct(ranks)


def _last_of_each(paths: Sequence[str], *, name: str = "", others: Iterable[str] = ()) -> RankSet:
    """Leave one file for each rank, of the last set of names that differ by the rank only."""
    known = [(path, number_of(path)) for path in paths]
    ranks = [(PurePath(path).parent, rank) for path, rank in known if rank is not None]
    if _are_distinct(ranks):
        return RankSet(name=name, paths=tuple(paths), others=tuple(others))
    sets: dict[str, list[str]] = defaultdict(list)
    for path, rank in known:
        sets[_without_rank(path) if rank is not None else path].append(path)
    several = [key for key, members in sets.items() if len(members) > 1]
    if several:
        keys = sorted(several, key=natural_key)
        key = _last_whole(keys, sets)
        return RankSet(name=key, paths=tuple(sets[key]), others=(*others, *(other for other in sets if other != key)))
    last: dict[Hashable, str] = {}
    for path, rank in known:
        last[(PurePath(path).parent, rank) if rank is not None else path] = path
    return RankSet(name="the last file of each rank", paths=tuple(last.values()), others=(*others, "earlier files"))


def _without_rank(path: str) -> str:
    return _RANK.sub(lambda match: match[0][: -len(match[2])] + "*", path)


def _stem(name: str) -> str:
    return _SUFFIX.sub("", name)


def _relative(path: str) -> str:
    pure = PurePath(path)
    return f"{pure.parent.name}/{_stem(pure.name)}"


def _are_distinct(values: Sequence[Hashable]) -> bool:
    return len(set(values)) == len(values)

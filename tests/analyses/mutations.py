"""Change a raw snapshot as another checkout, another machine or a clean-up of the program would."""

from __future__ import annotations

import gzip
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.builders import Raw, frame
from tests.conftest import fixture_path

Mutation = Callable[[Raw, random.Random], None]
_ADDRESSES: Final = ("addr", "address")


def raw_fixture(name: str) -> Raw:
    """Return a fixture as `pickle.load` gives it: frames are shared, as PyTorch shares them."""
    path = fixture_path(name)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    value = pickle.loads(content)
    assert isinstance(value, dict)
    return value


def holders_of(value: Raw) -> Iterator[Raw]:
    """Yield everything that has an address: segments, blocks, events."""
    for segment in value["segments"]:
        yield segment
        yield from segment["blocks"]
    for trace in value["device_traces"]:
        yield from trace


def stacks_of(value: Raw) -> Iterator[tuple[Raw, str]]:
    for holder in holders_of(value):
        for key in ("frames", "free_frames"):
            if holder.get(key):
                yield holder, key
        for past in holder.get("history", ()):
            if past.get("frames"):
                yield past, "frames"


def frames_of(value: Raw) -> list[Raw]:
    """Return every frame once."""
    return list({id(made): made for holder, key in stacks_of(value) for made in holder[key]}.values())


def is_user(made: Raw) -> bool:
    path = made["filename"]
    return path.endswith(".py") and "site-packages" not in path and "/lib/python" not in path


def shift_lines(value: Raw, rng: random.Random) -> None:
    """Insert lines at the top of every file."""
    shifts: dict[str, int] = {}
    for made in frames_of(value):
        if made["line"]:
            made["line"] += shifts.setdefault(made["filename"], rng.randrange(1, 500))


def change_prefixes(value: Raw, rng: random.Random) -> None:
    """Check the project out elsewhere, in another virtual environment."""
    home = rng.choice(["/home/me/work", "C:\\Users\\me\\code", "/mnt/data/runs/17"])
    for made in frames_of(value):
        path = made["filename"]
        if "/site-packages/" in path:
            made["filename"] = "/usr/local/lib/python3.12/dist-packages/" + path.partition("/site-packages/")[2]
        elif is_user(made) and path.startswith("/"):
            rest = path.removeprefix("/project/").lstrip("/")
            made["filename"] = f"{home}\\{rest}" if "\\" in home else f"{home}/{rest}"


def rebase_addresses(value: Raw, rng: random.Random) -> None:
    """Let the driver hand out other addresses."""
    offset = rng.randrange(1, 1 << 20) << 21
    for holder in holders_of(value):
        for key in _ADDRESSES:
            if holder.get(key):
                holder[key] += offset


def shuffle_keys(value: Raw, rng: random.Random) -> None:
    """Write the keys of every dict in another order."""
    for holder in [value, *holders_of(value), *frames_of(value)]:
        items = list(holder.items())
        rng.shuffle(items)
        holder.clear()
        holder.update(items)


def _user_names(value: Raw, key: str) -> list[str]:
    """Return functions or files of the user's code that aren't what allocates, most frequent first."""
    inner = {id(next((f for f in holder[name] if is_user(f)), None)) for holder, name in stacks_of(value)}
    inner_names = {made[key] for made in frames_of(value) if id(made) in inner}
    names = [made[key] for made in frames_of(value) if is_user(made)]
    wanted = [name for name in names if key == "filename" or name not in inner_names | {"<module>"}]
    return sorted(set(wanted), key=lambda name: (-wanted.count(name), name))


def rename_outer_function(value: Raw, rng: random.Random) -> None:
    """Give a function another name, one that calls what allocates."""
    names = _user_names(value, "name")
    if names:
        old = rng.choice(names)
        for made in frames_of(value):
            if is_user(made) and made["name"] == old:
                made["name"] = f"{old}_renamed"


def move_file(value: Raw, rng: random.Random) -> None:
    """Move one file of the user's into a package."""
    paths = _user_names(value, "filename")
    if paths:
        old = rng.choice(paths)
        for made in frames_of(value):
            if made["filename"] == old:
                folder, slash, name = old.rpartition("/")
                made["filename"] = f"{folder}{slash}package/inner/{name}"


def wrap_function(value: Raw, rng: random.Random) -> None:
    """Decorate a function of the user's: one more frame outside of its own."""
    names = _user_names(value, "name")
    if not names:
        return
    wrapped = rng.choice(names)
    wrapper = frame("wrapper", "/project/decorators.py", 7)
    done: set[int] = set()
    for holder, key in stacks_of(value):
        frames = holder[key]
        if id(frames) in done:
            continue
        made: list[Any] = []
        for one in frames:
            made.append(one)
            if is_user(one) and one["name"] == wrapped:
                made.append(wrapper)
        done.add(id(made))
        holder[key] = made


def drop_cpp_frames(value: Raw, rng: random.Random) -> None:
    """Record with `stacks="python"`."""
    del rng
    for holder, key in stacks_of(value):
        holder[key] = [made for made in holder[key] if made["filename"].endswith(".py")]


MUTATIONS: Final[tuple[Mutation, ...]] = (
    shift_lines,
    change_prefixes,
    rebase_addresses,
    shuffle_keys,
    rename_outer_function,
    move_file,
    wrap_function,
)
"""Changes that are none of memory."""

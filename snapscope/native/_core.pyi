from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

MORE: int
DONE: int
ABANDONED: int

class Abandoned(Exception): ...

class Run:
    first: int
    length: int
    def __init__(self, first: int, length: int) -> None: ...

class Reader:
    position: int
    protocol: int
    strings: list[str]
    pools: list[tuple[int, int]]
    num_stacks: int
    num_events: int
    def feed(self, piece: bytes) -> tuple[int, int]: ...
    def take_value(self) -> Any: ...
    def take_columns(self) -> dict[str, npt.NDArray[Any]]: ...
    def take_extras(self) -> npt.NDArray[np.int64]: ...
    def stack(self, number: int) -> list[dict[str, Any]]: ...
    def list_at(self, index: int) -> list[Any]: ...

def renumber(
    columns: list[npt.NDArray[np.int32]],
    numbers: npt.NDArray[np.int32],
    number: Callable[[int], int],
    none: Callable[[], None] | None = None,
) -> list[npt.NDArray[np.int32]]: ...

class BlockWalk:
    num_odd: int
    odd_bytes: int
    def __init__(
        self,
        sizes: npt.NDArray[np.int64],
        is_exact: bytearray,
        is_expandable: npt.NDArray[np.uint8],
        owner: npt.NDArray[np.int64],
        *,
        rounds: bool,
        splits_small: bool,
        follows_segments: bool,
        padding: int,
        alignment: int,
        max_split: int,
        divisions: tuple[int, ...],
        search_budget: int,
    ) -> None: ...
    def seed(
        self,
        end_of: dict[int, int],
        start_of: dict[int, int],
        borders: set[int],
        owner_below: dict[int, int],
        owner_above: dict[int, int],
        elder_by_end: dict[int, int],
    ) -> None: ...
    def run(
        self,
        kind: npt.NDArray[np.int8],
        row: npt.NDArray[np.int64],
        addr: npt.NDArray[np.int64],
        size: npt.NDArray[np.int64],
    ) -> None: ...

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

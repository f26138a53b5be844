"""Small programs whose every allocation has a name.

    run = Program()
    run.alloc("w", 4096, construct())
    run.brief("tmp", 512, forward(7))

and then `run.categories()["w"]` is `parameter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from snapscope.classify.evidence import Evidence
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS, Confidence
from snapscope.classify.user_rules import UserRule
from snapscope.history import DeviceHistory
from snapscope.load import RawSnapshot
from snapscope.model import Source
from snapscope.normalise import normalise
from tests import builders as b
from tests.builders import Raw

Stack: TypeAlias = "Sequence[Raw] | None"

SITE_PACKAGES: Final = "/opt/venv/lib/python3.12/site-packages"
BASE: Final = 0x7F0000000000
GAP: Final = 1 << 24
TIME_US: Final = 1_000_000
STEP_US: Final = 10

_FRAMES: dict[tuple[str, str, int], Raw] = {}


def at(file: str, function: str, line: int = 1) -> Raw:
    """Return a frame: of a library if the file begins like one, as given if it begins with `/`, else the user's."""
    path = file if file.startswith("/") else f"/project/{file}"
    if file.split("/")[0] in ("torch", "transformers", "bitsandbytes", "peft", "deepspeed"):
        path = f"{SITE_PACKAGES}/{file}"
    # PyTorch shares the dict of a frame between all stacks.
    return _FRAMES.setdefault((path, function, line), b.frame(function, path, line))


MODULE: Final = "torch/nn/modules/module.py"
MAIN: Final = (at("train.py", "train", 50), at("train.py", "<module>", 99))


def user(function: str, line: int = 1, file: str = "train.py") -> tuple[Raw, ...]:
    return (at(file, function, line), *MAIN)


def construct() -> tuple[Raw, ...]:
    return (at(MODULE, "convert"), at(MODULE, "_apply"), at(MODULE, "to"), *MAIN)


def forward(line: int = 1, *inner: Raw) -> tuple[Raw, ...]:
    return (*inner, at("model.py", "forward", line), at(MODULE, "_call_impl"), *MAIN)


def loss(line: int = 1) -> tuple[Raw, ...]:
    functional = "torch/nn/functional.py"
    return forward(line, at(functional, "log_softmax"), at(functional, "cross_entropy"))


def init_group(file: str = "adamw") -> tuple[Raw, ...]:
    path = f"torch/optim/{file}.py"
    return (at(path, "_init_group"), at(path, "step"), at("torch/optim/optimizer.py", "wrapper"), *MAIN)


def step(file: str = "adamw", function: str = "_multi_tensor_adamw") -> tuple[Raw, ...]:
    path = f"torch/optim/{file}.py"
    return (at(path, function), at(path, "step"), at("torch/optim/optimizer.py", "wrapper"), *MAIN)


def zero_grad() -> tuple[Raw, ...]:
    return (at("torch/optim/optimizer.py", "zero_grad"), *MAIN)


def _made_by(binding: str, stack: tuple[Raw, ...]) -> tuple[Raw, ...]:
    return (at("/torch/csrc/autograd/generated/python_torch_functions.cpp", f"torch::autograd::{binding}"), *stack)


def filled(stack: tuple[Raw, ...]) -> tuple[Raw, ...]:
    """Return a stack of an allocation that is filled with zeros."""
    return _made_by("THPVariable_zeros_like(_object*, _object*, _object*)", stack)


def cloned(stack: tuple[Raw, ...]) -> tuple[Raw, ...]:
    """Return a stack of a clone."""
    return _made_by("THPVariable_clone(_object*, _object*, _object*)", stack)


def drawn(stack: tuple[Raw, ...]) -> tuple[Raw, ...]:
    """Return a stack of what is drawn at random."""
    return _made_by("THPVariable_randn(_object*, _object*, _object*)", stack)


ENGINE: Final[tuple[Raw, ...]] = ()
"""An autograd thread: C++ only, so an empty list where only Python frames are recorded."""


class Program:
    """A history in the making; every allocation has a block of its own, at rising addresses."""

    def __init__(self, *, context: str = "all") -> None:
        self.context = context
        self.events: list[Raw] = []
        self.annotations: list[Raw] = []
        self.placed: dict[str, tuple[int, int, Stack]] = {}
        self.births: dict[str, tuple[int, int]] = {}
        self.live: dict[str, None] = {}
        self.elders: dict[str, None] = {}

    @property
    def now(self) -> int:
        return TIME_US + STEP_US * len(self.events)

    def _frames(self, stack: Stack) -> Stack:
        return None if self.context == "none" else stack

    def elder(self, name: str, size: int, stack: Stack = ()) -> None:
        """Place an allocation that is older than the history."""
        self._place(name, size, stack)
        self.elders[name] = None

    def _place(self, name: str, size: int, stack: Stack) -> int:
        addr = BASE + GAP * len(self.placed)
        self.placed[name] = (addr, size, stack)
        self.live[name] = None
        return addr

    def alloc(self, name: str, size: int, stack: Stack = None) -> None:
        assert name not in self.placed, name
        addr = self._place(name, size, stack)
        self.births[name] = (len(self.events), addr)
        self.events.append(b.alloc(addr, size, frames=self._frames(stack), time_us=self.now))

    def free(self, name: str, stack: Stack = None) -> None:
        addr, size, own = self.placed[name]
        frames = self._frames(own if self.context == "alloc" else stack)
        for make in (b.free_requested, b.free_completed):
            self.events.append(make(addr, size, frames=frames, time_us=self.now))
        del self.live[name]

    def brief(self, name: str, size: int, stack: Stack = None) -> None:
        self.alloc(name, size, stack)
        self.free(name, stack)

    def oom(self, size: int, stack: Stack = None) -> None:
        self.events.append(b.oom(size, 0, frames=self._frames(stack), time_us=self.now))

    def begin(self, name: str) -> None:
        self.annotations.append(b.annotation(name, "START", self.now - STEP_US // 2))

    def end(self, name: str) -> None:
        self.annotations.append(b.annotation(name, "END", self.now - STEP_US // 2))

    def snapshot(self) -> Any:
        segments = []
        for name, (addr, size, stack) in self.placed.items():
            block = -(-size // 512) * 512
            alive = name in self.live
            frames = () if stack is None or self.context == "none" else stack
            segments.append(
                b.segment(
                    addr,
                    [
                        b.block(block, requested=size if alive else 0, frames=frames if alive else (),
                                state=b.ALLOCATED if alive else b.INACTIVE)
                    ],
                )
            )  # fmt: skip
        return b.snapshot(traces=[self.events], segments=segments, external_annotations=self.annotations)

    def history(self, rules: tuple[UserRule, ...] = ()) -> DeviceHistory:
        return history_of(self.snapshot(), rules)

    def rows(self, history: DeviceHistory) -> dict[str, int]:
        """Return the row of each name in the lifetime table."""
        table = history.lifetimes
        found = {addr: row for row, addr in enumerate(table.addr.tolist())}
        assert len(found) == len(self.placed)
        return {name: found[addr] for name, (addr, _, _) in self.placed.items()}

    def _labels(self, rules: tuple[UserRule, ...], column: str, names: Sequence[str]) -> dict[str, str]:
        history = self.history(rules)
        values = getattr(history.classification, column)
        return {name: names[int(values[row])] for name, row in self.rows(history).items()}

    def categories(self, rules: tuple[UserRule, ...] = ()) -> dict[str, str]:
        return self._labels(rules, "category", CATEGORY_LABELS)

    def fine(self, rules: tuple[UserRule, ...] = ()) -> dict[str, str]:
        return self._labels(rules, "fine", FINE_LABELS)

    def evidence(self, rules: tuple[UserRule, ...] = ()) -> dict[str, str]:
        return self._labels(rules, "evidence", [each.name for each in Evidence])

    def confidence(self, rules: tuple[UserRule, ...] = ()) -> dict[str, str]:
        return self._labels(rules, "confidence", [each.label for each in Confidence])


def history_of(value: Any, rules: tuple[UserRule, ...] = ()) -> DeviceHistory:
    """Normalise a raw snapshot made in memory."""
    source = Source(name="made", size_bytes=0, containers=(), encoding="pickle", protocol=4)
    raw = RawSnapshot(value=value, source=source, notices=(), stream_bytes=1 << 40)
    return DeviceHistory(normalise(raw), rules=rules)


WEIGHTS: Final = {"w1": 65536, "w2": 12288}


def build_model(run: Program) -> None:
    for name, size in WEIGHTS.items():
        run.alloc(name, size, construct())


def run_forward(run: Program, n: int) -> None:
    """Load a batch and run forward: it saves two blocks, and the loss one of its own."""
    run.alloc(f"x{n}", 2048, user("get_batch", 17))
    run.alloc(f"h{n}", 32768, forward(7))
    run.brief(f"t{n}", 4096, forward(8))
    run.alloc(f"logits{n}", 24576, forward(9))
    run.alloc(f"logp{n}", 24576, loss(10))
    run.alloc(f"loss{n}", 4, loss(10))


def run_backward(run: Program, n: int) -> None:
    """Run backward on a C++ thread: it frees what was saved and leaves gradients."""
    seed = (at("torch/autograd/__init__.py", "_make_grads"), at("torch/autograd/__init__.py", "backward"),
            at("torch/_tensor.py", "backward"), *MAIN)  # fmt: skip
    run.alloc(f"seed{n}", 4, seed)
    run.alloc(f"dlogp{n}", 24576, ENGINE)
    run.free(f"logp{n}", ENGINE)
    run.alloc(f"g2_{n}", WEIGHTS["w2"], ENGINE)
    run.free(f"dlogp{n}", ENGINE)
    run.free(f"h{n}", ENGINE)
    run.free(f"x{n}", ENGINE)
    run.alloc(f"g1_{n}", WEIGHTS["w1"], ENGINE)
    run.free(f"seed{n}", ENGINE)


def run_optimizer(run: Program, n: int, *, is_first: bool) -> None:
    """Step AdamW: its first call makes two moments of each weight."""
    if is_first:
        for name, size in WEIGHTS.items():
            run.alloc(f"m_{name}", size, init_group())
            run.alloc(f"v_{name}", size, init_group())
    run.brief(f"sqrt{n}", WEIGHTS["w1"], step())


def run_zero_grad(run: Program, n: int) -> None:
    run.free(f"g1_{n}", zero_grad())
    run.free(f"g2_{n}", zero_grad())


def forget_results(run: Program, n: int) -> None:
    run.free(f"logits{n}", MAIN)
    run.free(f"loss{n}", MAIN)


def train(run: Program, num_steps: int = 3) -> Program:
    """Run whole steps of the usual loop; results of a step are held until the next one's forward."""
    build_model(run)
    for n in range(num_steps):
        run_forward(run, n)
        if n:
            forget_results(run, n - 1)
        run_backward(run, n)
        run_optimizer(run, n, is_first=not n)
        run_zero_grad(run, n)
    return run

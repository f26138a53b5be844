"""Whose code a frame is, and which frame names a site."""

from __future__ import annotations

import re

import pytest

from snapscope.history import DeviceHistory
from snapscope.sites import FrameKind, Sites
from tests.builders import MIB, Raw, alloc, block, frame, segment, segment_alloc, snapshot
from tests.replay.test_properties import history_of

A = 0x7F0000000000
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"


def _history(*stacks: list[Raw]) -> DeviceHistory:
    """Make a history in which every stack allocates 512 bytes."""
    events = [segment_alloc(A, 2 * MIB)]
    events += [alloc(A + 512 * place, 512, frames=stack) for place, stack in enumerate(stacks)]
    blocks = [block(512, frames=stack) for stack in stacks]
    blocks.append(block(2 * MIB - 512 * len(stacks), state="inactive"))
    return history_of(snapshot(traces=[events], segments=[segment(A, blocks)]))


def _sites(*stacks: list[Raw]) -> list[str]:
    history = _history(*stacks)
    return [history.sites.of_stack(int(stack)).label for stack in history.lifetimes.alloc_stack]


@pytest.mark.parametrize(
    ("name", "file", "kind"),
    [
        ("forward", "/home/user/model/gpt.py", FrameKind.USER),
        ("forward", r"C:\Users\me\model\gpt.py", FrameKind.USER),
        ("<module>", "/tmp/ipykernel_12/345.py", FrameKind.USER),
        ("<module>", "<string>", FrameKind.USER),
        ("<module>", "<ipython-input-3-abc>", FrameKind.USER),
        ("main", "/usr/bin/torchrun", FrameKind.USER),
        ("step", "/opt/venv/lib/python3.11/site-packages/accelerate/optimizer.py", FrameKind.LIBRARY),
        ("_call_impl", TORCH, FrameKind.TORCH),
        ("_call_impl", r"C:\Python311\Lib\site-packages\torch\nn\modules\module.py", FrameKind.TORCH),
        ("backward", "/src/pytorch/torch/autograd/__init__.py", FrameKind.TORCH),
        ("run", "/usr/lib/python3.11/threading.py", FrameKind.STDLIB),
        ("_run_code", "<frozen runpy>", FrameKind.STDLIB),
        ("call", "/tmp/torchinductor_me/ab/cabc.py", FrameKind.GENERATED),
        ("forward", "<eval_with_key>.12", FrameKind.GENERATED),
        ("at::native::add(at::Tensor const&)", "??", FrameKind.CPP),
        ("at::native::add(at::Tensor const&)", "", FrameKind.CPP),
        ("cudaMalloc", "/usr/lib/libcudart.so.12", FrameKind.CPP),
        ("execute_native_thread_routine", "thread48.o", FrameKind.HIDDEN),
        ("_PyEval_EvalFrameDefault", "/build/Python/ceval.c", FrameKind.HIDDEN),
        ("torch::unwind::unwind()", "??", FrameKind.HIDDEN),
        # User code may be called like the interpreter's.
        ("_start_training", "/home/user/run.py", FrameKind.USER),
        ("f", "/home/user/Registers/net.py", FrameKind.USER),
    ],
)
def test_kinds(name: str, file: str, kind: FrameKind) -> None:
    history = _history([frame(name, file)])
    assert history.sites.kind_of(0) is kind


def test_the_innermost_frame_of_the_user_names_the_site() -> None:
    inner = frame("forward", TORCH, 100)
    user = frame("block", "/home/me/proj/model.py", 88)
    outer = frame("<module>", "/home/me/proj/train.py", 7)
    assert _sites([inner, user, outer]) == ["model.py:88 block"]


def test_a_launcher_says_nothing() -> None:
    library = frame("step", "/v/lib/python3.11/site-packages/accelerate/optimizer.py", 186)
    launcher = frame("<module>", "/home/me/train.py", 7)
    assert _sites([library, launcher]) == ["accelerate/optimizer.py:186 step"]
    # With nothing but torch below it, the script itself allocates.
    assert _sites([frame("to", TORCH, 5), launcher]) == ["train.py:7 <module>"]


def test_paths_are_shown_below_the_projects_root() -> None:
    stacks = [[frame("a", "/home/me/proj/sub/a.py", 1)], [frame("b", "/home/me/proj/b.py", 2)]]
    assert _sites(*stacks) == ["sub/a.py:1 a", "b.py:2 b"]


def test_a_moved_line_is_the_same_site() -> None:
    history = _history([frame("f", "/p/m.py", 88)], [frame("f", "/p/m.py", 90)], [frame("g", "/p/m.py", 90)])
    first, moved, other = (history.sites.of_stack(int(s)).number for s in history.lifetimes.alloc_stack)
    assert first == moved != other


def test_without_python_frames() -> None:
    backward = frame(
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "??", 0
    )
    other = frame("c10d::ProcessGroupNCCL::initIntraNodeComm()", "??", 0)
    assert _sites([backward], [other], []) == ["(C++ backward)", "(no stack)", "(no stack)"]


def test_matching() -> None:
    history = _history([frame("f", "/p/m.py", 88)], [frame("g", "/p/n.py", 3)])
    stacks = history.lifetimes.alloc_stack
    assert history.sites.matching(re.compile(r"m\.py:88 f$"))[stacks].tolist() == [True, False]
    assert history.sites.matching(re.compile("^/p/"))[stacks].tolist() == [True, True]


def test_empty_table() -> None:
    assert Sites(history_of(snapshot()).snapshot.stacks).matching(re.compile("x")).tolist() == [False]

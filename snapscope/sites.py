"""Sites: which line of whose code a stack stands for.

A site is a whole stack by function and normalised file, without line numbers and without
interpreter and unwinder frames, so that a moved line stays the same site. It is shown as
its innermost frame of the user's code.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np

from snapscope.model import NO_STACK, BoolColumn, Int32Column, StackTable


class FrameKind(IntEnum):
    """Whose code a frame is."""

    USER = 0
    LIBRARY = 1
    TORCH = 2
    STDLIB = 3
    GENERATED = 4
    CPP = 5
    HIDDEN = 6


_MAX_MODULES: Final = 3
NO_STACK_LABEL: Final = "(no stack)"
BEFORE_LABEL: Final = "(before the history)"
CPP_BACKWARD_LABEL: Final = "(C++ backward)"

_LIBRARY_ROOT: Final = re.compile(r".*/(?:site-packages|dist-packages)/", re.DOTALL)
_STDLIB_ROOT: Final = re.compile(r".*/lib(?:64)?/(?:python|pypy)\d(?:\.\d+)?/", re.DOTALL)
_WINDOWS_STDLIB: Final = re.compile(
    r".*/(?:Python\d+|[^/]*conda\d*(?:/envs/[^/]+)?)/lib/(?!site-packages)", re.DOTALL | re.I
)
_TORCH_TREE: Final = re.compile(
    r"(?:^|/)torch(?:_npu|_xla)?/(?:_tensor\.py|_utils\.py|_ops\.py|serialization\.py|functional\.py|random\.py|storage\.py|"
    r"__init__\.py|(?:nn|optim|autograd|utils|cuda|npu|_dynamo|_inductor|_functorch|_higher_order_ops|distributed|fx|amp|"
    r"_library|_prims|_refs|_decomp|jit|sparse|multiprocessing|testing|ao|accelerator|onnx|profiler)/)"
)
_GENERATED: Final = re.compile(r"(?:/torchinductor_|<eval_with_key>|fx_generated_|/\.?torch_compile_cache/|^<string>$)")
_CPP_SUFFIX: Final = re.compile(
    r"\.(?:so(?:\.\d+)*|cpp|cc|cxx|cu|cuh|c|h|hpp|hip|hxx|inl|ipp|tcc|s|o|a|dll|pyd|exe|dylib)$", re.I
)
_INTERPRETER_FILES: Final = (
    "core/boxing", "/Register", "/Redispatch", "pythonrun.c", "Modules/main.c", "Objects/", "pycore_", "ceval.c",
    "cpython/abstract.h", "libc-start", "libc_start",
)  # fmt: skip
_INTERPRETER_NAMES: Final = re.compile(
    r"^(?:torch::unwind::|torch::CapturedTraceback::gather|_?Py(?:Eval|Object|Function|Vectorcall|Run|Import|Method|Type)"
    r"|_start$|__libc_start|py(?:main|run)_|method_vectorcall|<unwind unsupported>$|_*clone3?$|start_thread$"
    r"|execute_native_thread_routine$|run_eval_code_obj$|run_mod$)"
    r"|gather_with_cpp"
)
_BACKWARD_NAME: Final = re.compile(
    r"torch::autograd::(?:Engine|python::PythonEngine|Node|generated::|AccumulateGrad|PyNode)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where an allocation comes from.

    Attributes:
        number: equal for equal sites of one snapshot.
        label: how to show it: `model/gpt.py:40 forward`, or one of the bracketed labels.
        file: normalised file of the shown frame; empty for bracketed labels.
        line: line of the shown frame; 0 if unknown.
        function: its function; empty for bracketed labels.
    """

    number: int
    label: str
    file: str = ""
    line: int = 0
    function: str = ""


class Sites:
    """Sites of one snapshot's stacks, worked out on demand (there are hundreds, not millions)."""

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._kinds = _kinds_of(stacks)
        self._files = _shorten(stacks, self._kinds)
        self._numbers: dict[tuple[tuple[str, str], ...], int] = {}
        self._bracketed: dict[str, Site] = {}
        self._sites: dict[int, Site] = {}

    def of_stack(self, stack: int, *, is_before: bool = False) -> Site:
        """Return the site of a stack.

        Args:
            stack: number in the stack table, or `NO_STACK`.
            is_before: whether the allocation is older than the history (decides the
                label where there is no stack).
        """
        site = self._sites.get(stack)
        if site is None:
            site = self._sites[stack] = self._make(stack)
        if is_before and site.label == NO_STACK_LABEL:
            return self._bracket(BEFORE_LABEL)
        return site

    @property
    def cpp_backward(self) -> Site:
        """The site of what autograd's own threads made, for those who know it by the phase."""
        return self._bracket(CPP_BACKWARD_LABEL)

    def kind_of(self, frame: int) -> FrameKind:
        """Return whose code a frame is."""
        return self._kinds[frame]

    def file_of(self, frame: int) -> str:
        """Return the normalised file of a frame."""
        return self._files[frame]

    def frame_label(self, frame: int) -> str:
        """Return a frame as `file:line function`."""
        line = self._stacks.line_of(frame)
        where = (
            f"{self._files[frame]}:{line}" if line and self._kinds[frame] is not FrameKind.CPP else self._files[frame]
        )
        return f"{where} {self._stacks.function_of(frame)}".strip()

    def module_of(self, stack: int) -> str:
        """Return the chain of module forwards around a stack's innermost call, `gpt.py Block / linear.py`.

        Each part is the file of a forward that `Module.__call__` ran, outermost first, at most
        three; empty where no module call is in the stack.
        """
        frames = self.visible_frames(stack).tolist() if stack != NO_STACK else []
        parts = [
            posixpath.basename(self._files[frame]).removesuffix(".py")
            for frame, outer in pairwise(frames)
            if self._stacks.function_of(outer) == "_call_impl" and self._stacks.function_of(frame) != "inner"
        ]
        return " / ".join(reversed(parts[:_MAX_MODULES]))

    def callers(self, stack: int) -> list[str]:
        """Return the labels of the user's frames of a stack, innermost first."""
        frames = self._stacks.frames_of(stack).tolist()
        return [self.frame_label(frame) for frame in frames if self._kinds[frame] is FrameKind.USER]

    def visible_frames(self, stack: int) -> Int32Column:
        """Return the frames of a stack without interpreter and unwinder frames, innermost first.

        Where there are Python frames, C++ ones are left out too: `stacks="all"` mixes them
        in an order that only holds among Python frames (Python >= 3.11).
        """
        frames = self._stacks.frames_of(stack)
        kinds = [self._kinds[frame] for frame in frames.tolist()]
        has_python = any(kind < FrameKind.CPP for kind in kinds)
        hidden = FrameKind.CPP if has_python else FrameKind.HIDDEN
        visible: Int32Column = frames[np.array([kind < hidden for kind in kinds], bool)]
        return visible

    def matching(self, pattern: re.Pattern[str]) -> BoolColumn:
        """Return, per stack, whether any of its frames matches `file:line function`.

        Both the normalised and the recorded file name are tried.
        """
        stacks = self._stacks
        hits = np.zeros(stacks.num_frames, bool)
        for frame in range(stacks.num_frames):
            recorded = f"{stacks.file_of(frame)}:{stacks.line_of(frame)} {stacks.function_of(frame)}"
            hits[frame] = bool(pattern.search(self.frame_label(frame)) or pattern.search(recorded))
        owner = np.repeat(np.arange(stacks.num_stacks), np.diff(stacks.stack_offsets))
        found = np.zeros(stacks.num_stacks, bool)
        found[owner[hits[stacks.stack_frames]]] = True
        return found

    def _bracket(self, label: str) -> Site:
        if label not in self._bracketed:
            self._bracketed[label] = Site(number=self._number_of((("", label),)), label=label)
        return self._bracketed[label]

    def _number_of(self, key: tuple[tuple[str, str], ...]) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _make(self, stack: int) -> Site:
        frames = self._stacks.frames_of(stack).tolist() if stack != NO_STACK else []
        python = [frame for frame in frames if self._kinds[frame] < FrameKind.CPP]
        if not python:
            is_backward = any(_BACKWARD_NAME.search(self._stacks.function_of(frame)) for frame in frames)
            return self._bracket(CPP_BACKWARD_LABEL if is_backward else NO_STACK_LABEL)
        shown = self._shown(python)
        named = [(self._files[frame], self._stacks.function_of(frame)) for frame in python]
        # How deep a recursion went (`Module._apply` over nested modules) doesn't make another site.
        key = tuple(name for place, name in enumerate(named) if not place or named[place - 1] != name)
        return Site(
            number=self._number_of(key),
            label=self.frame_label(shown),
            file=self._files[shown],
            line=self._stacks.line_of(shown),
            function=self._stacks.function_of(shown),
        )

    def _shown(self, python: list[int]) -> int:
        """Choose the frame that names the site: the user's innermost, else a library's."""
        user = [frame for frame in python if self._kinds[frame] is FrameKind.USER]
        library = [frame for frame in python if self._kinds[frame] is FrameKind.LIBRARY]
        named = [frame for frame in user if self._stacks.function_of(frame) != "<module>"]
        # A script that only starts a trainer says nothing about who allocates.
        for candidates in (user if named else [], library, user):
            if candidates:
                return candidates[0]
        by_kind = sorted(python, key=lambda frame: self._kinds[frame] is FrameKind.STDLIB)
        return by_kind[0]


def _kinds_of(stacks: StackTable) -> list[FrameKind]:
    """Return the kind of every frame; frames differ most often only in their line."""
    known: dict[tuple[int, int], FrameKind] = {}
    kinds = []
    names = zip(stacks.frame_function.tolist(), stacks.frame_file.tolist(), strict=True)
    for frame, name in enumerate(names):
        if name not in known:
            known[name] = _kind_of(stacks.function_of(frame), stacks.file_of(frame))
        kinds.append(known[name])
    return kinds


def _kind_of(function: str, file: str) -> FrameKind:
    path = file.replace("\\", "/")
    if _INTERPRETER_NAMES.search(function) or any(
        part in path for part in _INTERPRETER_FILES if _CPP_SUFFIX.search(path)
    ):
        return FrameKind.HIDDEN
    if path in ("", "??") or _CPP_SUFFIX.search(path):
        return FrameKind.CPP
    if path == "<string>" and function == "<module>":
        return FrameKind.USER
    if _GENERATED.search(path):
        return FrameKind.GENERATED
    if path.startswith("<frozen"):
        return FrameKind.STDLIB
    in_library = _LIBRARY_ROOT.match(path)
    rest = path[in_library.end() :] if in_library else path
    if rest.startswith(("torch/", "torch_npu/")) or (not in_library and _TORCH_TREE.search(path)):
        return FrameKind.TORCH
    if in_library:
        return FrameKind.LIBRARY
    if _STDLIB_ROOT.match(path) or _WINDOWS_STDLIB.match(path):
        return FrameKind.STDLIB
    return FrameKind.USER


def _shorten(stacks: StackTable, kinds: list[FrameKind]) -> list[str]:
    """Normalise every frame's file: relative to its library, or to the project's root."""
    paths = [stacks.file_of(frame).replace("\\", "/") for frame in range(stacks.num_frames)]
    user = {path for path, kind in zip(paths, kinds, strict=True) if kind is FrameKind.USER and "/" in path}
    root = _common_root(user)
    known: dict[tuple[str, FrameKind], str] = {}
    for name in zip(paths, kinds, strict=True):
        if name not in known:
            known[name] = _normalise(*name, root)
    return [known[name] for name in zip(paths, kinds, strict=True)]


def _common_root(paths: Iterable[str]) -> str:
    """Return the deepest folder above (nearly) all of the user's files, with a slash at its end.

    A stray file elsewhere (a launcher under /usr/bin) must not spoil all other names, so
    the first component that most files share decides.
    """
    # Sorted, for of equal counts the first decides.
    folders = sorted(posixpath.dirname(path) for path in paths)
    if not folders:
        return ""
    tops = Counter("/".join(folder.split("/")[:2]) for folder in folders)
    top = tops.most_common(1)[0][0]
    inside = [folder for folder in folders if (folder + "/").startswith(top + "/")]
    common = posixpath.commonpath(inside) if len({folder.startswith("/") for folder in inside}) == 1 else top
    return common.rstrip("/") + "/"


def _normalise(path: str, kind: FrameKind, root: str) -> str:
    if kind in (FrameKind.CPP, FrameKind.HIDDEN):
        return posixpath.basename(path)
    match = _LIBRARY_ROOT.match(path) or _STDLIB_ROOT.match(path)
    if match:
        return path[match.end() :]
    if kind is FrameKind.TORCH:
        tree = _TORCH_TREE.search(path)
        return path[tree.start() :].lstrip("/") if tree else path
    if kind is FrameKind.GENERATED:
        return posixpath.basename(path)
    return path[len(root) :] if root and path.startswith(root) else path

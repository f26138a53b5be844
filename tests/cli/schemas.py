"""The JSON of every verb as key paths with types: `ledger.rows[].bytes` is an integer."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

from tests import builders as b
from tests.builders import MIB
from tests.classify.program import Program, user
from tests.cli.running import fixture, run_cli, succeed

OPAQUE: Final = frozenset(("format.settings",))
"""Objects whose keys are PyTorch's own."""

# Together they show every key with every type that it can have.
SOURCES: Final = (
    ("cases/02_fragmentation_oom/a.pickle", "--capacity 2GiB"),
    ("cases/05_history_starts_late/a.pickle", ""),
    ("cases/15_odd_files/no_traces.pickle", "--capacity 2GiB"),
    ("torch-2.0/oom_forward", "--capacity 1200MiB"),
    ("runs/oom/pend_in_capture", ""),
    ("torch-2.14/cuda_graph", "--focus gpt"),
    ("torch-2.14/no_context", ""),
    ("torch-2.14/two_gpu", ""),
    ("cases/06_step_peak_reconciles/a.pickle", ""),
)
EXTRA: Final = {
    "leaks": (
        ("cases/07_leak_per_step/a.pickle", "--capacity 1GiB"),
        ("runs/leak/cublas_workspaces", ""),
    ),
    "ledger": ((SOURCES[0][0], "--at oom --capacity 2GiB"),),
    "oom": (
        ("runs/oom/frag_dynamic_bank", ""),
        ("runs/oom/cap_backward", "--at oom:1"),
        ("runs/oom/cap_first_optimizer_step_except", ""),
    ),
    "explain": (("torch-2.14/oom_forward", "event:151"), ("torch-2.0/oom_forward", "--at end")),
    "graph": (
        ("torch-2.14/oom_forward", "--around event:151 --hops 2"),
        ("torch-2.0/oom_forward", "--level lifetime"),
        ("cases/05_history_starts_late/a.pickle", "--level lifetime --at start"),
    ),
}


DIFFS: Final = (
    ("cases/11_diff_and_gate/a.pickle", "cases/11_diff_and_gate/b.pickle", "--fail-above 5%"),
    ("torch-2.14/adamw_fp32", "torch-2.14/amp_bf16", ""),
    ("torch-2.14/adamw_fp32", "torch-2.14/late_start", ""),
    ("torch-2.0/adamw_fp32", "torch-2.14/adamw_fp32", ""),
    ("cases/15_odd_files/no_traces.pickle", "torch-2.14/oom_forward", "--fail-above reserved=1GiB"),
    ("runs/oom/two_ooms", "runs/oom/two_ooms", "--at event:-1"),
)


CHECKS: Final = (
    ("cases/07_leak_per_step/a.pickle", "--max-peak 1GiB"),
    ("cases/07_leak_per_step/a.pickle", "--max-growth 1MiB --max activation=1MiB --max-fragmentation 1%"),
    ("cases/15_odd_files/no_traces.pickle", "--max-reserved 10GiB --no-oom"),
    ("cases/02_fragmentation_oom/a.pickle", "--no-oom --max-growth 0"),
)


def rarities() -> bytes:
    """Make a snapshot that shows what no recording of ours does.

    A free without its completion, an oom event without the driver's figure, a pool that nothing tells,
    an unknown key, and pinned host memory.
    """
    address = 0x7F0000000000
    events: list[b.Events] = [
        b.alloc(address, MIB, frames=[]),
        b.free_requested(address, MIB, frames=[]),
        b.alloc(address, MIB, frames=[]),
        b.free(address + MIB, MIB)[0],
        b.event("oom", MIB, frames=[]),
    ]
    host = b.segment(0x1000, [b.block(4096)], device=0)
    return pickle.dumps(
        b.snapshot(
            traces=[events],
            segments=[b.segment(address, [b.block(MIB), b.block(MIB, state=b.INACTIVE)])],
            host_segments=[host],
            host_traces=[],
            unknown=1,
        )
    )


def cleared_list() -> bytes:
    """Make a snapshot of a list that fills for three steps and is cleared, twice."""
    run = Program()
    for number in range(7):
        run.begin(f"step {number}")
        run.alloc(f"x{number}", MIB, user("log"))
        if number in (2, 5):
            for older in range(number - 2, number + 1):
                run.free(f"x{older}")
        run.end(f"step {number}")
        run.brief(f"between{number}", MIB, user("other"))
    return pickle.dumps(run.snapshot())


def type_of(value: Any) -> str:
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    return names[type(value)]


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key path below a value with what stands there; items of arrays are `path[]`."""
    if path:
        yield path, value
    if isinstance(value, dict) and path not in OPAQUE:
        for key, child in value.items():
            yield from walk(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for child in value:
            yield from walk(child, f"{path}[]")


def documents(verb: str) -> Iterator[tuple[str, Any]]:
    """Yield what a verb says about every source, with the command that said it."""
    if verb in ("diff", "check"):
        yield from diffs() if verb == "diff" else checks()
        return
    if verb == "ranks":
        yield from _rank_documents()
        return
    for name, wanted in (*SOURCES, *EXTRA.get(verb, ())):
        options = "" if verb == "steps" and "--focus" in wanted else wanted
        yield f"{verb} {fixture(name)}", succeed(verb, fixture(name), *options.split(), "--json").document()
    for options in ("", "--device host"):
        yield f"{verb} stdin", succeed(verb, "-", *options.split(), "--json", stdin=rarities()).document()
    if verb == "leaks":
        yield f"{verb} stdin", succeed(verb, "-", "--json", stdin=cleared_list()).document()


def checks() -> Iterator[tuple[str, Any]]:
    for name, options in CHECKS:
        ran = run_cli("check", fixture(name), *options.split(), "--json")
        assert (ran.code in (0, 1), ran.stderr) == (True, ""), name
        yield f"check {fixture(name)}", ran.document()
    yield "check stdin", run_cli("check", "-", "--no-oom", "--device", "host", "--json", stdin=rarities()).document()


def diffs() -> Iterator[tuple[str, Any]]:
    for before, after, options in DIFFS:
        ran = run_cli("diff", fixture(before), fixture(after), *options.split(), "--json")
        assert (ran.code, ran.stderr) == (1 if "--fail" in options else 0, ""), before
        yield f"diff {fixture(after)}", ran.document()
    for device in ("", "@device:host"):
        ran = run_cli("diff", "--json", "--", fixture(SOURCES[0][0]), f"-{device}", stdin=rarities())
        yield "diff stdin", ran.document()


RANKS: Final = "fixtures/cases/12_rank_imbalance"
RANK_SETS: Final = (
    (RANKS,),
    (fixture("torch-2.14/fsdp_rank0"), fixture("torch-2.14/fsdp_rank2")),
    # Unlike settings, an oom event on a card with less room, names that hold no rank.
    (fixture("torch-2.14/adamw_fp32"), fixture("torch-2.14/oom_forward"), fixture("torch-2.0/oom_forward")),
    (fixture("cases/15_odd_files/no_traces.pickle"),),
    (fixture("runs/oom/exp_checkerboard"), fixture("torch-2.14/fsdp_rank0"), "--capacity", "4GiB"),
)


def _rank_documents() -> Iterator[tuple[str, Any]]:
    for arguments in RANK_SETS:
        yield f"ranks {' '.join(arguments)}", succeed("ranks", *arguments, "--json").document()
    yield "ranks stdin", succeed("ranks", "-", "--device", "host", "--json", stdin=rarities()).document()
    yield "ranks stdin", succeed("ranks", "-", "--json", stdin=rarities()).document()


def schema_of(verb: str) -> dict[str, str]:
    """Return the types of every key path of a verb, joined by `or`, in order of appearance."""
    types: dict[str, set[str]] = {}
    for _, document in documents(verb):
        for path, value in walk(document):
            types.setdefault(path, set()).add(type_of(value))
    order = ["object", "array", "integer", "number", "string", "boolean", "null"]
    return {path: " or ".join(sorted(found, key=order.index)) for path, found in types.items()}

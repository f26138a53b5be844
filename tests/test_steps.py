"""Steps and phases: `snapscope.steps`, on small programs and against what recordings know of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from snapscope.analyses.ledger import By, ledger, sum_categories
from snapscope.analyses.moments import find_moment
from snapscope.analyses.step_table import tabulate_steps
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.errors import UsageError
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from snapscope.steps import Step
from tests import builders as b
from tests.classify.program import (
    ENGINE,
    MAIN,
    MODULE,
    WEIGHTS,
    Program,
    at,
    build_model,
    forget_results,
    forward,
    history_of,
    run_backward,
    run_forward,
    run_optimizer,
    run_zero_grad,
    step,
    train,
    user,
)
from tests.conftest import fixture_path, read_truth, recordings

GIB: Final = 1 << 30
MIB: Final = 1 << 20


def names_of(run: Program) -> list[str]:
    return [each.name for each in run.history().steps.steps]


def spans_of(steps: tuple[Step, ...]) -> dict[str, tuple[int, int]]:
    return {each.name: (each.start_event, each.end_event) for each in steps}


def step_of(history: DeviceHistory, event: int) -> str:
    return next(each.name for each in history.steps.steps if each.start_event <= event <= each.end_event)


def place_of(run: Program, history: DeviceHistory, name: str) -> str:
    """Return the name of the step in which an allocation was born."""
    return step_of(history, run.births[name][0])


def phase_of(run: Program, history: DeviceHistory, name: str) -> str | None:
    """Return the phase in which an allocation was born."""
    return history.steps.phases_at(np.array([run.births[name][0]], np.int64))[0]


def marked(pattern: str, num_steps: int = 3) -> Program:
    """Train with each whole step inside an annotated range."""
    run = Program()
    build_model(run)
    for n in range(num_steps):
        run.begin(pattern.format(n + 4))
        run_forward(run, n)
        run_backward(run, n)
        run_optimizer(run, n, is_first=not n)
        run_zero_grad(run, n)
        forget_results(run, n)
        run.end(pattern.format(n + 4))
        run.brief(f"log{n}", 512, user("log", 80))
    return run


# ---------------------------------------------------------------------------------------- annotated


@pytest.mark.parametrize(
    "pattern",
    ["ProfilerStep#{}", "## step {} ##", "step {}", "Step: {}", "step_{}", "iteration {}", "iter#{}", "batch {}", "{}"],
)
def test_ranges_that_name_steps(pattern: str) -> None:
    run = marked(pattern)
    steps = run.history().steps
    assert steps.source == "annotated"
    expected = ["init", "step 4", "between", "step 5", "between", "step 6", "rest"]
    assert [each.name for each in steps.steps] == expected
    for n in range(3):
        assert place_of(run, run.history(), f"x{n}") == place_of(run, run.history(), f"sqrt{n}") == f"step {n + 4}"
        assert place_of(run, run.history(), f"log{n}") in ("between", "rest")


@pytest.mark.parametrize(
    "name",
    ["aten::mm", "step", "epoch 3", "step 1 of 2", "#", "1" * 5000, "step " + "9" * 5000, "##" + " " * 50_000 + "x"],
    ids=lambda name: name[:12],
)
def test_ranges_that_name_none(name: str) -> None:
    run = Program()
    run.begin(name)
    run.alloc("a", 512, user("f"))
    run.end(name)
    assert run.history().steps.source == "none"


def test_a_range_without_its_end_is_an_unfinished_step() -> None:
    run = marked("ProfilerStep#{}")
    run.annotations = run.annotations[:-1]
    steps = {step.name: step for step in run.history().steps.steps}
    assert {"step 4", "step 5", "step 6"} <= set(steps)
    assert not steps["step 6"].is_complete
    assert steps["step 6"].end_event == run.history().num_events - 1
    assert steps["step 4"].is_complete


def test_a_range_whose_end_was_lost_is_none() -> None:
    run = marked("ProfilerStep#{}")
    run.annotations = [each for each in run.annotations if (each["name"], each["stage"]) != ("ProfilerStep#5", "END")]
    assert "step 5" not in names_of(run)


def test_a_forward_without_an_end_is_an_unfinished_step() -> None:
    run = Program()
    build_model(run)
    run_forward(run, 0)
    (step,) = [step for step in run.history().steps.steps if step.name != "init"]
    assert (step.name, step.is_complete) == ("step 0", False)


def test_ranges_that_overlap_name_no_steps() -> None:
    run = Program()
    run.begin("step 1")
    run.alloc("a", 512, user("f"))
    run.begin("step 2")
    run.alloc("b", 512, user("f"))
    run.end("step 1")
    run.alloc("c", 512, user("f"))
    run.end("step 2")
    assert run.history().steps.source == "none"


@pytest.mark.parametrize("inner", ["batch {}", "step {}", "{}"])
def test_ranges_within_ranges(inner: str) -> None:
    run = Program()
    for n in range(3):
        run.begin(f"ProfilerStep#{n + 7}")
        run.alloc(f"x{n}", 512, user("f"))
        run.begin(inner.format(n))
        run.alloc(f"y{n}", 512, user("f"))
        run.end(inner.format(n))
        run.alloc(f"z{n}", 512, user("f"))
        run.end(f"ProfilerStep#{n + 7}")
    assert names_of(run) == ["step 7", "step 8", "step 9"]


@pytest.mark.parametrize("context", ["all", "none"])
def test_annotated_optimizers_end_the_steps(context: str) -> None:
    run = Program(context=context)
    build_model(run)
    for n in range(3):
        run_forward(run, n)
        if n:
            forget_results(run, n - 1)
        run_backward(run, n)
        run.begin("Optimizer.step#AdamW.step")
        run_optimizer(run, n, is_first=not n)
        run.end("Optimizer.step#AdamW.step")
        run_zero_grad(run, n)
    history = run.history()
    assert history.steps.source == "annotated"
    assert [each.name for each in history.steps.steps] == ["init", "step 0", "step 1", "step 2", "rest"]
    for n in range(3):
        assert place_of(run, history, f"sqrt{n}") == f"step {n}"
        assert place_of(run, history, f"g1_{n}") == f"step {n}"
    assert place_of(run, history, "h1") == "step 1"


# ----------------------------------------------------------------------------------------- inferred


def test_steps_are_inferred_from_the_optimizers_frames() -> None:
    run = train(Program(), 3)
    history = run.history()
    assert history.steps.source == "inferred"
    assert names_of(run) == ["init", "step 0", "step 1", "step 2", "rest"]
    for n in range(3):
        for name in ("h", "logits", "dlogp", "g1_", "sqrt"):
            assert place_of(run, history, f"{name}{n}") == f"step {n}", name
    assert place_of(run, history, "w1") == "init"


def test_phases_of_an_inferred_step() -> None:
    run = train(Program(), 3)
    history = run.history()
    second = next(each for each in history.steps.steps if each.name == "step 1")
    names = [phase.name for phase in second.phases]
    assert [name for name in names if name != "between"] == ["zero_grad", "data", "forward", "backward", "optimizer"]
    found = {phase.name: phase for phase in second.phases}
    for name, phase in (("x1", "data"), ("h1", "forward"), ("g1_1", "backward"), ("sqrt1", "optimizer")):
        assert found[phase].start_event <= run.births[name][0] <= found[phase].end_event, name


def test_accumulation_is_one_step() -> None:
    run = Program()
    build_model(run)
    for n in range(6):
        run_forward(run, n)
        run_backward(run, n)
        forget_results(run, n)
        if n % 3 == 2:
            run_optimizer(run, n, is_first=n == 2)
            for old in range(n - 2, n + 1):
                run_zero_grad(run, old)
    history = run.history()
    assert names_of(run) == ["init", "step 0", "step 1", "rest"]
    assert place_of(run, history, "h2") == "step 0"
    assert place_of(run, history, "h3") == "step 1"


def test_several_optimizers_make_one_step() -> None:
    run = Program()
    build_model(run)
    for n in range(2):
        run_forward(run, n)
        run_backward(run, n)
        forget_results(run, n)
        run.brief(f"adam{n}", 4096, step())
        run.brief(f"between{n}", 512, user("log", 70))
        run.brief(f"sgd{n}", 4096, step("sgd", "_multi_tensor_sgd"))
        run_zero_grad(run, n)
    history = run.history()
    assert names_of(run) == ["init", "step 0", "step 1", "rest"]
    for n in range(2):
        assert place_of(run, history, f"adam{n}") == place_of(run, history, f"sgd{n}") == f"step {n}"


def test_optimizer_in_backward() -> None:
    run = Program()
    build_model(run)
    hook = (at("torch/optim/sgd.py", "step"), at("train.py", "hook"))
    for n in range(3):
        run_forward(run, n)
        run_backward(run, n)
        run.brief(f"update{n}", WEIGHTS["w1"], hook)
        run.free(f"g1_{n}", ENGINE)
        run.free(f"g2_{n}", ENGINE)
        forget_results(run, n)
    history = run.history()
    assert history.steps.source == "inferred"
    assert [name for name in names_of(run) if name.startswith("step ")] == ["step 0", "step 1", "step 2"]
    assert place_of(run, history, "h2") == "step 2"


def test_a_hand_written_optimizer_ends_the_steps() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        run_forward(run, n)
        run_backward(run, n)
        run.brief(f"scaled{n}", WEIGHTS["w1"], user("update", 31, "my_optim.py"))
        run.free(f"g1_{n}", user("clear", 60))
        run.free(f"g2_{n}", user("clear", 60))
        forget_results(run, n)
    history = run.history()
    assert history.steps.source == "inferred"
    assert [name for name in names_of(run) if name.startswith("step ")] == ["step 0", "step 1", "step 2"]
    for n in range(3):
        assert place_of(run, history, f"scaled{n}") == f"step {n}"


def test_evaluation_within_training_belongs_to_a_step() -> None:
    run = Program()
    build_model(run)
    for n in range(2):
        run_forward(run, n)
        run_backward(run, n)
        forget_results(run, n)
        run_optimizer(run, n, is_first=not n)
        run_zero_grad(run, n)
        for batch in range(2):
            run.brief(f"eval{n}_{batch}", 8192, forward(7))
    history = run.history()
    assert names_of(run) == ["init", "step 0", "step 1", "rest"]
    assert phase_of(run, history, "eval1_0") == "eval"
    assert phase_of(run, history, "h1") == "forward"


@pytest.mark.parametrize(("function", "phase"), [("generate", "generate"), ("sample", "eval")])
def test_forwards_that_no_backward_follows(function: str, phase: str) -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        for token in range(4):
            run.brief(f"h{n}_{token}", 32768, (at("model.py", "forward"), at(MODULE, "_call_impl"), *user(function)))
        run.brief(f"log{n}", 512, user("log", 70))
    history = run.history()
    assert {phase_of(run, history, f"h{n}_0") for n in range(3)} == {phase}
    assert phase_of(run, history, "w1") == "init"


def test_phases_at_events() -> None:
    run = train(Program(), 2)
    steps = run.history().steps
    names = {"w1": "init", "h1": "forward", "g1_1": "backward", "sqrt1": "optimizer", "x1": "data"}
    events = np.array([run.births[name][0] for name in names], np.int64)
    assert steps.phases_at(events) == list(names.values())
    assert steps.phases_at(np.array([-1], np.int64)) == [None]


def test_inference_has_a_step_per_call() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        run.alloc(f"x{n}", 2048, user("get_batch", 17))
        run.brief(f"h{n}", 32768, forward(7))
        run.alloc(f"out{n}", 8192, forward(9))
        run.free(f"x{n}", MAIN)
        run.free(f"out{n}", MAIN)
    history = run.history()
    assert history.steps.source == "inferred"
    steps = {place_of(run, history, f"h{n}") for n in range(3)}
    assert len(steps) == 3
    assert all(name.startswith("step ") for name in steps)


def test_where_nothing_repeats_there_are_no_steps() -> None:
    for context in ("all", "none"):
        run = Program(context=context)
        build_model(run)
        run.alloc("x", 2048, user("get_batch", 17))
        assert run.history().steps.source == "none"
        assert run.history().steps.steps == ()
    assert Program().history().steps.steps == ()


# ------------------------------------------------------------------------------- against recordings

TRUE_STEP: Final = re.compile(r"(step\d+)\.")


def true_steps(phases: list[list[object]]) -> Iterator[tuple[int, int]]:
    """Yield (first event of the forward, first event of the optimizer) of each whole step of a recording."""
    starts: dict[str, dict[str, int]] = {}
    for event, name in phases:
        assert isinstance(event, int)
        assert isinstance(name, str)
        match = TRUE_STEP.match(name)
        if match:
            starts.setdefault(match[1], {}).setdefault(name.rpartition(".")[2], event)
    for found in starts.values():
        if "forward" in found and "optimizer" in found and found["optimizer"] > 0:
            yield found["forward"], found["optimizer"]


TRAINED: Final = [
    name
    for name in recordings()
    if name.rpartition("/")[2] not in ("oom_forward", "oom_backward", "cuda_graph", "kv_cache")
]


@pytest.mark.parametrize("name", TRAINED)
def test_steps_lie_where_the_program_made_them(name: str) -> None:
    truth = read_truth(name.removeprefix("allocator/"))
    history = DeviceHistory(load_snapshot(fixture_path(name)), truth["device"])
    steps = history.steps
    is_marked = len(history.snapshot.annotations) and not name.endswith("oom_optimizer_step")  # cut within its first
    assert steps.source == ("annotated" if is_marked else "inferred")
    whole = [(start, stop) for start, stop in true_steps(truth["phases"]) if stop < history.num_events]
    found = [each for each in steps.steps if each.name.startswith("step ")]
    if len(found) > len(whole) and not found[-1].is_complete:
        found.pop()  # the truth has whole ones only
    cut = sum(start == 0 for start, _ in whole)
    assert len(whole) - cut <= len(found) <= len(whole)
    for each, (start, stop) in zip(found[::-1], whole[::-1], strict=False):
        # In a step of its own; a step in place makes no event, so it may seem to end right before.
        assert each.start_event <= stop <= each.end_event + 1
        if history.spans.is_positional:
            continue  # The first forward can't be told from what is before it.
        assert each.start_event <= start + 8
        assert each.end_event > start


PHASES: Final = ("torch-2.14/adamw_fp32", "torch-2.14/adamw_fp32_pystacks", "torch-2.14/checkpointed",
                 "torch-2.14/lora", "torch-2.14/annotated", "torch-2.14/leak", "torch-2.6/adamw_fp32")  # fmt: skip
SLACK_EVENTS: Final = 12


@pytest.mark.parametrize("name", PHASES)
def test_phases_lie_where_the_program_made_them(name: str) -> None:
    truth = read_truth(name)
    history = DeviceHistory(load_snapshot(fixture_path(name)), truth["device"])
    found = [(phase.name, phase.start_event) for each in history.steps.steps for phase in each.phases]
    for event, label in truth["phases"]:
        phase = label.rpartition(".")[2]
        if label.startswith("step") and phase in ("forward", "backward", "optimizer"):
            assert any(own == phase and abs(start - event) <= SLACK_EVENTS for own, start in found), (label, event)


def test_generation_has_a_step_per_token() -> None:
    truth = read_truth("torch-2.14/kv_cache")
    history = DeviceHistory(load_snapshot(fixture_path("torch-2.14/kv_cache")))
    starts = [event for event, name in truth["phases"] if name.startswith("decode")]
    found = [each.start_event for each in history.steps.steps if each.name.startswith("step ")]
    near = [start for start in starts if any(abs(start - own) <= SLACK_EVENTS for own in found)]
    assert len(near) >= len(starts) - 1


# ------------------------------------------------------------------------------------ moments, rows


def test_at_a_step_is_its_peak() -> None:
    history = train(Program(), 3).history()
    table = tabulate_steps(history)
    for row in table.rows:
        if row.name.startswith("step "):
            moment = find_moment(history, row.name.replace(" ", ":"))
            assert moment.event == row.peak_event
            assert history.totals.requested_bytes[moment.event + 1] == row.peak_bytes


def test_a_step_that_is_not_there() -> None:
    history = train(Program(), 3).history()
    with pytest.raises(UsageError, match=r"no step:7: there are 0 to 2"):
        find_moment(history, "step:7")
    run = Program()
    run.alloc("a", 512, user("f"))
    with pytest.raises(UsageError, match=r"no step:0: no steps can be told in this history"):
        find_moment(run.history(), "step:0")


@pytest.mark.parametrize("at_moment", ["step:", "step:x", "step:-1", "step:1.5", "step:99999999999999999999"])
def test_what_is_no_step(at_moment: str) -> None:
    with pytest.raises(UsageError, match="is no moment"):
        find_moment(train(Program(), 1).history(), at_moment)


def test_rows_by_step_say_when_it_was_born() -> None:
    run = train(Program(), 3)
    run_forward(run, 3)
    run.elder("old", 4096)
    history = run.history()
    result = ledger(history, find_moment(history, "end"), by=By.STEP)
    rows = {row.key: row.bytes for row in result.rows}
    assert rows["(before the history)"] == 4096
    weights = sum(WEIGHTS.values())
    assert rows["init"] == weights
    assert rows["step 0"] == 2 * weights
    assert sum(rows.values()) == result.balance.requested_bytes


def test_case_06_the_step_and_what_was_before_it() -> None:
    history = DeviceHistory(load_snapshot(fixture_path("cases/06_step_peak_reconciles/a.pickle")))
    moment = find_moment(history, "step:1")
    result = ledger(history, moment, by=By.STEP)
    assert [(row.key, row.bytes) for row in result.rows] == [("init", 100 * MIB), ("step 1", 20 * MIB)]
    first = next(row for row in tabulate_steps(history).rows if row.name == "step 1")
    assert (first.start_bytes, first.peak_bytes, first.peak_event) == (100 * MIB, 120 * MIB, moment.event)


def test_two_ranges_of_one_name_are_two_steps() -> None:
    events = [b.alloc(0x7F0000000000 + n * 512, 512, frames=[b.frame()], time_us=100 + 10 * n) for n in range(8)]
    ranges = [(100, 120), (140, 160)]
    annotations = [b.annotation("ProfilerStep#1", stage, time) for pair in ranges
                   for stage, time in zip(("START", "END"), pair, strict=True)]  # fmt: skip
    value = b.snapshot([events], [b.segment(0x7F0000000000, [b.block(512)] * 8)], external_annotations=annotations)
    history = history_of(value)
    named = [(each.name, each.start_event) for each in history.steps.steps if each.name.startswith("step ")]
    assert named == [("step 1", 0), ("step 1 #2", 4)]
    assert find_moment(history, "step:1").event == 2
    keys = [row.key for row in ledger(history, find_moment(history, "end"), by=By.STEP).rows]
    assert len(set(keys)) == len(keys)


# -------------------------------------------------------------------------------- a step of a real GPU


def test_a_whole_step_of_a_large_model(shared: Path) -> None:
    """Neither its parameters nor its gradients have Python frames."""
    paths = sorted((shared / "snapshots/public").rglob("lm-2.7b-ctx128-fullstep*"))
    paths = [path for path in paths if path.is_file() and path.suffix in (".pickle", ".gz", ".zst", ".json")]
    if not paths:
        pytest.skip("the recording isn't there")
    history = DeviceHistory(load_snapshot(paths[0]))
    rows = sum_categories(history, history.lifetimes.live_at(find_moment(history, "peak").event))
    found = {label: row.bytes / GIB for label, row in zip(CATEGORY_LABELS, rows, strict=True)}
    assert found["parameter"] == pytest.approx(12.69, rel=0.01)
    assert found["gradient"] == pytest.approx(12.69, rel=0.01)
    assert found["optimizer_state"] == pytest.approx(25.38, rel=0.01)

"""The user's own rules: `--rules FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS, Category
from snapscope.classify.user_rules import UserRule, match_rules, read_rules
from snapscope.errors import UsageError
from tests.classify.program import ENGINE, Program, Stack, at, construct, forward, train, user
from tests.cli.running import fail, fixture, succeed


def rule(**fields: str) -> str:
    return "\n".join(["[[rule]]", *(f"{key} = '{value}'" for key, value in fields.items()), ""])


def read(folder: Path, text: str) -> tuple[UserRule, ...]:
    path = folder / "rules.toml"
    path.write_text(text, encoding="utf-8")
    return read_rules(str(path))


def test_a_rule_is_read(tmp_path: Path) -> None:
    text = "# mine\n" + rule(file="my_optim/.*", function="^init", category="optimizer_state", fine="momentum_buffer")
    first, second = read(tmp_path, text + rule(function="make", category="temporary"))
    assert first.file is not None
    assert (first.file.pattern, first.category) == ("my_optim/.*", Category.OPTIMIZER_STATE)
    assert first.fine is not None
    assert FINE_LABELS[first.fine] == "momentum_buffer"
    assert (second.file, second.fine) == (None, None)


ERRORS = {
    "no TOML": ("[[rule]\n", "is no TOML: "),
    "no TOML, too deep": ("a = " + "[" * 5000, "is no TOML: "),
    "empty": ("", "holds no rules: write tables [[rule]] with file, function, category"),
    "other table": ("[[rules]]\nfile = 'a'\n", "holds no rules"),
    "more than rules": (rule(file="a", category="gradient") + "[other]\na = 1\n", "holds no rules"),
    "one table": ("[rule]\nfile = 'a'\n", "holds no rules"),
    "a number": ("rule = 1\n", "holds no rules"),
    "an empty list": ("rule = []\n", "holds no rules"),
    "a list of numbers": ("rule = [1]\n", "rule 1: file, function, category and fine are texts"),
    "a number as file": ("[[rule]]\nfile = 1\ncategory = 'gradient'\n", "rule 1: file, function, category and fine "),
    "unknown key": (rule(file="a", categroy="gradient"), "rule 1: unknown key 'categroy'"),
    "nothing to match": (rule(category="gradient"), "rule 1: needs file or function"),
    "no category": (rule(file="a"), f"rule 1: category is one of {', '.join(CATEGORY_LABELS)}"),
    "unknown category": (rule(file="a", category="Gradient"), "rule 1: category is one of parameter, gradient, "),
    "unknown fine label": (rule(file="a", category="gradient", fine="gard"), "rule 1: fine is one of weight, buffer, "),
    "bad expression": (rule(file="(", category="gradient"), "rule 1: file '(' is no regular expression: missing )"),
    "bad second expression": (
        rule(file="a", category="gradient") + rule(file="a", function="*", category="gradient"),
        "rule 2: function '*' is no regular expression: nothing to repeat",
    ),
    "too large a repetition": (rule(file="a{99999999999}", category="gradient"), "is no regular expression: "),
    "too many": (rule(file="a", category="gradient") * 128, "holds 128 rules, at most 127 are read"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_wrong_is_said(name: str, tmp_path: Path) -> None:
    text, message = ERRORS[name]
    with pytest.raises(UsageError) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(str(tmp_path / "rules.toml"))
    assert message in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"can't read .*: No such file or directory"):
        read_rules(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match=r"can't read .*: Is a directory"):
        read_rules(str(tmp_path))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no TOML: "):
        read_rules(str(tmp_path / "bytes.toml"))


def test_as_many_as_are_read_all_work(tmp_path: Path) -> None:
    text = rule(file="nowhere", category="gradient") * 126 + rule(file="train.py", category="activation")
    run = Program()
    run.alloc("a", 512, user("f"))
    assert run.categories(read(tmp_path, text))["a"] == "activation"


# ----------------------------------------------------------------------------------------- matching


def matched(folder: Path, text: str, *stacks: Stack) -> list[int]:
    run = Program()
    for number, stack in enumerate(stacks):
        run.alloc(f"a{number}", 512, stack)
    history = run.history()
    found = match_rules(read(folder, text), history.snapshot.stacks, history.sites)
    return [
        int(found[stack]) if stack >= 0 else -1
        for stack in (int(history.lifetimes.alloc_stack[row]) for row in run.rows(history).values())
    ]


def test_expressions_are_searched_for_in_any_frame(tmp_path: Path) -> None:
    stacks = (user("make_batch"), forward(7), construct(), ENGINE)
    assert matched(tmp_path, rule(file="rain", category="gradient"), *stacks) == [0, 0, 0, -1]
    assert matched(tmp_path, rule(function="batch$", category="gradient"), *stacks) == [0, -1, -1, -1]
    assert matched(tmp_path, rule(file="^torch/nn/modules/module.py$", category="gradient"), *stacks) == [-1, 0, 0, -1]
    assert matched(tmp_path, rule(file="nowhere", category="gradient"), *stacks) == [-1] * 4


def test_file_and_function_must_match_in_one_frame(tmp_path: Path) -> None:
    both = rule(file="model.py", function="train", category="gradient")
    assert matched(tmp_path, both, forward(7)) == [-1]
    assert matched(tmp_path, rule(file="model.py", function="forward", category="gradient"), forward(7)) == [0]


def test_the_first_rule_wins_wherever_its_frame_is(tmp_path: Path) -> None:
    outer, inner = rule(function="<module>", category="gradient"), rule(function="forward", category="temporary")
    assert matched(tmp_path, outer + inner, forward(7)) == [0]
    assert matched(tmp_path, inner + outer, forward(7)) == [0]


# -------------------------------------------------------------------------------------- overruling


def test_rules_overrule_everything_else(tmp_path: Path) -> None:
    run = train(Program())
    rules = read(
        tmp_path,
        rule(function="_init_group", category="parameter", fine="ema") + rule(function="convert", category="temporary"),
    )
    before, after = run.categories(), run.categories(rules)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"w1", "w2", "m_w1", "v_w1", "m_w2", "v_w2"}
    assert (after["w1"], after["m_w1"]) == ("temporary", "parameter")
    assert (run.fine(rules)["w1"], run.fine(rules)["m_w1"]) == ("intermediate", "ema")
    assert {run.evidence(rules)[name] for name in changed} == {"USER_RULE"}
    assert {run.confidence(rules)[name] for name in changed} == {"high"}


def test_rules_reach_what_is_older_than_the_history(tmp_path: Path) -> None:
    run = Program()
    run.elder("old", 4096, user("load", 5, "init.py"))
    run.elder("nameless", 4096)
    run.alloc("new", 512, user("f"))
    rules = read(tmp_path, rule(file="^init.py$|/init.py$", category="optimizer_state"))
    assert run.categories(rules)["old"] == "optimizer_state"
    assert run.evidence(rules)["nameless"] != "USER_RULE"


def test_rules_leave_the_sums_alone(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(rule(file="gpt.py", category="temporary", fine="kept"), encoding="utf-8")
    snap = fixture("torch-2.14/oom_forward")
    plain = succeed("ledger", snap, "--json").document()
    ruled = succeed("ledger", snap, "--rules", str(path), "--json").document()
    assert sum(ruled["categories"].values()) == sum(plain["categories"].values()) == plain["requested_bytes"]
    assert ruled["categories"] != plain["categories"]
    assert [row["bytes"] for row in ruled["rows"]] == [row["bytes"] for row in plain["rows"]]


@pytest.mark.parametrize("verb", ["summary", "ledger", "timeline", "lifetimes", "steps"])
def test_every_verb_takes_rules(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(rule(function="make", category="gradient"), encoding="utf-8")
    snap = fixture("torch-2.14/oom_optimizer_step")
    shown = succeed(verb, snap, "--rules", str(path), "--json").stdout
    assert shown != succeed(verb, snap, "--json").stdout
    path.write_text("", encoding="utf-8")
    assert fail(2, verb, snap, "--rules", str(path)).startswith(f"{path} holds no rules")


def test_paths_in_rules_are_normalised_ones(tmp_path: Path) -> None:
    stack = (at("torch/optim/adamw.py", "_init_group"), *user("f"))
    assert matched(tmp_path, rule(file="^torch/optim/adamw", category="gradient"), stack) == [0]
    assert matched(tmp_path, rule(file="site-packages", category="gradient"), stack) == [-1]

"""The reference documents say what is there: options, exit codes, moments, keys; and links lead somewhere."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import pytest

from snapscope.analyses.moments import FORMS, find_moment
from snapscope.classify.evidence import WORDS, Evidence
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.classify.user_rules import read_rules
from snapscope.cli.root import VERBS
from snapscope.errors import ExitCode, UsageError
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from snapscope.steps import _CODE_NAMES, _STEP_NAME
from tests.cli.goldens import IS_UPDATE
from tests.cli.running import run_cli
from tests.cli.schemas import type_of, walk
from tests.conftest import ROOT, fixture_path
from tests.docs.pages import PAGES, rows_of, sections_of

CLI: Final = sections_of(ROOT / "docs/reference/cli.md")
JSON: Final = sections_of(ROOT / "docs/reference/json-schema.md")
FROZEN: Final[dict[str, dict[str, str]]] = json.loads((ROOT / "tests/golden/cli_schema.json").read_bytes())


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def documented_options(verb: str) -> dict[str, str]:
    own = [(cells[0], cells[1]) for cells in rows_of(CLI[verb])]
    shared = [
        (cells[0], cells[2]) for cells in rows_of(CLI["Options"]) if cells[1] == "all" or verb in cells[1].split(", ")
    ]
    return {quoted(name)[0]: text for name, text in (*own, *shared)}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_section_with_all_its_options(verb: str) -> None:
    assert f"    snapscope {verb} " in CLI[verb]
    command = import_module(f"snapscope.cli.{verb}").command
    options = {option.opts[-1]: option for option in command.params if isinstance(option, click.Option)}
    documented = documented_options(verb)
    names = {written.split()[0]: written for written in documented}
    assert set(names) == {*options, "--help"}
    for name, option in options.items():
        assert (len(names[name].split()) == 1) == option.is_flag, names[name]
        values = set(quoted(documented[names[name]]))
        if isinstance(option.type, click.Choice):
            assert set(option.type.choices) <= values, name
        elif isinstance(option.default, int) and not option.is_flag:
            assert str(option.default) in documented[names[name]], name


def test_every_verb_is_in_the_first_table() -> None:
    rows = rows_of(CLI["Commands"])
    assert [quoted(cells[0])[0] for cells in rows] == list(VERBS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"| `snapscope {verb} " in readme


def test_exit_codes_are_documented() -> None:
    assert sorted(int(cells[0]) for cells in rows_of(CLI["Exit codes"])) == sorted(ExitCode)


def test_moments_are_documented_and_known() -> None:
    documented = [quoted(cells[0])[0] for cells in rows_of(CLI["Moments"])]
    named = re.split(r", | or ", FORMS.removesuffix(" (µs or ISO)"))
    assert sorted(documented) == sorted(named)
    history = DeviceHistory(load_snapshot(fixture_path("torch-2.14/oom_forward")))
    with_steps = DeviceHistory(load_snapshot(fixture_path("torch-2.14/annotated")))
    for form in documented:
        if form == "step:N":
            assert find_moment(with_steps, "step:1").label == "step:1"
            continue
        text = form.replace(":N", ":1").replace("time:T", "time:2026-11-29T13:33:17")
        assert find_moment(history, text).label == text
    with pytest.raises(UsageError):
        find_moment(history, "noon")


# -------------------------------------------------------------------------------------------- JSON


def documented_keys(section: str, prefix: str = "") -> dict[str, set[str]]:
    """Return key paths with the types that a table gives them; a link stands for the keys of its section."""
    keys: dict[str, set[str]] = {}
    for key, types, unit, _ in rows_of(JSON[section]):
        assert unit in ("", "B", "µs", "event"), (section, key)
        is_bytes = "bytes" in re.split(r"[._\[\]`]+", key)[-2:] or key.strip("`").endswith("_bytes_asked")
        is_bytes = is_bytes and types != "array"
        assert is_bytes == (unit == "B"), (section, key)
        spliced = re.fullmatch(r"\(\[(\w+)\]\(#\w+\)( or null)?\)", key)
        if spliced:
            own = documented_keys(spliced[1], prefix)
            if spliced[2]:
                own = {path: {*own[path], "null"} if "." not in path else own[path] for path in own}
            keys |= own
            continue
        path = prefix + quoted(key)[0]
        shared = re.fullmatch(r"\[(\w+)\]\(#(\w+)\)( or null)?", types)
        if shared:
            assert shared[1] == shared[2]
            keys[path] = {"object", "null"} if shared[3] else {"object"}
            keys |= documented_keys(shared[1], f"{path}.")
        else:
            keys[path] = set(types.split(" or "))
    return keys


@pytest.mark.parametrize("verb", FROZEN)
def test_documented_keys_are_the_keys(verb: str) -> None:
    documented = documented_keys("Common") | documented_keys(verb)
    frozen = {path: set(types.split(" or ")) for path, types in FROZEN[verb].items()}
    # What the frozen interface has never seen filled may have its contents documented all the same.
    empty = [
        path for path, types in frozen.items()
        if types == {"null"} or (types == {"array"} and f"{path}[]" not in frozen)
    ]  # fmt: skip
    unseen = {path for path in documented for above in empty if path.startswith((f"{above}.", f"{above}[]"))}
    assert sorted(documented) == sorted({*frozen, *unseen})
    for path, types in frozen.items():
        # No recording of ours shows every type that may stand there.
        assert types <= documented[path], path


@pytest.mark.parametrize("path", sorted((ROOT / "fixtures/runs/oom").glob("*.pickle.gz")), ids=lambda path: path.name)
@pytest.mark.parametrize("verb", ["oom", "fragmentation"])
def test_keys_of_recordings_are_documented(verb: str, path: Path) -> None:
    documented = documented_keys("Common") | documented_keys(verb)
    for key, value in walk(json.loads(run_cli(verb, str(path), "--capacity", "80GiB", "--json").stdout)):
        assert type_of(value) in documented[key], key


ANSWERS: Final = {
    "verdict": "verdict",
    "requested_bytes": "requested_bytes",
    "segment_bytes_asked": "segment_bytes_asked",
    "device_free_bytes": "device_free_bytes",
    "request_pool_holes_bytes": "holes_bytes",
    "request_pool_num_holes": "num_holes",
    "request_pool_largest_hole_bytes": "largest_hole_bytes",
    "other_size_class_bytes": "other_size_class_free_bytes",
    "private_pool_bytes": "private_pool_free_bytes",
}


@pytest.mark.parametrize("path", sorted((ROOT / "fixtures/runs/oom").glob("*.answer.json")), ids=lambda path: path.name)
def test_verdicts_are_those_of_the_recordings(path: Path) -> None:
    """The promise of `docs/explanation/oom.md`."""
    answer = json.loads(path.read_bytes())
    report = json.loads(run_cli("oom", str(path).replace(".answer.json", ".pickle.gz"), "--json").stdout)
    wanted = {key: answer[name] for key, name in ANSWERS.items() if name in answer}
    assert {key: report[key] for key in wanted} == wanted
    ledger = {key: size for key, size in answer.get("ledger", {}).items() if report["ledger"].get(key) is not None}
    assert {key: report["ledger"][key] for key in ledger} == ledger


# -------------------------------------------------------------------------------------- categories

CATEGORIES: Final = ROOT / "docs/explanation/categories.md"
RULES: Final = sections_of(ROOT / "docs/how-to/write-category-rules.md")


def evidence_rows() -> list[str]:
    return [f"| `{each.name.lower()}` | {WORDS[each].confidence.label} | {WORDS[each].text} |" for each in Evidence]


def test_kinds_of_evidence_are_those_of_the_code() -> None:
    """UPDATE_GOLDEN=1 writes the table of `docs/explanation/categories.md` anew."""
    text = CATEGORIES.read_text(encoding="utf-8")
    before, header, after = text.partition("| evidence | confidence | says |\n|---|---|---|\n")
    assert header
    table, blank, rest = after.partition("\n## ")
    made = "\n".join(evidence_rows()) + "\n"
    if IS_UPDATE:
        CATEGORIES.write_text(before + header + made + blank + rest, encoding="utf-8")
        return
    assert table.splitlines() == made.splitlines(), "UPDATE_GOLDEN=1 pytest tests/docs writes it"


def test_categories_are_documented_with_their_letters() -> None:
    rows = [(quoted(cells[0])[0], cells[1]) for cells in rows_of(CLI["Categories"])]
    assert rows == [(label[0].upper(), label) for label in CATEGORY_LABELS]
    assert [cells[0] for cells in rows_of(RULES["Fine labels"])] == list(CATEGORY_LABELS)


def test_fine_labels_are_documented() -> None:
    assert [label for cells in rows_of(RULES["Fine labels"]) for label in quoted(cells[1])] == list(FINE_LABELS)
    used = quoted(" ".join(cells[1] for cells in rows_of(sections_of(CATEGORIES)["What each category holds"])))
    assert set(used) <= set(FINE_LABELS)


def test_keys_of_a_rule_are_documented(tmp_path: Path) -> None:
    keys = [quoted(cells[0])[0] for cells in rows_of(RULES["2. Write the rules"])]
    path = tmp_path / "rules.toml"
    values = {"category": "gradient", "fine": "grad"}
    path.write_text("[[rule]]\n" + "".join(f"{key} = '{values.get(key, key)}'\n" for key in keys), encoding="utf-8")
    (rule,) = read_rules(str(path))
    assert rule.file is not None
    assert rule.function is not None
    assert (keys, rule.fine) == (["file", "function", "category", "fine"], FINE_LABELS.index("grad"))


def test_phases_are_documented() -> None:
    documented = {quoted(cells[0])[0] for cells in rows_of(CLI["Phases"])}
    assert documented == {*_CODE_NAMES.values(), "data"}


def test_names_of_steps_are_names_of_steps() -> None:
    for name in ("ProfilerStep#3", "## step 3 ##", "step 3", "iteration 3"):
        assert f"`{name}`" in CLI["steps"], name
        match = _STEP_NAME.fullmatch(name)
        assert match
        assert match[1] == "3"


# -------------------------------------------------------------------------------------------- keys

KEY_NAMES: Final = {
    "←": "left", "→": "right", "↑": "up", "↓": "down", "+": "plus", "-": "minus", "/": "slash", "?": "question_mark",
    "Tab": "tab", "Enter": "enter",
}  # fmt: skip


def test_keys_of_the_tutorial_are_bound() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "snapscope/tui").rglob("*.py"))
    bound = {key for keys in re.findall(r'Binding\(\s*"([^"]+)"', sources) for key in keys.split(",")}
    section = sections_of(ROOT / "docs/tutorial/first-snapshot.md")["5. Look around"]
    keys = [key for cells in rows_of(section) for key in quoted(cells[0])]
    assert len(keys) > 10
    assert {KEY_NAMES.get(key, key) for key in keys} <= bound


# ------------------------------------------------------------------------------------------- links


def anchors_of(page: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", heading.strip("`").lower()).replace(" ", "-") for heading in sections_of(page)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert not target.startswith("/"), target
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors_of(there), target


def test_every_page_is_reached_from_the_first_one() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "README.md" or f"]({name})" in index, name
    assert "](docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_fixtures_that_are_named_are_there() -> None:
    for page in PAGES:
        for name in re.findall(r"\bfixtures/[\w./-]+\.(?:pickle\.gz|pickle|json)\b", page.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), (page, name)


def test_lines_are_not_too_long() -> None:
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in text.split("\n"):
            assert line.startswith("|") or len(line) <= 120, (page.name, line)
            assert line == line.rstrip(), (page.name, line)

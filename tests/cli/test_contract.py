"""The public interface: verbs, options, exit codes. It changes only on purpose, with a changelog line."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import pytest

from snapscope import __version__
from snapscope.cli.root import VERBS as VERB_TITLES
from snapscope.cli.root import root
from snapscope.errors import ExitCode
from snapscope.native import reader_name
from tests.cli.goldens import check_frozen
from tests.cli.running import TABLE_VERBS, TEXT_VERBS, VERBS, fail, fixture, run_cli, run_process, succeed

SMALL: Final = fixture("cases/06_step_peak_reconciles/a.pickle")
OOM: Final = fixture("cases/02_fragmentation_oom/a.pickle")
LEAK: Final = fixture("cases/07_leak_per_step/a.pickle")
NO_STEPS: Final = fixture("cases/15_odd_files/no_traces.pickle")


def command_of(verb: str) -> click.Command:
    command = import_module(f"snapscope.cli.{verb}").command
    assert isinstance(command, click.Command)
    return command


def facts_of(option: click.Option) -> dict[str, str]:
    """Return what of an option may not change: its spellings, its values, its default."""
    name = " ".join(option.opts)
    if option.is_flag:
        return {name: "flag"}
    choices = list(option.type.choices) if isinstance(option.type, click.Choice) else []
    default = option.default if isinstance(option.default, (str, int)) else "none"
    return {
        name: f"{option.metavar or 'one of'}, default {default}",
        **{f"{name} {choice}": "choice" for choice in choices},
    }


def test_verbs_and_options_are_frozen() -> None:
    documents: dict[str, dict[str, str]] = {}
    for verb in VERBS:
        parameters = command_of(verb).params
        arguments = [parameter for parameter in parameters if isinstance(parameter, click.Argument)]
        documents[verb] = {"FILE": ", ".join("required" if found.required else "optional" for found in arguments)}
        for option in sorted((p for p in parameters if isinstance(p, click.Option)), key=lambda p: p.opts[-1]):
            documents[verb].update(facts_of(option))
    check_frozen("cli_options.json", documents)


def test_no_option_is_declared_twice() -> None:
    for verb in VERBS:
        names = [name for parameter in command_of(verb).params for name in parameter.opts]
        assert sorted(names) == sorted(set(names)), verb


def test_verbs_are_listed_in_the_root_help() -> None:
    assert tuple(VERB_TITLES) == VERBS
    listed = succeed("--help").text
    for verb, title in VERB_TITLES.items():
        assert f"{verb} " in listed
        assert title in listed


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_that_names_real_options(verb: str) -> None:
    command = command_of(verb)
    assert command.epilog is not None
    assert command.epilog.startswith(f"Example: snapscope {verb} ")
    assert command.help
    words = command.epilog.split()
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known | {"-"}
    shown = succeed(verb, "--help").text
    assert "Example: snapscope" in shown
    assert succeed(verb, "-h").text == shown
    for option in command.params:
        assert isinstance(option, click.Argument) or (isinstance(option, click.Option) and option.help), option.name


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_the_example_runs(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The demo has all that the examples ask for: an oom event, stacks, attention.
    shutil.copy(fixture("torch-2.14/oom_optimizer_step"), tmp_path / "snap.pickle")
    monkeypatch.chdir(tmp_path)
    epilog = command_of(verb).epilog
    assert epilog is not None
    ran = succeed(*epilog.split()[2:])
    assert ran.stdout or len(list(tmp_path.iterdir())) == 2


def test_root_options() -> None:
    assert succeed("--version").text == f"snapscope {__version__} ({reader_name()} reader)\n"
    shown = succeed("--help").text
    assert succeed("-h").text == shown
    assert "Example: snapscope " in shown
    assert {name for parameter in root.params for name in parameter.opts} == {"--version"}


@pytest.mark.parametrize(
    ("words", "offered"), [("snapscope led", "ledger"), ("snapscope ledger --ca", "--capacity"), ("snapscope ", "open")]
)
def test_shells_complete(words: str, offered: str) -> None:
    env = {"_SNAPSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    ran = run_process(env=env)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert f"plain,{offered}" in ran.stdout.decode().split()


def test_exit_codes_are_frozen() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "CHECK_FAILED": 1,
        "USAGE": 2,
        "INPUT": 3,
        "BUG": 70,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize("verb", TEXT_VERBS)
@pytest.mark.parametrize("form", ["", "--json"])
def test_success_is_0_and_silent(verb: str, form: str) -> None:
    ran = succeed(verb, SMALL, *form.split())
    assert ran.stdout.endswith(b"\n")


WRONG_USE: Final = {
    "unknown verb": (["sumary", SMALL], "no verb 'sumary': there are open, summary, ledger, oom, fragmentation"),
    "no file": (["summary"], "Missing argument 'FILE'"),
    "two files": (["summary", SMALL, SMALL], "unexpected extra argument"),
    "unknown option": (["summary", SMALL, "--jsn"], "No such option '--jsn'"),
    "option without value": (["ledger", SMALL, "--at"], "requires an argument"),
    "csv of a page": (["summary", SMALL, "--csv"], "No such option '--csv'"),
    "json and csv": (["ledger", SMALL, "--json", "--csv"], "--json and --csv exclude each other"),
    "grouping": (["ledger", SMALL, "--by", "colour"], "'colour' is not one of"),
    "moment": (["ledger", SMALL, "--at", "noon"], "'noon' is no moment: use peak"),
    "moment of no oom": (["ledger", SMALL, "--at", "oom"], "no oom event in the history of device 0"),
    "device that isn't": (["summary", SMALL, "--device", "3"], "no device 3 in this snapshot (there are: device 0)"),
    "device that is none": (["summary", SMALL, "--device", "gpu"], "'gpu' is no device"),
    "step": (["ledger", SMALL, "--at", "step:9"], "no step:9: there are 1 to 1"),
    "step where there are none": (["ledger", NO_STEPS, "--at", "step:0"], "no step:0: no steps can be told in this"),
    "focus on nothing": (
        ["ledger", SMALL, "--focus", "no[w]here"],
        "no allocation has a frame that matches 'no[w]here'",
    ),
    "rules that aren't there": (["ledger", SMALL, "--rules", "no.toml"], "can't read no.toml: No such file"),
    "rules that are none": (["steps", SMALL, "--rules", SMALL], "is no TOML: "),
    "output is a folder": (["summary", SMALL, "-o", "docs", "--force"], "-o docs is a folder: name a file in it"),
    "output is the snapshot": (["summary", SMALL, "-o", SMALL, "--force"], "is the snapshot itself: it would be lost"),
    "size": (["summary", SMALL, "--capacity", "80 elephants"], "'80 elephants' is no size"),
    "focus": (["ledger", SMALL, "--focus", "("], "'(' is no regular expression"),
    "ignore": (["lifetimes", SMALL, "--ignore", "*"], "'*' is no regular expression"),
    "top": (["summary", SMALL, "--top", "-1"], "Invalid value for '--top'"),
    "points": (["timeline", SMALL, "--points", "1"], "Invalid value for '--points'"),
    "color": (["summary", SMALL, "--color", "blue"], "'blue' is not one of"),
    "output folder": (["summary", SMALL, "-o", "no/such/folder/out"], "can't write no/such/folder/out: "),
    "output exists": (["summary", SMALL, "-o", "README.md"], "README.md exists: --force overwrites it"),
    "view": (["open", SMALL, "--view", "pie"], "'pie' is not "),
    "open without terminal": (["open", SMALL], f"`snapscope summary {SMALL}`"),
    "open of nothing": (["open"], "give a FILE, or --demo"),
    "diff of one": (["diff", SMALL], "Missing argument 'AFTER'"),
    "diff of stdin twice": (["diff", "--", "-", "-@step:1"], "only one of BEFORE and AFTER can be -"),
    "diff with a limit of nothing": (
        ["diff", SMALL, OOM, "--fail-above", "weights=1MiB"],
        "'weights=1MiB' is no limit",
    ),
    "diff with a limit that is none": (["diff", SMALL, OOM, "--fail-below", "much"], "'much' is no size"),
    "diff as two forms": (["diff", SMALL, OOM, "--markdown", "--json"], "--markdown and --json exclude each other"),
    "diff at a moment that isn't": (["diff", SMALL, f"{OOM}@step:99"], "no step:99"),
    "diff of a device that isn't": (["diff", SMALL, f"{OOM}@device:7"], "no device 7 in this snapshot"),
    "open of both": (["open", SMALL, "--demo"], "give a FILE, or --demo"),
}


@pytest.mark.parametrize("case", WRONG_USE)
def test_wrong_use_is_2_and_says_what(case: str) -> None:
    arguments, message = WRONG_USE[case]
    assert message in fail(ExitCode.USAGE, *arguments)


def test_no_arguments_show_the_help() -> None:
    ran = run_cli()
    assert (ran.code, ran.stdout) == (ExitCode.USAGE, b"")
    assert ran.stderr.startswith("Usage: snapscope ")
    assert len(ran.stderr.splitlines()) > 10


@pytest.mark.parametrize("arguments", [["summary"], ["ledger", SMALL, "--by", "x"], ["open", SMALL, "--view", "x"]])
def test_wrong_use_points_at_the_help_of_its_verb(arguments: list[str]) -> None:
    assert fail(ExitCode.USAGE, *arguments).endswith(f"(see snapscope {arguments[0]} --help)")


def bad_inputs(folder: Path) -> dict[str, tuple[str, str]]:
    """Return files that are no snapshots, and what must be said of each."""
    made = {
        "json cut off": (b'{"segments": [', "ends in the middle of the JSON"),
        "gzip cut off": (Path(fixture("torch-2.14/oom_forward")).read_bytes()[:2000], "ends in the middle of its gzip"),
        "text": (b"not a snapshot at all\n", "neither a pickle nor JSON"),
        "page": (b"<!DOCTYPE html><html></html>", "HTML page without a snapshot"),
        "zip": (b"PK\x03\x04 archive/data.pkl", "torch.save archive"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        "profiler trace": (b'{"traceEvents": []}', "profiler trace"),
        "other json": (b'{"a": 1}', "no snapshot: found keys a"),
        "other pickle": (b"\x80\x04]\x94(K\x01K\x02e.", "no snapshot: found a list of 2 int"),
        "impossible values": (b'{"segments": [], "device_traces": [[7]]}', "trace of device 0: an event is no dict"),
    }
    found = {
        "empty": (fixture("cases/15_odd_files/empty.pickle"), "0 bytes: the dump failed while being written"),
        "cut off": (fixture("cases/15_odd_files/truncated.pickle"), "ends in the middle of the pickle"),
        "hostile": (fixture("cases/15_odd_files/hostile.pickle"), "posix.mkdir"),
        "missing": ("no-such-file.pickle", "no such file"),
        "folder": ("fixtures", "is a directory"),
    }
    for name, (content, message) in made.items():
        path = folder / f"{name}.pickle"
        path.write_bytes(content)
        found[name] = (str(path), message)
    return found


def test_unreadable_input_is_3_in_one_line_from_every_verb(tmp_path: Path) -> None:
    for case, (path, message) in bad_inputs(tmp_path).items():
        for verb in TEXT_VERBS:
            said = fail(ExitCode.INPUT, verb, path)
            assert said.startswith(f"{path}: "), case
            assert message in said, case
        assert message in fail(ExitCode.INPUT, "summary", path, "--json"), case


def test_unreadable_stdin_is_named_so() -> None:
    assert fail(ExitCode.INPUT, "summary", "-").startswith("stdin: 0 bytes")
    assert fail(ExitCode.INPUT, "ledger", "-", stdin=b"nonsense").startswith("stdin: ")


def test_nothing_is_written_where_the_input_is_unreadable(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fail(ExitCode.INPUT, "lifetimes", fixture("cases/15_odd_files/truncated.pickle"), "--json", "-o", str(out))
    assert not out.exists()


def raising(error: BaseException) -> Any:
    def load(*_arguments: object, **_options: object) -> NoReturn:
        raise error

    return load


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_interruption_is_130(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapscope.opening.load_snapshot", raising(KeyboardInterrupt()))
    ran = run_cli(verb, SMALL)
    # The empty line ends the one on which the terminal shows ^C.
    assert (ran.code, ran.stdout, ran.stderr) == (ExitCode.INTERRUPTED, b"", "\nsnapscope: interrupted\n")


def test_too_little_memory_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapscope.opening.load_snapshot", raising(MemoryError()))
    assert fail(ExitCode.INPUT, "summary", SMALL) == "not enough memory to read this file"


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_a_bug_is_70_in_one_line(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapscope.opening.load_snapshot", raising(RuntimeError("over\nthere\x1b[31m")))
    said = fail(ExitCode.BUG, verb, SMALL)
    assert said == r"a bug in snapscope: RuntimeError: over\nthere\x1b[31m (--debug for more)"


def test_debug_shows_the_traceback_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapscope.opening.load_snapshot", raising(RuntimeError("over there")))
    ran = run_cli("summary", SMALL, "--debug")
    assert (ran.code, ran.stdout) == (ExitCode.BUG, b"")
    assert ran.stderr.startswith("Traceback (most recent call last):\n")
    assert "RuntimeError: over there" in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("snapscope: a bug in snapscope: ")


def test_debug_shows_the_traceback_of_an_error() -> None:
    ran = run_cli("summary", fixture("cases/15_odd_files/empty.pickle"), "--debug")
    assert ran.code == ExitCode.INPUT
    assert "EmptyFileError" in ran.stderr
    assert "0 bytes" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_debug_and_no_cache_change_nothing_where_all_is_well(verb: str) -> None:
    assert succeed(verb, SMALL, "--debug", "--no-cache").stdout == succeed(verb, SMALL).stdout


def test_csv_columns_are_the_keys_of_the_json_rows() -> None:
    for verb in TABLE_VERBS:
        path = {"steps": SMALL, "leaks": LEAK}.get(verb, OOM)
        header = succeed(verb, path, "--csv").lines[0].split(",")
        document = succeed(verb, path, "--json").document()
        if verb == "timeline":  # columns in JSON, rows in CSV
            singular = {"events": "event"}
            columns = [singular.get(key, key) for key, value in document.items() if isinstance(value, list)]
            assert header == [*(key for key in columns if key != "notices"), *document["categories"]]
        elif verb == "steps":  # phases are in JSON only
            keys = [key for key, value in document["steps"][0].items() if isinstance(value, (str, int))]
            assert header == [*keys, *document["steps"][0]["categories"]]
        elif verb == "fragmentation":  # blocks are in JSON only
            assert header == [key for key in document["segments"][0] if key != "blocks"]
        else:
            assert header == list(document["survivors" if verb == "leaks" else "rows"][0])


def test_the_frozen_files_have_one_key_a_line() -> None:
    for name in ("cli_options.json", "cli_schema.json"):
        path = Path("tests/golden") / name
        assert path.read_text(encoding="utf-8") == json.dumps(json.loads(path.read_bytes()), indent=1) + "\n"

"""The keys of `--json` and their types: programs rely on them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.goldens import check_frozen
from tests.cli.running import TEXT_VERBS, load_json, run_cli, succeed
from tests.cli.schemas import diffs, documents, rarities, schema_of, walk
from tests.conftest import ROOT, recordings

EVERY_FILE = sorted(
    [f"fixtures/{name}.pickle.gz" for folder in ("allocator", "runs") for name in recordings(folder)]
    + [path.relative_to(ROOT).as_posix() for path in (ROOT / "fixtures" / "cases").rglob("*.pickle")]
)


JSON_VERBS = (*TEXT_VERBS, "diff", "check")


def test_keys_and_types_are_frozen() -> None:
    check_frozen("cli_schema.json", {verb: schema_of(verb) for verb in (*JSON_VERBS, "ranks")})


@pytest.mark.parametrize("verb", JSON_VERBS)
def test_every_document_begins_with_the_same_keys(verb: str) -> None:
    for command, document in documents(verb):
        assert list(document)[:4] == ["schema", "file", "device", "notices"], command
        assert document["schema"] == 1
        assert document["file"] == command.split()[1]


def is_bytes_key(path: str) -> bool:
    name = path.replace("[]", "").rpartition(".")[2]
    return name == "bytes" or name.endswith("_bytes")


def check_numbers(document: Any, command: str) -> None:
    for path, value in walk(document):
        if is_bytes_key(path) and value is not None and not isinstance(value, list):
            assert type(value) is int, (command, path, value)
        if type(value) is float:
            assert path.endswith("share"), (command, path, value)


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_bytes_are_integers_in_every_fixture(verb: str) -> None:
    for name in EVERY_FILE:
        ran = run_cli(verb, name, "--json")
        if ran.code == 3:
            continue
        assert (ran.code, ran.stderr) == (0, ""), name
        check_numbers(load_json(ran.stdout), f"{verb} {name}")


def test_bytes_are_integers_in_differences() -> None:
    for command, document in diffs():
        check_numbers(document, command)


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_host_is_a_device_by_name(verb: str) -> None:
    assert succeed(verb, "-", "--device", "host", "--json", stdin=rarities()).document()["device"] == "host"


def test_every_verb_gives_the_same_notices() -> None:
    # An oddity of the file is one whichever question was asked.
    for name in EVERY_FILE:
        found = [
            load_json(ran.stdout)["notices"]
            for ran in (run_cli(verb, name, "--json") for verb in TEXT_VERBS)
            if ran.code == 0
        ]
        assert all(notices == found[0] for notices in found), name

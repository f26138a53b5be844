"""`snapscope ranks`: the answers asked for, folders, processes, and the contract of every verb."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.cli import rank_pool
from snapscope.cli.rank_files import RankInput
from tests import builders as b
from tests.builders import MIB
from tests.cli.goldens import check_golden
from tests.cli.running import environment, fail, fixture, run_cli, run_process, succeed
from tests.cli.schemas import RANKS, documents, walk
from tests.conftest import FIXTURES, ROOT

FSDP: Final = (fixture("torch-2.14/fsdp_rank0"), fixture("torch-2.14/fsdp_rank2"))
TRUNCATED: Final = FIXTURES / "cases/15_odd_files/truncated.pickle"
EMPTY: Final = FIXTURES / "cases/15_odd_files/empty.pickle"
EXPECTED: Final[dict[str, Any]] = json.loads((FIXTURES / "cases/expected.json").read_bytes())


def report(*arguments: str) -> Any:
    return succeed("ranks", *arguments, "--json").document()


def message_of(document: Any, code: str) -> str:
    (message,) = [notice["message"] for notice in document["notices"] if notice["code"] == code]
    assert isinstance(message, str)
    return message


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the four ranks of case 12."""
    folder = tmp_path / "job"
    folder.mkdir()
    for path in sorted((ROOT / RANKS).iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


# ----------------------------------------------------------------------------------------- answers


def test_case_12_names_the_rank_and_why() -> None:
    expected = EXPECTED["12_rank_imbalance"]["expected"]
    found = report(RANKS)
    assert [rank["peak_bytes"] for rank in found["ranks"]] == expected["peaks"]
    assert [rank["device"] for rank in found["ranks"]] == expected["device_of_rank"]
    assert found["max_over_median"] == expected["max_over_median"]
    assert [f"rank {rank}" for rank in found["outliers"]] == [expected["outlier"]]
    assert [f"rank {rank['rank']}" for rank in found["ranks"] if rank["oom"]] == expected["oom"]
    words = {"new": "only on rank 3", "gone": "not on rank 3"}
    assert [
        [row["site"].replace(" ", ":"), abs(row["delta_bytes"]), words[row["change"]]]
        for row in found["why"]
        if row["change"] != "same"
    ] == expected["why"]
    assert sum(row["delta_bytes"] for row in found["why"]) == found["compared"]["delta_bytes"]
    assert found["first_oom"] == {"rank": 3, "time_us": 1760000000000330, "verdict": "capacity"}
    head = succeed("ranks", RANKS).lines[0]
    assert head.startswith("UNBALANCED: rank 3 peaks at 58.00 GiB, 1.45 × the median of 40.00 GiB")


def test_the_rank_with_the_larger_batch_and_the_category_that_differs() -> None:
    found = report(*FSDP)
    assert found["outliers"] == [2]
    categories = found["compared"]["categories"]
    assert max(categories, key=lambda name: categories[name]) == "activation"
    assert categories["parameter"] == categories["optimizer_state"] == 0
    assert ": activation +81.21 MiB" in succeed("ranks", *FSDP).lines[0]


def test_recorded_ranks_are_as_the_truth_says(shared: Path) -> None:
    runs = shared / "snapshots/runs/ranks"
    for path in sorted(runs.glob("*.answer.json")):
        answer = json.loads(path.read_bytes())
        found = report(str(runs / answer["set"]))
        assert found["outliers"][:1] == [answer["expected_outlier"]]
        assert found["max_over_median"] == answer["max_over_median"]
        assert found["median_peak_bytes"] == answer["median_peak_requested_bytes"]
        assert (found["first_oom"] or {}).get("rank") == answer["first_oom_rank"]
        for rank, truth in zip(found["ranks"], answer["ranks"], strict=True):
            assert Path(rank["file"]).name == Path(truth["file"]).name
            assert (rank["rank"], rank["device"]) == (truth["rank"], truth["device"])
            assert rank["peak_bytes"] == truth["peak_requested_bytes"]
            assert rank["peak_allocated_bytes"] == truth["peak_allocated_bytes"]
            assert rank["peak_reserved_bytes"] == truth["peak_reserved_bytes"]
            assert {name: size for name, size in rank["categories"].items() if size} == truth["categories"]


GOLDENS: Final = (
    ("ranks_12", (RANKS,), "txt json csv"),
    ("ranks_fsdp_top_4", (*FSDP, "--top", "4"), "txt csv"),
    ("ranks_06_one", (fixture("cases/06_step_peak_reconciles/a.pickle"),), "txt"),
)


@pytest.mark.parametrize(("name", "arguments", "forms"), GOLDENS, ids=[case[0] for case in GOLDENS])
def test_output_is_golden(name: str, arguments: tuple[str, ...], forms: str) -> None:
    for form in forms.split():
        options = {"txt": (), "json": ("--json",), "csv": ("--csv",)}[form]
        check_golden(f"cli_{name}.{form}", succeed("ranks", *arguments, *options).stdout)


def test_csv_has_the_ranks_of_the_json() -> None:
    rows = list(csv.DictReader(io.StringIO(succeed("ranks", RANKS, "--csv").text)))
    for row, rank in zip(rows, report(RANKS)["ranks"], strict=True):
        assert int(row["rank"]) == rank["rank"]
        assert int(row["temporary"]) == rank["categories"]["temporary"]
        assert row["oom_verdict"] == (rank["oom"]["verdict"] if rank["oom"] else "")


# ----------------------------------------------------------------------------------------- folders


def test_a_folder_and_its_files_are_the_same() -> None:
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / RANKS).iterdir())
    assert report(*files) == report(RANKS)
    assert report(RANKS, files[1]) == report(RANKS)


def test_what_is_no_snapshot_is_named_and_left(job: Path) -> None:
    (job / "train.log").write_text("step 1\n")
    (job / "rank0.truth.json").write_text('{"segments": 1}')
    (job / "model.pt").write_bytes(b"PK\x03\x04 archive/data.pkl")
    (job / ".hidden").write_bytes(b"")
    found = report(str(job))
    assert len(found["ranks"]) == 4
    assert message_of(found, "other_files") == (
        "3 other files in the folder left alone: model.pt, train.log, rank0.truth.json"
    )


def test_a_rank_that_cannot_be_read_is_named_with_the_reason(job: Path) -> None:
    (job / "rank1_memory_snapshot.pickle").write_bytes(TRUNCATED.read_bytes())
    (job / "rank2_memory_snapshot.pickle").write_bytes(b"")
    found = report(str(job))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 3]
    messages = [notice["message"] for notice in found["notices"] if notice["code"] == "unreadable_files"]
    assert len(messages) == 1
    assert messages[0].startswith("2 files couldn't be read: ")
    assert "rank1_memory_snapshot.pickle (ends in the middle of the pickle" in messages[0]
    assert "rank2_memory_snapshot.pickle (0 bytes: the dump failed" in messages[0]


def test_of_several_iterations_the_last_is_read(tmp_path: Path, job: Path) -> None:
    for number in (9, 10):
        folder = tmp_path / "all" / f"iteration_{number}"
        folder.mkdir(parents=True)
        for path in job.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    found = report(str(tmp_path / "all"))
    assert {Path(rank["file"]).parent.name for rank in found["ranks"]} == {"iteration_10"}
    assert message_of(found, "several_sets").endswith("holds several sets: read iteration_10, not iteration_9")


def test_files_of_one_rank_are_told_apart(tmp_path: Path, job: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "rank0.pickle").write_bytes((job / "rank0_memory_snapshot.pickle").read_bytes())
    found = report(str(job / "rank0_memory_snapshot.pickle"), str(other / "rank0.pickle"))
    assert [rank["rank"] for rank in found["ranks"]] == ["job/0", "other/0"]


@pytest.mark.parametrize("content", [None, b"text"])
def test_a_folder_without_snapshots_is_3(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "file.txt").write_bytes(content)
    assert fail(3, "ranks", str(tmp_path)) == f"{tmp_path}: no snapshot in this folder, nor one folder below"


def test_nothing_that_can_be_read_is_3(job: Path) -> None:
    for path in job.iterdir():
        path.write_bytes(TRUNCATED.read_bytes())
    assert "ends in the middle of the pickle" in fail(3, "ranks", str(job))
    assert fail(3, "ranks", "no-such-file.pickle") == "no-such-file.pickle: no such file"
    assert "0 bytes" in fail(3, "ranks", str(EMPTY))


def test_many_ranks_that_look_identical_are_one_row(tmp_path: Path) -> None:
    address = 0x7F0000000000
    for rank in range(64):
        size = (9 if rank == 50 else 8) * MIB
        made = b.snapshot(
            traces=[[b.segment_alloc(address, 20 * MIB), b.alloc(address, size, frames=[b.frame()])]],
            segments=[
                b.segment(address, [b.block(size, frames=[b.frame()]), b.block(20 * MIB - size, state=b.INACTIVE)])
            ],
        )
        (tmp_path / f"rank{rank}.pickle.gz").write_bytes(gzip.compress(pickle.dumps(made)))
    shown = succeed("ranks", str(tmp_path)).lines
    assert shown[0].startswith("UNBALANCED: rank 50 peaks at 9.00 MiB, 1.12 × the median of 8.00 MiB")
    assert any(line.split()[:4] == ["0-49,", "51-63", "8.00", "1.00"] for line in shown)
    assert max(map(len, shown[1:])) < 200


def test_oddities_of_some_files_name_their_ranks() -> None:
    found = report(fixture("torch-2.0/oom_forward"), *FSDP, fixture("cases/05_history_starts_late/a.pickle"))
    (message,) = {notice["message"] for notice in found["notices"] if notice["code"] == "block_size_estimated"}
    assert message.startswith("rank a: blocks whose exact size")


def test_memory_on_a_device_of_another_rank_is_a_notice() -> None:
    found = report(fixture("torch-2.14/two_gpu"), FSDP[0])
    assert "also reserved memory on device 0, which isn't counted here" in message_of(found, "memory_on_other_devices")


# --------------------------------------------------------------------------------------- contract


def test_every_document_begins_with_the_same_keys() -> None:
    for _, document in documents("ranks"):
        assert list(document)[:4] == ["schema", "file", "device", "notices"]
        for path, value in walk(document):
            if path.endswith("_bytes") and value is not None:
                assert type(value) is int, path
            if type(value) is float:
                assert path.endswith("over_median"), path
        categories = [sum(rank["categories"].values()) for rank in document["ranks"]]
        assert categories == [rank["requested_bytes"] for rank in document["ranks"]]
        assert (
            sum(row["delta_bytes"] for row in document["why"])
            == (document["compared"] or {"delta_bytes": 0})["delta_bytes"]
        )
        assert sorted(str(rank) for group in document["groups"] for rank in group["ranks"]) == sorted(
            str(rank["rank"]) for rank in document["ranks"]
        )


def test_one_file_has_the_notices_of_other_verbs() -> None:
    for name in ("torch-2.0/oom_forward", "cases/05_history_starts_late/a.pickle", "torch-2.14/two_gpu"):
        assert report(fixture(name))["notices"] == succeed("summary", fixture(name), "--json").document()["notices"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'DIR|FILE...'"),
        (("-", RANKS), "- can't be one of several files"),
        ((RANKS, "--at", "noon"), "rank0_memory_snapshot.pickle: --at 'noon' is no moment"),
        ((RANKS, "--at", "oom"), "rank0_memory_snapshot.pickle: no oom event in the history of device 0"),
        ((RANKS, "--device", "7"), "rank0_memory_snapshot.pickle: no device 7 in this snapshot"),
        ((RANKS, "--csv", "--json"), "--json and --csv exclude each other"),
        ((RANKS, "--rules", "no.toml"), "can't read no.toml"),
        ((RANKS, "-o", f"{RANKS}/rank2_memory_snapshot.pickle", "--force"), "is the snapshot itself: it would be lost"),
    ],
)
def test_wrong_use_is_2(arguments: tuple[str, ...], message: str) -> None:
    assert message in fail(2, "ranks", *arguments)


def test_another_moment_is_compared() -> None:
    found = report(RANKS, "--at", "start")
    assert {rank["requested_bytes"] for rank in found["ranks"]} == {0}
    assert found["max_over_median"] is None
    assert [rank["peak_bytes"] for rank in found["ranks"]] == EXPECTED["12_rank_imbalance"]["expected"]["peaks"]
    assert "rank 2 holds 490.10 MiB at event:1958" in succeed("ranks", *FSDP, "--at", "event:1958").lines[0]


def test_the_example_runs(tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "snapshots").mkdir()
    job.rename(tmp_path / "snapshots/iteration_10")
    monkeypatch.chdir(tmp_path)
    assert succeed("ranks", "snapshots/iteration_10").text.startswith("UNBALANCED: rank 3")


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("snapscope.opening.load_snapshot", stop)
    ran = run_cli("ranks", RANKS)
    assert (ran.code, ran.stdout, ran.stderr) == (130, b"", "\nsnapscope: interrupted\n")


def test_columns_fit_a_terminal_of_80() -> None:
    lines = succeed("ranks", *FSDP).lines
    start = next(number for number, line in enumerate(lines) if line.startswith("rank "))
    assert max(map(len, lines[start : start + 3])) <= 80


# -------------------------------------------------------------------------------------- processes


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in processes of their own whatever the sizes."""
    monkeypatch.setattr(rank_pool, "_SMALL_BYTES", 0)


@pytest.mark.usefixtures("pooled")
def test_processes_give_the_same_answer(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = report(str(job))
    (job / "rank9.pickle").write_bytes(TRUNCATED.read_bytes())
    with_damage = report(str(job))
    assert "rank9.pickle (ends in the middle of the pickle" in message_of(with_damage, "unreadable_files")
    assert with_damage["ranks"] == pooled["ranks"]
    assert "_memory_snapshot.pickle: no device 7 in this snapshot" in fail(2, "ranks", str(job), "--device", "7")
    (job / "rank9.pickle").unlink()
    monkeypatch.setattr(rank_pool, "_SMALL_BYTES", 1 << 40)
    assert report(str(job)) == pooled


def die(pipe: Any) -> None:
    while True:
        path, reading = pipe.recv()
        if "rank1" in path:
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.send(rank_pool._read(path, reading, None, names=True))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.usefixtures("pooled")
def test_a_process_that_dies_takes_its_file_with_it_only(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_pool, "serve", die)
    found = report(str(job))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 2, 3]
    assert "rank1_memory_snapshot.pickle (the process that read it was ended by the system" in message_of(
        found, "unreadable_files"
    )


def break_down(pipe: Any) -> None:
    path, _ = pipe.recv()
    try:
        raise ZeroDivisionError("over there")
    except ZeroDivisionError:
        pipe.send(rank_pool._Failed(usage=None, bug=f"{path}: ZeroDivisionError: over there", trace="over there"))


@pytest.mark.usefixtures("pooled")
def test_a_bug_in_a_process_is_70_in_one_line(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_pool, "serve", break_down)
    assert fail(70, "ranks", str(job)).endswith("ZeroDivisionError: over there (--debug for more)")


@pytest.mark.parametrize(("size", "number"), [(1, 16), (1 << 20, 16), (60 << 20, 2), (100 << 30, 1)])
def test_large_files_are_read_two_at_a_time(size: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(rank_pool, "_free_memory", lambda: 1 << 40 if number > 1 else 8 << 30)
    files = [RankInput(path=str(place), size_bytes=size) for place in range(64)]
    assert rank_pool.num_workers(files) == number


LARGE: Final = """
import signal, sys
from snapscope.cli import rank_pool
rank_pool._SMALL_BYTES = 0
rank_pool.num_workers = lambda files: 2
# A job in the background of a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    from snapscope.cli import run
    sys.exit(run(["ranks", *sys.argv[1:]]))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups on this system")
def test_ctrl_c_ends_all_processes_without_tracebacks(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(LARGE, encoding="utf-8")
    files = [str(ROOT / path) for path in FSDP]
    folder = tmp_path / "many"
    folder.mkdir()
    for rank in range(400):
        # One file under several names counts once.
        shutil.copyfile(files[rank % 2], folder / f"rank{rank}.pickle.gz")
    with subprocess.Popen(
        [sys.executable, str(script), str(folder)], cwd=ROOT, env=environment(), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        time.sleep(2.5)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"\nsnapscope: interrupted\n")


def test_a_pipe_gets_plain_text() -> None:
    ran = run_process("ranks", RANKS)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == succeed("ranks", RANKS).stdout

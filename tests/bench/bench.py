"""What the main steps cost in time and memory, beside a plain `pickle.load` of the same file.

    python tests/bench/bench.py --events 10000 100000 1000000

Every measure runs in a process of its own. Seconds are CPU seconds of the work (it is single-threaded, and a
busy machine then spoils nothing), imports excluded; peak RSS is the
whole process's. The ratios are to `pickle.load`, garbage collector on, in the same run; what compares two files
is measured beside a load of both. This prints; it never fails on a number.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
Step = Callable[[Path], object]

BASE: Final = "pickle.load"
STEPS: Final = (
    BASE,
    "open",
    "open, peak, rows by site",
    "the same, exact blocks",
    "open, lifetimes",
)
BASE_OF_TWO: Final = "pickle.load of two"
STEPS_OF_TWO: Final = (BASE_OF_TWO, "diff of two")


def steps() -> dict[str, Step]:
    """Name the steps that are measured; the imports are done before the clock starts."""
    sys.path.insert(0, str(HERE.parents[1]))
    from snapscope.analyses.diff import compare
    from snapscope.analyses.ledger import By, group_live
    from snapscope.analyses.moments import find_moment
    from snapscope.analyses.profile import MemoryProfile, profile
    from snapscope.history import DeviceHistory
    from snapscope.opening import load_snapshot

    def history(path: Path) -> DeviceHistory:
        return DeviceHistory(load_snapshot(path))

    def rows_at_peak(path: Path) -> DeviceHistory:
        device = history(path)
        group_live(device, find_moment(device, "peak"), by=By.SITE)
        return device

    def block_replay(path: Path) -> object:
        return rows_at_peak(path).blocks

    def lifetimes(path: Path) -> object:
        return history(path).lifetimes

    def side(path: Path) -> MemoryProfile:
        # One file is done with before the other is read, as `snapscope diff` does.
        device = history(path)
        return profile(device, find_moment(device, "peak"))

    return {
        "diff of two": lambda path: compare(side(path), side(other_of(path))),
        "open": lambda path: load_snapshot(path),
        "open, peak, rows by site": rows_at_peak,
        "the same, exact blocks": block_replay,
        "open, lifetimes": lifetimes,
    }


def plain_load(path: Path) -> object:
    """Read the file as everybody does."""
    with path.open("rb") as file:
        return pickle.load(file)


def other_of(path: Path) -> Path:
    """Return the second file of a comparison."""
    return path.with_name(f"other-{path.name}")


def load_two(path: Path) -> None:
    """Read both files of a comparison, one after the other."""
    for each in (path, other_of(path)):
        plain_load(each)


def measure(step: str, path: Path) -> dict[str, float]:
    """Run one step once, in this process."""
    loads: dict[str, Step] = {BASE: plain_load, BASE_OF_TWO: load_two}
    run = loads.get(step) or steps()[step]
    start = time.process_time()
    kept = run(path)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    del kept
    return {"seconds": seconds, "peak_rss_bytes": peak}


def measured(step: str, path: Path, repeat: int) -> tuple[float, float]:
    """Return the median seconds and peak RSS of `repeat` processes."""
    command = [sys.executable, __file__, "--measure", step, str(path)]
    results: list[dict[str, Any]] = []
    for _ in range(repeat):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        results.append(json.loads(done.stdout))
    seconds, peaks = ([result[key] for result in results] for key in ("seconds", "peak_rss_bytes"))
    return statistics.median(seconds), statistics.median(peaks)


def bench(events: int, repeat: int, folder: Path) -> None:
    """Measure every step on a generated snapshot of so many events, and print a table."""
    path = folder / f"{events}.pickle"
    for seed, out in enumerate((path, other_of(path))):
        maker = [sys.executable, str(HERE / "make_snapshot.py"), "--events", str(events), "--out", str(out)]
        subprocess.run([*maker, "--seed", str(seed)], stderr=subprocess.DEVNULL, check=True)
    print(f"\n{events:,} events, {path.stat().st_size / 2**20:.1f} MiB, median of {repeat}")
    print(f"{'':28}{'seconds':>10}{'× load':>9}{'peak RSS':>13}{'× load':>9}")
    base = 0.0, 0.0
    for step in (*STEPS, *STEPS_OF_TWO):
        seconds, peak = measured(step, path, repeat)
        base = (seconds, peak) if step in (BASE, BASE_OF_TWO) else base
        ratios = seconds / base[0], peak / base[1]
        print(f"{step:28}{seconds:10.3f}{ratios[0]:9.2f}{peak / 2**20:9.0f} MiB{ratios[1]:9.2f}", flush=True)
    path.unlink()
    other_of(path).unlink()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, or one measure of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeat", type=int, default=3, help="processes per measure; the median counts")
    parser.add_argument("--measure", nargs=2, metavar=("STEP", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        step, path = options.measure
        print(json.dumps(measure(step, Path(path))))
        return
    with tempfile.TemporaryDirectory() as folder:
        for events in options.events:
            bench(events, options.repeat, Path(folder))


if __name__ == "__main__":
    main()

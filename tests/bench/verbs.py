"""What commands cost as whole processes, beside a plain `pickle.load` process of the same file.

    python tests/bench/verbs.py --events 10000 100000 1000000 --write docs/performance.md

Start-up is included. Seconds are CPU seconds (user and system), since the work is single-threaded and other
load on the machine then spoils little; peak memory is the largest resident set. Medians of fresh processes. The two
readers and `pickle.load` take turns, so that a slow minute hits all of them. This prints; it never fails on a number.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
READERS: Final = ("native", "python")
VERBS: Final = {
    "`ledger --by site --at end`": ["ledger", "{file}", "--by", "site", "--at", "end"],
    "`ledger --by site`": ["ledger", "{file}", "--by", "site"],
    "`ledger --by category`": ["ledger", "{file}", "--by", "category"],
    "`diff` of two": ["diff", "{file}", "{file}"],
}
BASE: Final = "`pickle.load`"
HEAD: Final = """# Performance

What commands cost as whole processes, start-up included, beside a plain `pickle.load` process of the same file:
CPU seconds, peak resident memory, and both as multiples of `pickle.load`. Medians of {repeat} fresh processes each,
written by `tests/bench/verbs.py`. The files are made by `tests/bench/make_snapshot.py`: Python stacks of some 30
frames, one list of frames per event.

Machine: {machine}.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and peak resident bytes of one process, or the medians of several."""

    seconds: float
    peak_bytes: float


def run(command: Sequence[str], reader: str) -> Cost:
    """Run one process to its end."""
    environment = {**os.environ, "SNAPSCOPE_READER": reader}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > 1:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def commands(path: Path) -> dict[tuple[str, str], list[str]]:
    """Name what is measured, by what and reader."""
    load = [sys.executable, "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))", str(path)]
    measured = {(BASE, ""): load}
    for reader in READERS:
        for name, arguments in VERBS.items():
            filled = [argument.format(file=path) for argument in arguments]
            measured[name, reader] = [sys.executable, "-m", "snapscope", *filled]
    return measured


def table(events: int, repeat: int, folder: Path) -> str:
    """Measure everything on a generated snapshot of so many events; return the page's table."""
    path = folder / f"{events}.pickle"
    maker = [sys.executable, str(HERE / "make_snapshot.py"), "--events", str(events), "--out", str(path)]
    subprocess.run(maker, stderr=subprocess.DEVNULL, check=True)
    measured = commands(path)
    results: dict[tuple[str, str], list[Cost]] = {key: [] for key in measured}
    for _ in range(repeat):
        for key, command in measured.items():
            results[key].append(run(command, key[1]))
    medians = {
        key: Cost(statistics.median(c.seconds for c in costs), statistics.median(c.peak_bytes for c in costs))
        for key, costs in results.items()
    }
    base = medians[BASE, ""]
    lines = [
        f"## {events:,} events, {path.stat().st_size / 2**20:.1f} MiB\n",
        "| | reader | CPU s | × load | peak MiB | × load |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for (name, reader), cost in medians.items():
        ratios = cost.seconds / base.seconds, cost.peak_bytes / base.peak_bytes
        peak = f"{cost.peak_bytes / 2**20:.0f}"
        lines.append(f"| {name} | {reader} | {cost.seconds:.2f} | {ratios[0]:.2f} | {peak} | {ratios[1]:.2f} |")
    path.unlink()
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Describe the machine in a line."""
    name = platform.processor() or platform.machine()
    with_cpu = Path("/proc/cpuinfo")
    if with_cpu.exists():
        models = [line.partition(":")[2].strip() for line in with_cpu.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeat", type=int, default=3, help="processes per measure; the median counts")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args(argv)
    parts = [HEAD.format(repeat=options.repeat, machine=machine())]
    with tempfile.TemporaryDirectory() as folder:
        for events in options.events:
            parts.append(table(events, options.repeat, Path(folder)))
            print(parts[-1], flush=True)
    if options.write:
        options.write.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write the small snapshots of the tests as seeds for the fuzzer: python seeds.py FOLDER."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.make_snapshot import build
from tests.load.samples import dump, write_like_cpp
from tests.native.samples import SAMPLES


def main(folder: Path) -> None:
    """Write every sample, as each writer has it; the first byte says how it is cut into pieces."""
    values = {**SAMPLES, "made": build(12, layers=1, blocks=4), "longer": build(40, layers=1, blocks=4)}
    for number, value in enumerate(values.values()):
        for protocol in (2, 4, 5):
            content = dump(value, protocol)
            (folder / f"{number}-{protocol}").write_bytes(bytes([number * 7 % 256]) + content)
        with suppress(Exception):
            (folder / f"{number}-cpp").write_bytes(b"\0" + write_like_cpp(value))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Compare both readers over files that the fuzzer made: python -m tests.fuzz.compare FOLDER."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.native.compare import differences, outcome


def main(folder: Path) -> int:
    """Print the files on which the readers differ, and how many there were."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.iterdir()):
        # The first byte says how the fuzzer cuts the rest into pieces.
        content = path.read_bytes()[1:]
        expected, _ = outcome(content, "python")
        got, is_native = outcome(content, "native")
        counts["files"] += 1
        counts["with events, read by the compiled reader"] += is_native
        counts["refused"] += isinstance(expected, Exception)
        found = list(differences(expected, got))
        if found:
            counts["different"] += 1
            print(path, found[0])
    print(dict(counts))
    return min(counts["different"], 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Races scoring against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.score [--only KEY ...] [--rows N] [--many N] [--repeats N] [--threads N]
                           [--folder DIR] [--engines PYTHON] [--table-gib GIB] [--out FILE]
"""

import mmoe  # noqa: F401 - first: it says how OpenMP waits, for this process and all it starts
from benchmarks.score.program import main

if __name__ == "__main__":
    main()

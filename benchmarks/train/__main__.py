"""Races training against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.train [--only KEY ...] [--seconds S] [--rows N] [--seeds N] [--threads N]
                           [--folder DIR] [--set KEY.PATH=VALUE ...] [--out FILE]
"""

import mmoe  # noqa: F401 - first: it says how OpenMP waits, for this process and all it starts
from benchmarks.train.program import main

if __name__ == "__main__":
    main()

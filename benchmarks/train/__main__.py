"""Races training against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.train [--only KEY ...] [--seconds S] [--rows N] [--seeds N] [--threads N]
                           [--folder DIR] [--set KEY.PATH=VALUE ...] [--out FILE]
"""

import os

from benchmarks.train.processes import OPENMP_SPINS

if __name__ == "__main__":
    # As for the contestants, and before torch is imported: it is read then
    os.environ.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    from benchmarks.train.program import main

    main()

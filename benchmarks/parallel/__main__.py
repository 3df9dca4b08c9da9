"""Races ranks against one process, prints tables and, last, one JSON line.

python -m benchmarks.parallel [--only KEY ...] [--seconds S] [--rows N] [--folder DIR]
                              [--set KEY.PATH=VALUE ...] [--out FILE]
"""

import mmoe  # noqa: F401 - first: it says how OpenMP waits, for this process and all it starts
from benchmarks.parallel.program import main

if __name__ == "__main__":
    main()

"""Races modes of dispatchers over several hosts, prints tables and, last, one JSON line.

python -m benchmarks.network [--only KEY ...] [--seconds S] [--out FILE]
"""

from benchmarks.network.program import main

if __name__ == "__main__":
    main()

"""Races training against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.train [--only KEY ...] [--seconds S] [--rows N] [--seeds N] [--threads N]
                           [--folder DIR] [--set KEY.PATH=VALUE ...] [--out FILE]
"""

from benchmarks.train.races import PROGRAM

if __name__ == "__main__":
    PROGRAM.run()

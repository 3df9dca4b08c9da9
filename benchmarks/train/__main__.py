"""Races training against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.train [--only KEY ...] [--seconds S] [--rows N] [--seeds N] [--threads N]
                           [--folder DIR] [--set KEY.PATH=VALUE ...] [--out FILE]
"""

from benchmarks.train.races import RACES, print_step_tables, run_program

if __name__ == "__main__":
    title = "Paired ratios (ms: of 4,096 rows): median and 10–90 % range"
    run_program("train", RACES, title, print_step_tables, seeds=5)

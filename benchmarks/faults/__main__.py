"""Breaks runs and inputs on purpose, prints a table and, last, one JSON line of counts.

python -m benchmarks.faults train [--kills N] [--inputs N] [--seed S] [--only-input NUMBER]
python -m benchmarks.faults growth [--groups N] [--ids N]
python -m benchmarks.faults ranks [--kills N] [--ranks W] [--seed S]
python -m benchmarks.faults score [--kills N] [--ray-kills N] [--inputs N] [--months N] [--seed S]
                                  [--only-input NUMBER]
"""

import argparse
import sys

from benchmarks.faults import growth, ranks_program, score_program, train_program

# Each takes the arguments that follow its name, and returns the exit code
PROGRAMS = {
    "train": train_program.main,
    "growth": growth.main,
    "ranks": ranks_program.main,
    "score": score_program.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("what", choices=tuple(PROGRAMS))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="see WHAT --help")
    arguments = parser.parse_args()
    sys.exit(PROGRAMS[arguments.what](arguments.rest))


if __name__ == "__main__":
    main()

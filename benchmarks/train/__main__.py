"""Races training against the alternatives, prints a table and, last, one JSON line."""

from benchmarks.train.races import RACES, print_step_tables, run_program

if __name__ == "__main__":
    title = "Paired ratios (ms: of 4,096 rows): median and 10–90 % range"
    run_program("train", RACES, title, print_step_tables, seeds=5)

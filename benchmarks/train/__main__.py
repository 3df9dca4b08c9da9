"""Races training against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.train [--only KEY ...] [--seconds S] [--rows N] [--seeds N] [--threads N]
                           [--folder DIR] [--set KEY.PATH=VALUE ...] [--out FILE]
"""

import mmoe  # noqa: F401 - first: it says how OpenMP waits, for this process and all it starts
from benchmarks.train.races import (
    COMMAND_RACES,
    PEER_RACES,
    QUALITY_RACES,
    SPEED_RACES,
    TARGETS,
    Program,
    print_step_tables,
)

PROGRAM = Program(
    name="train",
    races=(*SPEED_RACES, *PEER_RACES, *QUALITY_RACES, *COMMAND_RACES),
    targets=TARGETS,
    title="Paired ratios (ms: of 4,096 rows): median and 10–90 % range",
    print_details=print_step_tables,
    seeds=True,
)


if __name__ == "__main__":
    PROGRAM.run()

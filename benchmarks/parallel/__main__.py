"""Races ranks against one process, prints tables and, last, one JSON line.

python -m benchmarks.parallel [--only KEY ...] [--seconds S] [--rows N] [--folder DIR]
                              [--set KEY.PATH=VALUE ...] [--out FILE]
"""

from collections.abc import Sequence

import mmoe  # noqa: F401 - first: it says how OpenMP waits, for this process and all it starts
from benchmarks.parallel.races import LAYER_RACES, STEP_RACES, TARGETS, print_costs, print_wire
from benchmarks.racing.harness import Result
from benchmarks.train.races import Program


def _details(results: Sequence[Result]) -> None:
    print_wire(results)
    print_costs(results)


PROGRAM = Program(
    name="parallel",
    races=(*LAYER_RACES, *STEP_RACES),
    targets=TARGETS,
    title="Paired ratios (ms of a whole step: of 4,096 rows): median and 10–90 % range",
    print_details=_details,
    threads=2,  # ranks have one each
    changes="every config",
)


if __name__ == "__main__":
    PROGRAM.run()

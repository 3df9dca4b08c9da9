"""The program behind `python -m benchmarks.parallel`."""

from collections.abc import Sequence

from benchmarks.parallel.layer_races import LAYER_RACES
from benchmarks.parallel.step_races import STEP_RACES
from benchmarks.parallel.tables import print_costs, print_wire
from benchmarks.parallel.targets import TARGETS
from benchmarks.racing.results import Result
from benchmarks.train.running import Program


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
main = PROGRAM.run

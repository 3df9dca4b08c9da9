"""The program behind `python -m benchmarks.train`."""

from benchmarks.train.command_races import COMMAND_RACES
from benchmarks.train.peer_races import PEER_RACES
from benchmarks.train.quality import QUALITY_RACES
from benchmarks.train.running import Program
from benchmarks.train.speed_races import SPEED_RACES
from benchmarks.train.step_tables import print_step_tables
from benchmarks.train.targets import TARGETS

PROGRAM = Program(
    name="train",
    races=(*SPEED_RACES, *PEER_RACES, *QUALITY_RACES, *COMMAND_RACES),
    targets=TARGETS,
    title="Paired ratios (ms: of 4,096 rows): median and 10–90 % range",
    print_details=print_step_tables,
    seeds=True,
)
main = PROGRAM.run

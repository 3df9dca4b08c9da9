"""What a model gains by what it reads, on generated logs with an oracle; last, one JSON line."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.inputs.as_they_come import AS_THEY_COME_SECTION
from benchmarks.inputs.section import Section
from benchmarks.inputs.sections import (
    AFTER_SECTION,
    INTERACTIONS_SECTION,
    LATE_LABELS_SECTION,
    POSITION_SECTION,
)
from benchmarks.inputs.sequences import SEQUENCE_SPEED_SECTION, SEQUENCES_SECTION
from benchmarks.racing.harness import Race, Result, Spread, options, run, talker

SECTIONS: tuple[Section, ...] = (
    SEQUENCE_SPEED_SECTION,
    SEQUENCES_SECTION,
    INTERACTIONS_SECTION,
    POSITION_SECTION,
    LATE_LABELS_SECTION,
    AFTER_SECTION,
    AS_THEY_COME_SECTION,
)
FEWEST_SEEDS = 5
Say = Callable[[str], None]


def main() -> None:
    parser = options("inputs", [section.name for section in SECTIONS], seeds=FEWEST_SEEDS)
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds is {arguments.seeds}, expected 1 or more")
    wanted = [section for section in SECTIONS if section.name in arguments.only]
    # What the JSON line holds beside the keys; sections add to it
    line = {"seeds": arguments.seeds, "section_seconds": {}, "details": {}}
    races = [_race(section, line) for section in wanted]
    arguments.only = [key for section in wanted for key in section.targets]
    title = "Found, over all seeds"
    run(arguments, races, talker(), settings=line, fewest_seeds=FEWEST_SEEDS, title=title)


def _race(section: Section, line: dict[str, Any]) -> Race[Say]:
    def measure(say: Say) -> list[Result]:
        began = time.perf_counter()
        measured = section.measure(range(line["seeds"]), lambda text: say(f"  {text}"))
        line["section_seconds"][section.name] = round(time.perf_counter() - began)
        line["details"][section.name] = dict(measured.details)
        return [
            Result(key, Spread.single(value), note=section.name, digits=5)
            for key, value in measured.values.items()
        ]

    return Race(section.targets, measure)


if __name__ == "__main__":
    main()

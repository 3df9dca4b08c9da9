"""What a model gains by what it reads, on generated logs with an oracle; last, one JSON line."""

import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.inputs.as_they_come import AS_THEY_COME_SECTION
from benchmarks.inputs.section import Measured, Section
from benchmarks.inputs.sections import (
    AFTER_SECTION,
    INTERACTIONS_SECTION,
    LATE_LABELS_SECTION,
    POSITION_SECTION,
)
from benchmarks.inputs.sequences import SEQUENCE_SPEED_SECTION, SEQUENCES_SECTION
from benchmarks.racing.harness import last_line, new_table, options, processor, show, talker
from mmoe.ops import extension_status

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


def main() -> None:
    parser = options("inputs", [section.name for section in SECTIONS], seeds=FEWEST_SEEDS)
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds is {arguments.seeds}, expected 1 or more")
    torch.set_num_threads(arguments.threads)
    say = talker()
    wanted = [section for section in SECTIONS if section.name in arguments.only]
    started = time.perf_counter()
    found: list[tuple[Section, Measured, float]] = []
    failed: dict[str, str] = {}
    for section in wanted:
        say(f"{section.name}: {', '.join(section.targets)}")
        begun = time.perf_counter()
        try:
            measured = section.measure(range(arguments.seeds), lambda text: say(f"  {text}"))
        except (ValueError, RuntimeError) as error:  # one must not cost all the others
            say(f"  FAILED: {error}")
            failed[section.name] = str(error)
            continue
        found.append((section, measured, time.perf_counter() - begun))
    _print_table(found)
    content = {
        **{key: round(value, 5) for _, m, _ in found for key, value in m.values.items()},
        "seeds": arguments.seeds, "device": processor(), "threads": torch.get_num_threads(),
        "torch": torch.__version__, "extension": extension_status().detail,
        "seconds": round(time.perf_counter() - started),
        "section_seconds": {section.name: round(seconds) for section, _, seconds in found},
        "missed": _missed(wanted, found) if arguments.seeds >= FEWEST_SEEDS else None,
        "failed": failed, "details": {section.name: dict(m.details) for section, m, _ in found},
    }  # fmt: skip
    last_line(content, arguments.out)
    if failed:
        sys.exit(1)


def _missed(
    wanted: Sequence[Section], found: Sequence[tuple[Section, Measured, float]]
) -> list[str]:
    """Targets that are not met; all of a section that failed are not."""
    values = {section.name: measured.values for section, measured, _ in found}
    return [
        key
        for section in wanted
        for key, target in section.targets.items()
        if target is not None
        and not (section.name in values and target.met(values[section.name][key]))
    ]


def _print_table(found: Sequence[tuple[Section, Measured, float]]) -> None:
    table = new_table(("section and key", "value", "target"))
    for section, measured, _ in found:
        for key, value in measured.values.items():
            target = section.targets.get(key)
            aim = "" if target is None else str(target)
            table.add_row(f"{section.name}: {key}", f"{value:.4f}", aim)
    show("", table)


if __name__ == "__main__":
    main()

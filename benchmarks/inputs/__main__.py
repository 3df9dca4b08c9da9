"""What a model gains by what it reads, on generated logs with an oracle; last, one JSON line.

python -m benchmarks.inputs [--seeds N] [--only SECTION ...] [--threads N] [--out FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.inputs.as_they_come import AS_THEY_COME_SECTION
from benchmarks.inputs.section import Measured, Section
from benchmarks.inputs.sections import (
    AFTER_SECTION,
    INTERACTIONS_SECTION,
    LATE_LABELS_SECTION,
    POSITION_SECTION,
    SEQUENCE_SPEED_SECTION,
    SEQUENCES_SECTION,
)
from benchmarks.racing.harness import processor
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
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    console = Console(stderr=True, highlight=False)
    wanted = [s for s in SECTIONS if s.name in (arguments.only or [s.name])]
    started = time.perf_counter()
    found: list[tuple[Section, Measured, float]] = []
    failed: dict[str, str] = {}
    for section in wanted:
        console.print(f"{section.name}: {', '.join(section.targets)}", markup=False)
        begun = time.perf_counter()
        try:
            measured = section.measure(
                range(arguments.seeds), lambda text: console.print(f"  {text}", markup=False)
            )
        except (ValueError, RuntimeError) as error:  # one must not cost all the others
            console.print(f"  FAILED: {error}", markup=False)
            failed[section.name] = str(error)
            continue
        found.append((section, measured, time.perf_counter() - begun))
    _print_table(found)
    content = {
        **{key: round(value, 5) for _, m, _ in found for key, value in m.values.items()},
        "seeds": arguments.seeds,
        "device": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "seconds": round(time.perf_counter() - started),
        "section_seconds": {section.name: round(seconds) for section, _, seconds in found},
        "missed": _missed(wanted, found) if arguments.seeds >= FEWEST_SEEDS else None,
        "failed": failed,
        "details": {section.name: dict(m.details) for section, m, _ in found},
    }
    line = json.dumps(content, ensure_ascii=False)
    if arguments.out:
        arguments.out.write_text(line + "\n", encoding="utf-8")
    print(line)
    if failed:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inputs")
    parser.add_argument("--seeds", type=int, default=FEWEST_SEEDS, help="of logs and of training")
    parser.add_argument(
        "--only", nargs="+", choices=[section.name for section in SECTIONS], metavar="SECTION"
    )
    parser.add_argument("--threads", type=int, help="of PyTorch; default: as many as cores")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds is {arguments.seeds}, expected 1 or more")
    return arguments


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
    table = Table(box=SIMPLE_HEAD)
    for heading in ("section", "key", "value", "target"):
        table.add_column(heading, justify="right" if heading in ("value", "target") else "left")
    for section, measured, _ in found:
        for key, value in measured.values.items():
            target = section.targets.get(key)
            table.add_row(section.name, key, f"{value:.4f}", "" if target is None else str(target))
    Console().print(table)


if __name__ == "__main__":
    main()

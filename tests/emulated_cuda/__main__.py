"""Runs the CUDA sources' tests on the host: `make cuda-emulate`, `make cuda-emulate-all`.

python -m tests.emulated_cuda [--all] [--variant plain|asan] [PYTEST ARGUMENTS …]

Prints what pytest prints, a line for each setting, and as the last line JSON: {"cases", "failed"}.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.emulated_cuda.build import ROOT, NoCompiler, build
from tests.emulated_cuda.device import Settings
from tests.emulated_cuda.plugin import ASKED
from tests.emulated_cuda.sanitizer import environment

TESTS = ("tests/emulated_cuda", "tests/ops", "tests/mixture")


@dataclass(frozen=True)
class Round:
    """One run of pytest.

    Attributes:
        settings: What the emulation varies.
        variant: Of the library.
        arguments: Further ones of pytest.
        of_asking: Runs the cases alone that asked for the capability in an earlier round: others
            go the same way whatever it is.
    """

    settings: Settings
    variant: str = "plain"
    arguments: tuple[str, ...] = ()
    of_asking: bool = False

    def __str__(self) -> str:
        s = self.settings
        kind = "" if self.variant == "plain" else f"{self.variant}, "
        return f"{kind}{s.order}, copies {s.copies}, sm_{s.capability}0"


SHORT = (Round(Settings()), Round(Settings(capability=9), of_asking=True))
WHOLE = (
    Round(Settings(), arguments=("--all",)),
    Round(Settings("backward", copies="early")),
    Round(Settings("shuffled", seed=1)),
    Round(Settings("shuffled", seed=2, copies="early", capability=9)),
    Round(Settings("backward", capability=9), of_asking=True),
    Round(Settings(), "asan"),
    Round(Settings("shuffled", seed=3, copies="early", capability=9), "asan", of_asking=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status 1 where a case failed, or none ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulated_cuda")
    parser.add_argument("--all", action="store_true", help="all orders, AddressSanitizer, depths")
    parser.add_argument("--variant", choices=("plain", "asan"), help="rounds of this one alone")
    settings, others = parser.parse_known_args(arguments)
    rounds = WHOLE if settings.all or settings.variant == "asan" else SHORT
    if settings.variant is not None:
        rounds = tuple(part for part in rounds if part.variant == settings.variant)
    libraries: dict[str, Path] = {}
    try:
        for variant in dict.fromkeys(part.variant for part in rounds):
            started = time.monotonic()
            libraries[variant] = build(variant)
            print(f"{variant}: built in {time.monotonic() - started:.0f} s", flush=True)
    except NoCompiler as error:
        sys.exit(f"tests.emulated_cuda: {error}")
    cases, failed = 0, 0
    asking: set[str] = set()
    for part in rounds:
        ran, wrong, asked = run(part, others, asking, libraries[part.variant])
        cases, failed, asking = cases + ran, failed + wrong, asking | asked
    print(json.dumps({"cases": cases, "failed": failed}))
    sys.exit(0 if cases and not failed else 1)


def run(
    part: Round,
    others: Sequence[str] = (),
    asking: Collection[str] = (),
    library: Path | None = None,
) -> tuple[int, int, set[str]]:
    """Returns how many cases ran, how many of them failed, and which asked for the capability."""
    if part.of_asking and not asking:  # of some files none may ask; of all some do
        return 0, int(not others), set()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report, names = Path(folder) / "report.xml", Path(folder) / "names.txt"
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
        if part.variant == "asan":
            surroundings |= environment()
        command = [sys.executable, "-m", "pytest", *options(part), f"--junit-xml={report}"]
        if library is not None:
            command.append(f"--emulated-library={library}")
        if part.of_asking:
            names.write_text("\n".join(asking), encoding="utf-8")
            command.append(f"--emulated-tests={names}")
        command += [*part.arguments, *others, *(() if _name_tests(others) else TESTS)]
        code = subprocess.run(command, cwd=ROOT, env=surroundings).returncode
        ran, wrong, asked = _read(report)
    # Also where pytest itself or the process gave up, and where nothing ran
    wrong = max(wrong, int(code != 0 or ran == 0))
    seconds = time.monotonic() - started
    print(f"{part}: {ran} cases, {wrong} failed, {seconds:.0f} s", flush=True)
    return ran, wrong, asked


def options(part: Round) -> list[str]:
    """What pytest is told of a round."""
    said = {
        "variant": part.variant,
        "order": part.settings.order,
        "seed": part.settings.seed,
        "copies": part.settings.copies,
        "capability": part.settings.capability,
    }
    plain = ["-q", "-p", "no:cacheprovider", "-m", "gpu and not real_gpu", "--maxprocesses=8"]
    plain.append("--timeout=3600")  # it may have what others leave of the processor
    workers = ["-n", "auto", "--dist", "load", "-p", "tests.emulated_cuda.plugin"]
    return [*plain, *workers, *(f"--emulated-{name}={value}" for name, value in said.items())]


def _name_tests(arguments: Sequence[str]) -> bool:
    """Whether some say where tests are; without a place pytest would read all of the repository."""
    return any("/" in text and (ROOT / text.partition("::")[0]).exists() for text in arguments)


def _read(report: Path) -> tuple[int, int, set[str]]:
    if not report.exists():
        return 0, 1, set()
    root = ET.parse(report).getroot()
    asked = {p.get("value", "") for p in root.iter("property") if p.get("name") == ASKED}
    suites = root.iter("testsuite")
    ran, wrong = 0, 0
    for suite in suites:
        count = {
            name: int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")
        }
        ran += count["tests"] - count["skipped"]
        wrong += count["failures"] + count["errors"]
    return ran, wrong, asked


if __name__ == "__main__":
    main()

"""Runs a case and judges how it ended, and what it left behind."""

import hashlib
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.faults.inputs.in_process import Ended, run_in_process
from benchmarks.faults.score_inputs import data_cases, option_cases, output_cases, run_cases
from benchmarks.faults.score_inputs.case import ScoreCase, Scored
from mmoe.run.atomic_files import is_temporary

SECONDS = 60.0
# How often each is drawn
_FAMILIES: dict[Callable[[ScoreCase], None], int] = {
    data_cases.broken_bytes: 18,
    data_cases.broken_columns: 14,
    data_cases.broken_layout: 6,
    data_cases.broken_types: 10,
    data_cases.broken_numbers: 3,
    data_cases.as_they_come: 14,
    data_cases.broken_other_formats: 9,
    run_cases.broken_run: 14,
    output_cases.broken_output: 22,
    output_cases.linked_partition: 3,
    run_cases.huge_sizes: 4,
    option_cases.options_of_any_kind: 18,
    option_cases.best_rows: 4,
}
_START = "mmoe: error: "
_LONGEST = 3_000
# Words of the interpreter that a user cannot act on
_RAW = re.compile(
    r"Traceback|object at 0x|'NoneType'|has no attribute|unhashable type|index out of range|"
    r"invalid literal for|not subscriptable|unsupported operand|<class|KeyError|AssertionError"
)
# What is called as the program that runs it is
_USAGE = re.compile(r"Usage: [\w. -]*mmoe score .*─ Error ─", re.S)
# Names that are ours in a folder of scores, whoever has written there
_OURS = re.compile(
    r"_SUCCESS|_manifest\.json|_summary\.json|_(staging|rejected)/(_summary\.json|\.lock|"
    r"\d{5}-.*\.parquet(\.json)?)|\d{5}-part-\d-\d{5}\.parquet"
)


@dataclass(frozen=True)
class ScoreVerdict:
    """`harmless`, `refused`, `rejected`, `traceback`, `half-written`, `wrong` or
    `unclear`; and why."""

    number: int
    name: str
    verdict: str
    why: str = ""
    said: str = ""
    ran_out_of_time: bool = False

    @property
    def is_right(self) -> bool:
        """Whether it ended as it must."""
        return self.verdict in ("harmless", "refused", "rejected")

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def draw_case(seed: int, number: int, space: Scored, folder: Path) -> ScoreCase:
    """Case `number` of a seed is always the same one; its files go into `folder`."""
    draw = random.Random(f"score inputs {seed} {number}")
    case = ScoreCase(draw, space, folder)
    draw.choices([*_FAMILIES], [*_FAMILIES.values()])[0](case)
    return case


def judge(number: int, case: ScoreCase) -> ScoreVerdict:
    """Runs the command in this process."""
    before = _files(case.folder)
    ended = run_in_process(case.arguments, SECONDS)
    verdict, why = _verdict(case, ended, before)
    said, late = ended.stderr[-2_000:].strip(), ended.code == -2
    return ScoreVerdict(number, case.name[:300], verdict, why[:500], said, ran_out_of_time=late)


def _verdict(case: ScoreCase, ended: Ended, before: dict[str, str]) -> tuple[str, str]:
    if ended.code == -2:
        return "traceback", f"still running after {SECONDS:.0f} s"
    if ended.code < 0 or "Traceback (most recent" in ended.stderr:
        return "traceback", ended.stderr.strip().splitlines()[-1][:300]
    wrong = _left(case, before, ended.code)
    if wrong is not None:
        return "half-written", wrong
    if ended.code == 0:
        if case.refused:
            return "unclear", "it succeeded, but should not have"
        incomplete = _incomplete(case)
        if incomplete:
            return "half-written", incomplete
        wrong = case.wrong() if case.wrong is not None else None
        return ("wrong", wrong) if wrong else ("harmless", "")
    unclear = _unclear(ended)
    if unclear is not None:
        return "unclear", unclear
    return ("rejected" if ended.code == 3 else "refused"), ""


def _unclear(ended: Ended) -> str | None:
    said = ended.stderr.strip()
    if ended.code not in (2, 3):
        return f"exit code {ended.code}"
    if ended.code == 2 and _USAGE.match(said):
        return None  # of a value that is no number or no such word, or an option that is not there
    if "\n" in said or not said.startswith(_START):
        return "not one line"
    if len(said) > _LONGEST:
        return f"{len(said)} characters"
    raw = _RAW.search(said)
    return f"says {raw[0]!r}, which nobody can act on" if raw else None


def _left(case: ScoreCase, before: dict[str, str], code: int) -> str | None:
    """What has come, gone or changed and may not."""
    after = _files(case.folder)
    out = os.path.relpath(case.out, case.folder)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if is_temporary(name.rpartition("/")[2]) and name in after:
            return f"{name} is left behind"
        inside = os.path.relpath(name, out) if name.startswith(out) else ""
        beside = f"{out.rpartition('/')[0]}/_rejected/"  # of a single file
        aside = name.startswith((f"{out}/_staging/", f"{out}/_rejected/", beside))
        theirs = before.get(name) == _MINE and not _OURS.fullmatch(inside)
        if theirs or not (aside or (code == 0 and _written(case, name, out))):
            how = (
                "has come" if name not in before else "is gone" if name not in after else "changed"
            )
            return f"exit code {code}, but {name} {how}"
    return None


def _written(case: ScoreCase, name: str, out: str) -> bool:
    """Whether a scoring that succeeds may write there; links lead to other places."""
    if name.startswith(out):
        return True
    places = [case.out, *(path for path in Path(case.out).glob("*") if path.is_symlink())]
    folder = os.path.realpath(case.folder)
    return any(name.startswith(os.path.relpath(os.path.realpath(p), folder)) for p in places)


def _incomplete(case: ScoreCase) -> str | None:
    out = Path(case.out)
    if out.is_file():
        pq.read_table(out)
        return None
    if not (out / "_SUCCESS").exists():
        return "it succeeded without a _SUCCESS"
    manifest = json.loads((out / "_manifest.json").read_text())
    for part in manifest["parts"]:
        content = (out / part["name"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != part["sha256"]:
            return f"it succeeded, and {part['name']} is other than the manifest says"
    left = [p.name for p in (out / "_staging").glob("*") if p.name != ".lock"]
    return f"it succeeded, and left _staging/{left[0]}" if left else None


def _files(folder: Path) -> dict[str, str]:
    """What each file holds, and where each link leads."""
    found = {}
    for above, folders, files in os.walk(folder):
        paths = [*(Path(above, name) for name in files)]
        paths += [path for name in folders if (path := Path(above, name)).is_symlink()]
        for path in paths:
            if path.is_symlink():
                found[os.path.relpath(path, folder)] = str(path.readlink())
            else:
                content = path.read_bytes()
                found[os.path.relpath(path, folder)] = hashlib.sha256(content).hexdigest()
    return found


_MINE = hashlib.sha256(b"mine").hexdigest()

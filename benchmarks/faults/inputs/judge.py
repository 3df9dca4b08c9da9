"""Runs a case and judges it."""

import re
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.commands import run_command
from benchmarks.faults.inputs.answers import wrong_answer
from benchmarks.faults.inputs.cases import Case
from benchmarks.faults.inputs.in_process import Ended, run_in_process
from benchmarks.faults.inputs.workspace import Workspace

SECONDS = 60.0
_START = "mmoe: error: "
_LONGEST = 3_000
# Words of the interpreter that a user cannot act on
_RAW = re.compile(
    r"Traceback|object at 0x|'NoneType'|has no attribute|unhashable type|index out of range|"
    r"invalid literal for|not subscriptable|unsupported operand|<class|KeyError|AssertionError"
)


@dataclass(frozen=True)
class Verdict:
    """`clear error`, `right answer`, `wrong answer`, `traceback` or `failure`, and why."""

    number: int
    fault: str
    command: str
    verdict: str
    why: str = ""
    said: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def judge(case: Case, space: Workspace, folder: Path, *, real: bool = False) -> Verdict:
    """Runs the case, in this process or as one of its own."""
    if real and case.around is nullcontext:
        ended = run_command(case.arguments, SECONDS)
    else:
        try:
            with case.around():
                ended = run_in_process(case.arguments, SECONDS)
        except RuntimeError as error:  # of a watch over the user's files
            return Verdict(case.number, case.fault, case.command, "failure", str(error)[:500])
    verdict, why = _verdict(case, ended, space, folder)
    lost = None if case.resumed is None else case.resumed.lost(refused=ended.code != 0)
    if lost is not None and verdict != "traceback":
        verdict, why = "failure", lost
    said = ended.stderr.strip()[-2_000:]
    return Verdict(case.number, case.fault, case.command, verdict, why[:500], said)


def _verdict(case: Case, ended: Ended, space: Workspace, folder: Path) -> tuple[str, str]:
    if ended.code == -2:
        return "failure", f"still running after {SECONDS:.0f} s"
    if ended.code < 0 or "Traceback (most recent" in ended.stderr:
        return "traceback", ended.stderr.strip().splitlines()[-1][:300]
    if ended.code == 0:
        if case.expect.outcome == "error":
            return "failure", "it succeeded, but should not have"
        if ended.stderr.strip() and not case.expect.complaint:
            return "failure", "it succeeded, but complained"
        unsaid = [words for words in case.expect.complaint if words not in ended.stderr]
        if unsaid:
            return "failure", f"it succeeded, but did not say {unsaid[0]!r}"
        why = wrong_answer(case, ended, space, folder)
        return ("wrong answer", why) if why else ("right answer", "")
    if case.expect.outcome == "right":
        return "failure", "it failed, but the rows can be read"
    why = _unclear(case, ended) or _left_behind(case)
    return ("failure", why) if why else ("clear error", "")


def _unclear(case: Case, ended: Ended) -> str | None:
    said = ended.stderr.strip()
    if ended.code != 2:
        return f"exit code {ended.code}, not 2"
    if "\n" in said or not said.startswith(_START):
        return "not one line"
    if len(said) > _LONGEST:
        return f"{len(said)} characters"
    raw = _RAW.search(said)
    if raw:
        return f"says {raw[0]!r}, which nobody can act on"
    groups = (*case.expect.names, *([case.words] if case.words else []))
    for words in groups:
        if not any(word in said for word in words):
            return f"names none of {', '.join(map(repr, words))}"
    return None


def _left_behind(case: Case) -> str | None:
    """A run that had a checkpoint may stand: it can be resumed. Anything else is half-written."""
    there = sorted(case.out.parent.iterdir())
    if there == [case.out] and (case.out / "checkpoint" / "index.json").exists():
        return None
    return f"left behind: {', '.join(p.name for p in there)}" if there else None

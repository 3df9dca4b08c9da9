"""Records what a source tree trains, scores and refuses; compares another tree with it, bit by bit.

    python -m benchmarks.same_bits against COMMIT [--only NAME …] [--folder FOLDER]
    python -m benchmarks.same_bits record FOLDER [--tree TREE] [--only NAME …]
    python -m benchmarks.same_bits compare FOLDER [--tree TREE] [--only NAME …]

`against` checks COMMIT out, records it, and compares this tree with it, by today's cases, on the
same machine, torch and threads: bits depend on these, so no record is kept in the repository.
`record` keeps the runs and FOLDER/facts.json. `compare` does all of it again with TREE, reads the
recorded runs with it as well (evaluation, scores, resuming what was killed), and prints what
differs; the last line is JSON. Exit code 1 where anything does, or a case could not be run.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.same_bits.cases import CASES, Case
from benchmarks.same_bits.kinds import write_logs
from benchmarks.same_bits.trees import ROOT, Tree, checked_out

WORKERS = 2
Facts = dict[str, str]


def main() -> int:
    options = _options()
    cases = _chosen(options.only)
    if options.what == "against":
        folder = options.folder or Path(tempfile.mkdtemp(prefix="same-bits-"))
        with checked_out(options.where, folder.resolve() / "tree") as tree:
            record(cases, tree, folder.resolve())
        return compare(cases, options.tree.resolve(), folder.resolve())
    work = record if options.what == "record" else compare
    return work(cases, options.tree.resolve(), Path(options.where).resolve())


def record(cases: Sequence[Case], tree: Path, folder: Path) -> int:
    """Keeps runs and facts in `folder`; 1 where a case could not be run."""
    write_logs(folder / "logs")
    facts_file = folder / "facts.json"
    known = json.loads(facts_file.read_text()) if facts_file.exists() else {}

    def one(case: Case, tree: Tree) -> Facts:
        runs = _empty(folder / "recorded" / case.name)
        facts = case.facts(tree, runs)
        case.leave(tree, runs)
        return facts

    found = _run(cases, tree, folder, one)
    known |= {case.name: facts for case, facts in found if facts is not None}
    facts_file.write_text(json.dumps(known, indent=1, sort_keys=True))
    return int(any(facts is None for _, facts in found))


def compare(cases: Sequence[Case], tree: Path, folder: Path) -> int:
    """Prints what is another in `tree` than what `folder` has; 1 where anything is."""
    known = json.loads((folder / "facts.json").read_text())
    cases = [case for case in cases if case.name in known]

    def one(case: Case, tree: Tree) -> Facts:
        runs = _empty(folder / "compared" / case.name)
        facts = case.facts(tree, runs)
        facts |= case.read_again(tree, folder / "recorded" / case.name, runs)
        shutil.rmtree(runs)
        return facts

    found = _run(cases, tree, folder, one)
    compared, differ = 0, []
    for case, facts in found:
        if facts is None:
            differ.append(f"{case.name}: it does not run")
            continue
        compared += len(facts)
        differ += [f"{case.name}: {line}" for line in _differences(known[case.name], facts)]
    for line in differ:
        _say(line)
    print(json.dumps({"cases": len(cases), "facts": compared, "differ": len(differ)}))
    return int(bool(differ))


def _run(
    cases: Sequence[Case], tree: Path, folder: Path, one: Callable[[Case, Tree], Facts]
) -> list[tuple[Case, Facts | None]]:

    def work(mine: Sequence[Case]) -> list[tuple[Case, Facts | None]]:
        runner, found = Tree(tree, folder / "logs"), []
        for case in mine:
            started, facts = time.monotonic(), None
            try:
                facts = one(case, runner)
                text = f"{len(facts)} facts"
            except (RuntimeError, AssertionError) as error:
                text = f"failed: {error}"
            found.append((case, facts))
            _say(f"{case.name}: {text} ({time.monotonic() - started:.1f} s)")
        runner.close()
        return found

    with ThreadPoolExecutor(WORKERS) as threads:
        parts = threads.map(work, [cases[n::WORKERS] for n in range(WORKERS)])
        return [found for part in parts for found in part]


def _empty(runs: Path) -> Path:
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    return runs


def _differences(known: Facts, facts: Facts) -> list[str]:
    lines = []
    for name in sorted({*known, *facts}):
        # What was read again bears the name of what was recorded
        before, now = known.get(name.removeprefix("again ")), facts.get(name)
        if before != now and (now is not None or not name.startswith("again ")):
            lines.append(f"{name}: {before} before, {now} now")
    return lines


def _chosen(names: list[str] | None) -> list[Case]:
    known = [case.name for case in CASES]
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        sys.exit(f"no case {unknown[0]!r}; there are: {', '.join(known)}")
    return [case for case in CASES if not names or case.name in names]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("what", choices=["against", "record", "compare"])
    parser.add_argument("where", metavar="FOLDER|COMMIT")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source tree that is run")
    parser.add_argument("--folder", type=Path, help="against: where its runs are kept")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these cases alone")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

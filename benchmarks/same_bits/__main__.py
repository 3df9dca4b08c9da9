"""Records what a source tree trains, scores and refuses; compares another tree with it, bit by bit.

    python -m benchmarks.same_bits record FOLDER [--tree TREE] [--only NAME …]
    python -m benchmarks.same_bits compare FOLDER [--tree TREE] [--only NAME …]

`record` keeps the runs and FOLDER/facts.json. `compare` does all of it again with TREE, reads the
recorded runs with it as well (evaluation, scores, resuming what was killed), and prints what
differs; the last line is JSON. Exit code 1 where anything does.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from benchmarks.same_bits.cases import CASES, Case
from benchmarks.same_bits.logs import write_logs
from benchmarks.same_bits.trees import Tree

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Prints a line a case."""
    options = _options()
    folder: Path = options.folder.resolve()
    facts_file = folder / "facts.json"
    if options.what == "record":
        write_logs(folder / "logs")
    known = json.loads(facts_file.read_text()) if facts_file.exists() else {}
    compared, differ = 0, []
    compared_in = f"compared-{os.getpid()}"
    for case in _chosen(options.only):
        runs = folder / ("recorded" if options.what == "record" else compared_in) / case.name
        shutil.rmtree(runs, ignore_errors=True)
        runs.mkdir(parents=True)
        tree = Tree(options.tree.resolve(), folder / "logs")
        facts = case.facts(tree, runs)
        if options.what == "record":
            case.leave(tree, runs)
            known[case.name] = facts
            facts_file.write_text(json.dumps(known, indent=1, sort_keys=True))
            _say(f"{case.name}: {len(facts)} facts")
            continue
        facts |= case.read_again(tree, folder / "recorded" / case.name, runs)
        wrong = _differences(known[case.name], facts)
        compared += len(facts)
        differ += [f"{case.name}: {line}" for line in wrong]
        _say(f"{case.name}: {len(facts)} facts, {len(wrong)} differ")
        for line in wrong[:20]:
            _say(f"    {line}")
        shutil.rmtree(runs)
    print(json.dumps({"facts": compared, "differ": len(differ)}))
    return 1 if differ else 0


def _differences(known: dict[str, str], facts: dict[str, str]) -> list[str]:
    """A fact by its name: missing, new, or another."""
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
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source tree that is run")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these cases alone")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Is an answer right? It equals that of the same command on a clean copy of the same rows."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from benchmarks.faults.inputs.cases import Case, data_config
from benchmarks.faults.inputs.in_process import Ended, run_in_process
from benchmarks.faults.inputs.reference import reference_tables, settled, write_reference
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.same_end import first_difference, without_clock
from mmoe.config import load_config

SECONDS = 60.0


def wrong_answer(case: Case, ended: Ended, space: Workspace, folder: Path) -> str | None:
    """What is wrong with the answer of a command that succeeded, or None."""
    if case.wrong is not None:
        return case.wrong()
    if case.command == "init":
        return _wrong_config(case, folder)
    if case.expect.reference == "none":
        return None
    if case.draft is None:
        return _differs(case, ended, space, space.log, folder)
    try:
        tables = reference_tables(case.draft, case.clean, case.expect.reference)
        if case.draft.is_csv:
            tables = settled(tables)
        clean = folder / "clean.parquet"
        write_reference(tables, clean)
    except Exception as error:  # whatever the other reader raises
        return f"it succeeded, but another reader says: {error!r}"
    return _differs(case, ended, space, clean, folder)


def _differs(case: Case, ended: Ended, space: Workspace, clean: Path, folder: Path) -> str | None:
    """Against the same command on the clean rows, in memory."""
    out = folder / "reference"
    run = space.run("memory")
    if case.command == "train":
        split = case.draft.split if case.draft is not None else None
        config = folder / "reference.yaml"
        config.write_text(yaml.safe_dump(data_config(str(clean), split, "memory")), "utf-8")
        arguments = ["train", str(config), "--out", str(out), "--quiet"]
    elif case.command == "score":
        arguments = ["score", str(run), "--input", str(clean), "--output", str(out), "--quiet"]
    else:
        arguments = ["evaluate", str(run), "--data", str(clean), "--json", "--quiet"]
    wanted = run_in_process(arguments, SECONDS)
    if wanted.code != 0:
        return f"it succeeded, but on the clean rows: {wanted.stderr.strip()[-300:]}"
    if case.command == "train":
        difference = first_difference(case.out, out, settings=False)
        return difference and f"differs from training on the clean rows in {difference}"
    if case.command == "score":
        same = pq.read_table(case.out).equals(pq.read_table(out))
        return None if same else "scores differ from those of the clean rows"
    mine, theirs = (without_clock(json.loads(e.stdout))["tasks"] for e in (ended, wanted))
    return None if mine == theirs else "metrics differ from those of the clean rows"


def _wrong_config(case: Case, folder: Path) -> str | None:
    """A first config is right if it has the labels asked for, and trains or says why not."""
    config = load_config(case.out)
    if [task.label for task in config.tasks] != ["click", "buy"]:
        return f"tasks are {[task.label for task in config.tasks]}"
    small = ["training.epochs=1", "model.num_experts=2", "model.expert.hidden=[8]"]
    overrides = [part for text in small for part in ("--set", text)]
    out = folder / "trained"
    ended = run_in_process(
        ["train", str(case.out), "--out", str(out), "--quiet", *overrides], SECONDS
    )
    return None if ended.code == 0 else f"its config does not train: {ended.stderr.strip()[-400:]}"

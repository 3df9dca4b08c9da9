"""Draws cases of `mmoe train`, `evaluate`, `score` and `init`: number N is always the same one."""

import json
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq

import mmoe
from tests.chaos.arrow_types import type_fault
from tests.chaos.config_faults import config_case, expression_fault
from tests.chaos.data_faults import BYTE_FAULTS, LAYOUT_FAULTS, TABLE_FAULTS
from tests.chaos.draft import Case, Draft, Workspace, cut, either, write_yaml
from tests.chaos.judge import SECONDS, data_config, first_difference, judge
from tests.chaos.made_logs import KINDS, Made, own_target
from tests.chaos.processes import Say, Verdict, judge_in_forks, prepare, run_in_process
from tests.chaos.run_faults import (
    changes_while_read,
    folder_case,
    json_case,
    output_case,
    rotated_case,
    run_case,
)
from tests.chaos.small_log import small_log

Draw = Callable[[random.Random, Workspace, Path], Case]


def data_case(family: str) -> Draw:
    """Faults of the data: of its tables, bytes, layout, or of files while they are read."""

    def drawn(draw: random.Random, space: Workspace, folder: Path) -> Case:
        draft = _draft(family, draw, folder)
        clean, around = list(draft.tables), nullcontext
        if family == "changing":
            draft.write()
            name, (expect, around) = "changes_while_read", changes_while_read(draft)
        elif family == "table":
            name = draw.choice([*TABLE_FAULTS])
            expect = TABLE_FAULTS[name](draft)
            draft.write()
        else:
            faults = BYTE_FAULTS if family == "bytes" else LAYOUT_FAULTS
            name = draw.choice([*faults])
            draft.write()
            expect = faults[name](draft)
        name = f"{name} ({draft.kind} × {len(draft.tables)}{', streamed' * draft.streams})"
        outs = {"score": "scores.parquet", "init": "config.yaml"}
        out = folder / "out" / outs.get(draft.command, "run")
        given = _arguments(draft, space, folder, out)
        words = (draft.data, *(path.name for path in draft.files))
        return Case(name, draft.command, expect, given, out, words, draft, clean, around)

    return drawn


def _draft(family: str, draw: random.Random, folder: Path) -> Draft:
    command = draw.choices(["train", "score", "evaluate", "init"], [48, 24, 14, 14])[0]
    split = draw.choice([None, None, ("time", "time"), ("hash", "user")])
    streams = draw.random() < 0.5
    if family == "changing":
        command, split, streams = "train", None, True
    parts = draw.choice([1, 3, 3])
    tables = cut(small_log(260, seed=draw.randrange(5)), parts)
    kind = draw.choice(["csv", "parquet", "parquet", "csv.gz"])
    return Draft(draw, command, kind, tables, split, streams, folder)


def _arguments(draft: Draft, space: Workspace, folder: Path, out: Path) -> list[str]:
    if draft.command == "init":
        return ["init", draft.data, "--label", "click", "--label", "buy", "--out", str(out)]
    how = "stream" if draft.streams else "memory"
    run = str(space.run(how))
    if draft.command == "score":
        return ["score", run, "--input", draft.data, "--output", str(out), "--quiet"]
    if draft.command == "evaluate":
        return ["evaluate", run, "--data", draft.data, "--json", "--quiet"]
    config = write_yaml(folder / "config.yaml", data_config(draft.data, draft.split, how))
    return ["train", config, "--out", str(out), "--quiet"]


# Logs as public files and lakes have them, beside what is true of them: training and scoring must
# end in the bits of the plain rows that a log stands for, say what is wrong with it, or refuse it


def draw_made(draw: random.Random, folder: Path, *, to_score: bool = False) -> tuple[str, Made]:
    kind = draw.choice([kind for kind in KINDS if not (to_score and kind is own_target)])
    folder.mkdir(parents=True, exist_ok=True)
    return kind.__name__, kind(draw, small_log(200, seed=draw.randrange(5)), folder)


def write_config(made: Made, path: Path, truth: Path | None = None) -> str:
    if truth is not None:
        pq.write_table(made.truth, truth)
    return write_yaml(path, made.config(None if truth is None else str(truth)))


def as_they_come(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A training on such a log, or a first config of one that leaks."""
    name, made = draw_made(draw, folder / "log-folder")
    out, fault = folder / "out" / "run", f"as_they_come: {name}"
    if made.leaks:
        out = folder / "out" / "config.yaml"
        path = made.path if isinstance(made.path, str) else made.path[0]
        given = ["init", path, "--label", made.label, "--out", str(out)]
        expect = either(reference="none")
        return Case(fault, "init", expect, given, out, wrong=lambda: _unsaid_leak(made, out))
    given = ["train", write_config(made, folder / "config.yaml"), "--out", str(out), "--quiet"]
    return Case(fault, "train", made.expect, given, out, words=made.words,
                wrong=lambda: _wrong_training(made, out, folder))  # fmt: skip


def wrong_level(made: Made, run: Path) -> str | None:
    """What is wrong with the level of a number's predictions, in the label's own units."""
    if made.level is None:
        return None
    task, mean, most = made.level
    found = float(mmoe.load(run).predict(made.truth)[f"pred_{task}"].to_numpy().mean())
    return None if abs(found - mean) <= most else f"pred_{task} is {found:g} on average, not {mean}"


def _wrong_training(made: Made, out: Path, folder: Path) -> str | None:
    metrics = json.loads((out / "metrics.json").read_text("utf-8"))
    alarms = " ".join(alarm["kind"] for alarm in metrics.get("alarms", []))
    if made.alarm is not None and made.alarm not in alarms:
        return f"no alarm {made.alarm!r} among {alarms!r}"
    if made.pairs and (metrics["tasks"]["click"]["rows"] % 2 or "repeated_rows" in alarms):
        return "rows and their copies are in several splits"
    truth = folder / "truth"
    config = write_config(made, folder / "truth.yaml", folder / "truth.parquet")
    wanted = run_in_process(["train", config, "--out", str(truth), "--quiet"], SECONDS)
    if wanted.code != 0:
        return f"it succeeded, but on the true rows: {wanted.stderr.strip()[-300:]}"
    if made.metrics_alone:
        same = metrics["tasks"] == json.loads((truth / "metrics.json").read_text("utf-8"))["tasks"]
        return wrong_level(made, out) if same else "other metrics than of the true rows"
    difference = first_difference(out, truth, settings=False)
    wrong = difference and f"differs from training on the true rows in {difference}"
    return wrong or wrong_level(made, out)


def _unsaid_leak(made: Made, out: Path) -> str | None:
    """A leak may be left out, or in with a line that says so."""
    text = out.read_text("utf-8")
    quiet = [name for name in made.leaks
             if f"name: {name}\n" in text and f"{name}: predicts" not in text]  # fmt: skip
    return f"{quiet[0]} holds the label, and is a feature" if quiet else None


# How often each is drawn
FAMILIES: dict[str, tuple[int, Draw]] = {
    "table": (36, data_case("table")), "bytes": (26, data_case("bytes")),
    "layout": (8, data_case("layout")), "config": (22, config_case),
    "changing": (4, data_case("changing")), "run": (6, run_case), "folder": (6, folder_case),
    "rotated": (4, rotated_case), "type": (10, type_fault), "expression": (5, expression_fault),
    "json": (4, json_case), "output": (4, output_case), "as_they_come": (20, as_they_come),
}  # fmt: skip


def draw_case(seed: int, number: int, space: Workspace, folder: Path) -> Case:
    draw = random.Random(f"inputs {seed} {number}")
    family = draw.choices([*FAMILIES], [share for share, _ in FAMILIES.values()])[0]
    (folder / "out").mkdir(parents=True)
    return FAMILIES[family][1](draw, space, folder)


def judge_inputs(
    folder: Path, numbers: Iterable[int], seed: int, say: Say, *, jobs: int = 1, real: int = 0
) -> list[Verdict]:
    numbers, shared = [*numbers], folder / "worker-0"
    every = max(1, len(numbers) // real) if real else 0
    as_processes = {n for index, n in enumerate(numbers) if every and index % every == every - 1}

    def one(number: int) -> Verdict:
        where, space = shared / f"case-{number}", Workspace(shared)
        case = draw_case(seed, number, space, where)
        return judge(number, case, space, where, real=number in as_processes)

    prepare(lambda: Workspace(shared))
    return judge_in_forks(one, numbers, say, again=f"train --kills 0 --seed {seed}", jobs=jobs)

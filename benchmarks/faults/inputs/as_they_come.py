"""Logs as public files and lakes have them, beside what is true of them.

Training and scoring must end in the bits of the plain rows that a log stands for, say what is wrong
with it, or refuse it in one clear line.
"""

import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import yaml

import mmoe
from benchmarks.faults.inputs.draft import Drawn, either
from benchmarks.faults.inputs.in_process import run_in_process
from benchmarks.faults.inputs.made_logs import KINDS, Made, own_target
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.same_end import first_difference
from benchmarks.faults.small_log import small_log

ROWS, SECONDS = 200, 60.0


def draw_made(draw: random.Random, folder: Path, *, to_score: bool = False) -> tuple[str, Made]:
    """Any kind, or any that can be scored; and its name."""
    kind = draw.choice([kind for kind in KINDS if not (to_score and kind is own_target)])
    folder.mkdir(parents=True, exist_ok=True)
    return kind.__name__, kind(draw, small_log(ROWS, seed=draw.randrange(5)), folder)


def write_config(made: Made, path: Path, truth: Path | None = None) -> Path:
    """Writes the config that trains on the log, or on its true rows."""
    if truth is not None:
        pq.write_table(made.truth, truth)
    raw = made.config(None if truth is None else str(truth))
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def as_they_come(draw: random.Random, space: Workspace, folder: Path) -> Drawn:
    """A training on such a log, or a first config of one that leaks."""
    name, made = draw_made(draw, folder / "log-folder")
    if made.leaks:
        out = folder / "out" / "config.yaml"
        path = made.path if isinstance(made.path, str) else made.path[0]
        return Drawn(
            fault=f"as_they_come: {name}",
            command="init",
            expect=either(reference="none"),
            arguments=["init", path, "--label", made.label, "--out", str(out)],
            out=out,
            wrong=lambda: _unsaid_leak(made, out),
        )
    config, out = write_config(made, folder / "config.yaml"), folder / "out" / "run"
    return Drawn(
        fault=f"as_they_come: {name}",
        command="train",
        expect=made.expect,
        arguments=["train", str(config), "--out", str(out), "--quiet"],
        out=out,
        words=made.words,
        wrong=lambda: _wrong_training(made, out, folder),
    )


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
    config, truth = folder / "truth.yaml", folder / "truth"
    write_config(made, config, folder / "truth.parquet")
    wanted = run_in_process(["train", str(config), "--out", str(truth), "--quiet"], SECONDS)
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
    names = {feature["name"] for feature in yaml.safe_load(text)["features"]}
    quiet = [name for name in made.leaks if name in names and f"{name}: predicts" not in text]
    return f"{quiet[0]} holds the label, and is a feature" if quiet else None

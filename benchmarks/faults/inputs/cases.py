"""Draws cases: number N of a seed is always the same one."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from benchmarks.faults.inputs import json_faults
from benchmarks.faults.inputs.as_they_come import as_they_come
from benchmarks.faults.inputs.byte_faults import BYTE_FAULTS
from benchmarks.faults.inputs.changing_faults import changes_while_read
from benchmarks.faults.inputs.column_faults import COLUMN_FAULTS
from benchmarks.faults.inputs.config_faults import CONFIG_FAULTS, ConfigDraft
from benchmarks.faults.inputs.draft import Command, Draft, Expect, either, error
from benchmarks.faults.inputs.expression_faults import expression_fault
from benchmarks.faults.inputs.folder_faults import FolderDraft, draw_folder
from benchmarks.faults.inputs.id_faults import ID_FAULTS
from benchmarks.faults.inputs.id_type_faults import ID_TYPE_FAULTS
from benchmarks.faults.inputs.json_faults import json_case
from benchmarks.faults.inputs.layout_faults import LAYOUT_FAULTS
from benchmarks.faults.inputs.number_faults import NUMBER_FAULTS
from benchmarks.faults.inputs.output_faults import output_case
from benchmarks.faults.inputs.rotated_faults import rotated_log
from benchmarks.faults.inputs.run_faults import damage_run, huge_size
from benchmarks.faults.inputs.type_faults import type_fault
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.small_log import small_config, small_log

ROWS = 260
# How often each is drawn
_FAMILIES = {
    "table": 36,
    "bytes": 26,
    "layout": 8,
    "config": 22,
    "changing": 4,
    "run": 6,
    "folder": 6,
    "rotated": 4,
    "type": 10,
    "expression": 5,
    "json": 4,
    "output": 4,
    "as_they_come": 20,
}
# Those that draw a whole case themselves
_DRAWN = {"type": type_fault, "expression": expression_fault, "as_they_come": as_they_come}


@dataclass
class Case:
    """One broken input.

    Attributes:
        number: Which one of its seed.
        fault: What is broken.
        command: That reads it.
        expect: What must come of it.
        arguments: Of `mmoe`.
        out: What the command writes; must not be there where it failed.
        draft: The data, where they are what is broken.
        clean: Its tables before they were broken.
        around: What goes on while the command runs.
        resumed: The folder that it is told to go on in, where there is one.
        wrong: Says what is wrong with an answer whose true value the case knows itself.
    """

    number: int
    fault: str
    command: Command
    expect: Expect
    arguments: list[str]
    out: Path
    words: tuple[str, ...] = ()
    draft: Draft | None = None
    clean: Sequence[pa.Table] = ()
    around: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)
    resumed: FolderDraft | None = None
    wrong: Callable[[], str | None] | None = None


def draw_case(seed: int, number: int, space: Workspace, folder: Path) -> Case:
    """Case `number`; its files go into `folder`."""
    draw = random.Random(f"inputs {seed} {number}")
    family = draw.choices(list(_FAMILIES), list(_FAMILIES.values()))[0]
    if family == "config":
        return _config_case(number, draw, space, folder)
    if family == "run":
        return _run_case(number, draw, space, folder)
    if family == "folder":
        return _folder_case(number, draw, space, folder)
    if family in _DRAWN:
        (folder / "out").mkdir()
        return Case(number, **vars(_DRAWN[family](draw, space, folder)))
    if family == "rotated":
        name, expect, arguments, run = rotated_log(draw, space, folder)
        command: Command = "train" if arguments[0] == "train" else "evaluate"
        return Case(number, name, command, expect, arguments, run, words=(str(run),))
    if family in ("json", "output"):
        return _other_case(family, number, draw, space, folder)
    return _data_case(number, family, draw, space, folder)


def _data_case(
    number: int, family: str, draw: random.Random, space: Workspace, folder: Path
) -> Case:
    draft = _new_draft(family, draw, folder)
    clean, around = list(draft.tables), nullcontext
    if family == "changing":
        draft.write()
        name, (expect, around) = "changes_while_read", changes_while_read(draft)
    elif family == "table":
        fault = draw.choice((*COLUMN_FAULTS, *NUMBER_FAULTS, *ID_FAULTS, *ID_TYPE_FAULTS))
        name, expect = fault.__name__, fault(draft)
        draft.write()
    else:
        fault = draw.choice(BYTE_FAULTS if family == "bytes" else LAYOUT_FAULTS)
        draft.write()
        name, expect = fault.__name__, fault(draft)
    out = (
        folder
        / "out"
        / {"score": "scores.parquet", "init": "config.yaml"}.get(draft.command, "run")
    )
    out.parent.mkdir()
    return Case(
        number=number,
        fault=f"{name} ({draft.kind} × {len(draft.tables)}{', streamed' * draft.streams})",
        command=draft.command,
        expect=expect,
        arguments=_arguments(draft, space, folder, out),
        out=out,
        words=draft.words(),
        draft=draft,
        clean=clean,
        around=around,
    )


def _new_draft(family: str, draw: random.Random, folder: Path) -> Draft:
    commands: list[Command] = ["train", "score", "evaluate", "init"]
    command = draw.choices(commands, [48, 24, 14, 14])[0]
    split: tuple[str, str] | None = draw.choice([None, None, ("time", "time"), ("hash", "user")])
    streams = draw.random() < 0.5
    if family == "changing":
        command, split, streams = "train", None, True
    parts = draw.choice([1, 3, 3])
    table = small_log(ROWS, seed=draw.randrange(5))
    cuts = [n * ROWS // parts for n in range(parts + 1)]
    return Draft(
        draw=draw,
        command=command,
        kind=draw.choice(["csv", "parquet", "parquet", "csv.gz"]),
        tables=[table.slice(a, b - a) for a, b in pairwise(cuts)],
        split=split,
        streams=streams,
        folder=folder,
    )


def _arguments(draft: Draft, space: Workspace, folder: Path, out: Path) -> list[str]:
    if draft.command == "init":
        labels = ["--label", "click", "--label", "buy"]
        return ["init", draft.data, *labels, "--out", str(out)]
    run = space.run("stream" if draft.streams else "memory")
    if draft.command == "score":
        return ["score", str(run), "--input", draft.data, "--output", str(out), "--quiet"]
    if draft.command == "evaluate":
        return ["evaluate", str(run), "--data", draft.data, "--json", "--quiet"]
    config = folder / "config.yaml"
    raw = data_config(draft.data, draft.split, "stream" if draft.streams else "memory")
    config.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return ["train", str(config), "--out", str(out), "--quiet"]


def data_config(path: str, split: tuple[str, str] | None, how: str) -> dict[str, Any]:
    """The config that trains on a case's data."""
    raw = small_config(path)
    raw["data"]["input"] = how
    raw["data"]["streaming"] = {"chunk_rows": 40}
    if split is not None:
        raw["data"]["split"] = {"by": split[0], "column": split[1]}
    return raw


def _config_case(number: int, draw: random.Random, space: Workspace, folder: Path) -> Case:
    raw = small_config(str(space.log))
    # Small, so that a run whose sizes are odd still ends soon
    draft = ConfigDraft(draw, raw, space.full_config(raw), folder / "config.yaml")
    fault = draw.choice(CONFIG_FAULTS)
    expect = fault(draft)
    if not draft.path.exists() and fault.__name__ != "no_file":
        text = yaml.safe_dump(draft.raw, sort_keys=False)
        draft.path.write_text(text, encoding="utf-8")
    out = folder / "out" / "run"
    out.parent.mkdir()
    overrides = [part for text in draft.overrides for part in ("--set", text)]
    return Case(
        number=number,
        fault=fault.__name__,
        command="train",
        expect=expect,
        arguments=["train", str(draft.path), "--out", str(out), "--quiet", *overrides],
        out=out,
    )


def _other_case(
    family: str, number: int, draw: random.Random, space: Workspace, folder: Path
) -> Case:
    """JSON of a run that was changed, or an output that would take the place of what is there."""
    run = space.copy_run(folder / "run")
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    (folder / "out").mkdir()
    if family == "json":
        fault, reader, out = json_case(run, folder / "out", draw)
        arguments = json_faults.arguments(reader, run, space.log, out)
        expect = either(reference="none")
    else:
        fault, arguments, expect, around = output_case(run, folder / "user", draw)
        out = folder / "out" / "scores.parquet"
    words = (str(run), str(space.log), "--output")
    command = "evaluate"  # of whose answer nothing is compared
    return Case(number, fault, command, expect, arguments, out, words=words, around=around)


def _run_case(number: int, draw: random.Random, space: Workspace, folder: Path) -> Case:
    run = space.copy_run(folder / "run")
    if draw.random() < 0.3:
        return _huge_case(number, draw, space, run, folder)
    expect = damage_run(run, draw)
    command: Command = draw.choice(["evaluate", "score"])
    out = folder / "out" / "scores.parquet"
    out.parent.mkdir()
    arguments = ["evaluate", str(run), "--data", str(space.log), "--json", "--quiet"]
    if command == "score":
        arguments = ["score", str(run), "--input", str(space.log), "--output", str(out), "--quiet"]
    return Case(number, "damaged_run", command, expect, arguments, out, words=(str(run),))


def _huge_case(number: int, draw: random.Random, space: Workspace, run: Path, folder: Path) -> Case:
    """A stranger's run that says a huge size, and a command that believes a run."""
    fault = f"huge_size ({huge_size(run, draw)})"
    reader = draw.choice(["evaluate", "score", "unshard", "resume", "warm start"])
    out = folder / "out" / f"out{json_faults.SUFFIXES.get(reader, '')}"
    out.parent.mkdir()
    arguments = json_faults.arguments(reader, run, space.log, out)
    # Weights alone, or another run's beside a config of one's own, ask for no size
    expect = either(reference="none") if reader in ("unshard", "resume") else error()
    return Case(number, fault, "evaluate", expect, arguments, out, words=(str(run),))


def _folder_case(number: int, draw: random.Random, space: Workspace, folder: Path) -> Case:
    draft = FolderDraft(draw, space.copy_run(folder / "run"))
    fault, expect = draw_folder(draft)
    out = folder / "out" / "nothing"
    out.parent.mkdir()
    arguments = ["train", str(space.folder / "memory.yaml"), "--out", str(draft.run), "--resume"]
    return Case(
        number=number,
        fault=fault,
        command="train",
        expect=expect,
        arguments=[*arguments, "--quiet"],
        out=out,
        words=(str(draft.run),),
        around=draft.around or nullcontext,
        resumed=draft,
    )

"""A run whose files are cut, changed, gone or of something else."""

import shutil
from pathlib import Path

from benchmarks.faults.inputs.json_faults import json_files, tamper
from benchmarks.faults.inputs.run_faults import damage_run, huge_size
from benchmarks.faults.score_inputs.case import ScoreCase

_TEXTS = (b"", b"{}", b"[]", b"null", b"\xff\xfe\x00", b"a: [1, 2", b"mine: true\n", b"{" * 4000)


def broken_run(case: ScoreCase) -> None:
    """One file of a copy is damaged, or the folder is no run at all."""
    case.into_any_place()
    run = case.space.copy_run(case.folder / "run")
    case.run = str(run)
    how = case.draw.choice(["damaged", "tampered", "tampered", "config", "text", "no run"])
    if how == "damaged":
        damage_run(run, case.draw)
        case.name = "run: a file is damaged"
    elif how == "tampered":
        case.name = f"run: {tamper(case.draw.choice(json_files(run)), case.draw)}"
    elif how == "config":
        case.name = f"run: config.yaml, {_edited(run / 'config.yaml', case)}"
    elif how == "text":
        files = sorted(p for p in run.rglob("*") if p.is_file() and "tensorboard" not in p.parts)
        path, text = case.draw.choice(files), case.draw.choice(_TEXTS)
        path.write_bytes(text)
        case.name = f"run: {path.name} is {text[:12]!r}"
    else:
        case.name = f"run: {_none(run, case)}"


def huge_sizes(case: ScoreCase) -> None:
    """A stranger's run, whose config or encoder says sizes that nothing of it has."""
    case.into_any_place()
    run = case.space.copy_run(case.folder / "run")
    case.run, case.name = str(run), f"run: {huge_size(run, case.draw)}"
    case.refused = True


def _edited(path: Path, case: ScoreCase) -> str:
    """A line of it is gone, or says something else."""
    lines = path.read_text("utf-8").splitlines()
    at = case.draw.randrange(len(lines))
    how = case.draw.choice(["gone", "null", "word", "list", "indent", "twice"])
    key = lines[at].partition(":")[0]
    new = {
        "gone": [], "null": [f"{key}: null"], "word": [f"{key}: word"], "list": [f"{key}: [1, x]"],
        "indent": ["   " + lines[at]], "twice": [lines[at], lines[at]],
    }[how]  # fmt: skip
    path.write_text("\n".join([*lines[:at], *new, *lines[at + 1 :]]) + "\n", "utf-8")
    return f"{key.strip()!r}: {how}"


def _none(run: Path, case: ScoreCase) -> str:
    how = case.draw.choice(["absent", "a file", "empty", "a link to itself", "no vocabulary"])
    case.refused = True
    if how == "absent":
        case.run = str(run) + "-nowhere"
    elif how == "no vocabulary":
        shutil.rmtree(run / "vocabulary")
    else:
        shutil.rmtree(run)
        if how == "a file":
            run.write_text("no run")
        elif how == "empty":
            run.mkdir()
        else:
            run.symlink_to(run)
    return how

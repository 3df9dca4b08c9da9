"""Faults of a run's files, of folders that are resumed, of logs that were rotated, of outputs."""

import copy
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import yaml

from mmoe.config import set_values
from mmoe.datasets.stream.source import StreamSource
from mmoe.run.folder_claim import LOCK, FolderLock, Holder, is_lock_file
from tests.chaos.draft import (
    ROW_GROUP,
    Case,
    Draft,
    Expect,
    Workspace,
    complains,
    either,
    error,
    right,
)
from tests.chaos.small_log import small_log

# A finished run's JSON: well-formed still, but a key is gone or holds something else.
# Values of every type, and odd ones of each
VALUES = (None, "x", "", -1, 0, 1e308, 10**400, True, [], {}, [None], {"x": None}, "y" * 2_000)
_GONE = object()
# The commands that read a file, by its name
READERS = {
    "index.json": ("evaluate", "score", "unshard", "resume", "warm start"),
    "state.json": ("resume",), "metrics.json": ("evaluate", "report"),
    "history.json": ("report",), "curves.json": ("report",),
    "columns.json": ("evaluate", "score", "resume"), "predictions.json": ("score",),
    "encoder.json": ("evaluate", "score", "resume", "warm start"), "warm_start.json": ("resume",),
}  # fmt: skip
SUFFIXES = {"score": ".parquet", "unshard": ".safetensors", "report": ".html"}
KeyPath = tuple[str | int, ...]


def json_files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*.json") if path.name in READERS)


def key_paths(content: Any, before: KeyPath = ()) -> Iterator[KeyPath]:
    """The content itself, every key and the first two items of every list, and all below."""
    yield before
    items: Any = content.items() if isinstance(content, dict) else ()
    for key, value in enumerate(content[:2]) if isinstance(content, list) else items:
        yield from key_paths(value, (*before, key))


def tamper(path: Path, draw: random.Random) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    where = draw.choice(sorted(key_paths(content), key=str))
    value = draw.choice((*VALUES, _GONE)) if where else draw.choice(VALUES)
    changed = inner = copy.deepcopy(content)
    for key in where[:-1]:
        inner = inner[key]
    if value is _GONE:
        del inner[where[-1]]
    elif where:
        inner[where[-1]] = value
    else:
        changed = value
    path.write_text(json.dumps(changed), encoding="utf-8")
    what = "gone" if value is _GONE else repr(value)[:20]
    return f"{path.name} {'.'.join(map(str, where)) or 'all'}: {what}"


def arguments(reader: str, run: Path, log: Path, out: Path) -> list[str]:
    train = ["train", str(run / "config.yaml"), "--quiet"]
    return {
        "evaluate": ["evaluate", str(run), "--data", str(log), "--json", "--quiet"],
        "score": ["score", str(run), "--input", str(log), "--output", str(out), "--quiet"],
        "unshard": ["unshard", str(run), "--output", str(out), "--quiet"],
        "report": ["report", str(run), "--output", str(out)],
        "resume": [*train, "--out", str(run), "--resume"],
        "warm start": [*train, "--out", str(out), "--warm-start", str(run)],
    }[reader]


def _read_by(reader: str, space: Workspace, run: Path, fault: str, expect: Expect) -> Case:
    out = run.parent / "out" / f"out{SUFFIXES.get(reader, '')}"
    return Case(fault, "evaluate", expect, arguments(reader, run, space.log, out), out,
                words=(str(run),))  # fmt: skip


def json_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    run = space.copy_run(folder / "run")
    path = draw.choice(json_files(run))
    reader = draw.choice(READERS[path.name])
    fault = f"tampered_json ({tamper(path, draw)})"
    case = _read_by(reader, space, run, fault, either(reference="none"))
    case.words = (str(run), str(space.log), "--output")
    return case


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :]


def files_of_run(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and "tensorboard" not in p.parts)


def damage_run(run: Path, draw: random.Random) -> Expect:
    path = draw.choice(files_of_run(run))
    content = path.read_bytes()
    how = draw.choice(["cut", "flip", "empty", "gone", "words"])
    if how == "cut":
        path.write_bytes(content[: draw.randrange(1, len(content))])
    elif how == "flip":
        path.write_bytes(flip(content, draw.randrange(len(content))))
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "empty" else b'{"not": "it"}')
    # Some files score nothing; a bit of a weight can be wrong and nobody sees it
    if how == "flip" and path.suffix == ".safetensors":
        return either(reference="none")
    used = path.suffix in (".json", ".yaml", ".parquet", ".safetensors")
    return either(reference="none" if how == "flip" else "clean") if used else error()


# Keys of the small config, each with a size that its tensors do not have
_SIZES = (
    "model.num_experts=1000000000", "model.num_experts=60000", "model.embedding_dim=2000000000",
    "model.embedding_dim=60000", "model.expert.hidden=[1000000000]", "model.expert.hidden=[60000]",
    "model.tower.hidden=[900000000, 900000000]", "features.0.hash_size=1000000000000",
    "model.expert.hidden=[40000, 40000, 40000, 40000]", "features.1.dim=1000000000",
)  # fmt: skip


def huge_size(run: Path, draw: random.Random) -> str:
    """Writes a huge size into a run's config, or into what its encoder has learnt; says which."""
    encoder = run / "vocabulary" / "encoder.json"
    if draw.random() < 0.3:
        learnt = json.loads(encoder.read_text("utf-8"))
        learnt["tables"]["user"]["size"] = draw.choice([10**9, 10**12, 10**19])  # a hash's
        encoder.write_text(json.dumps(learnt), "utf-8")
        return "table user is huge"
    size, config = draw.choice(_SIZES), run / "config.yaml"
    raw = yaml.safe_load(config.read_text("utf-8"))
    if size.startswith("features."):
        _, number, setting = size.split(".")
        key, value = setting.split("=")
        raw["features"][int(number)][key] = int(value)
    else:
        raw = set_values(raw, [size])
    config.write_text(yaml.safe_dump(raw), "utf-8")
    return size


def run_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A damaged run, or a stranger's that says a huge size, and a command that believes it."""
    run = space.copy_run(folder / "run")
    if draw.random() < 0.3:
        fault = f"huge_size ({huge_size(run, draw)})"
        reader = draw.choice(["evaluate", "score", "unshard", "resume", "warm start"])
        # Weights alone, or another run's beside a config of one's own, ask for no size
        expect = either(reference="none") if reader in ("unshard", "resume") else error()
        return _read_by(reader, space, run, fault, expect)
    expect = damage_run(run, draw)
    command = draw.choice(["evaluate", "score"])
    case = _read_by(command, space, run, "damaged_run", expect)
    case.command = command
    return case


# Folders that `mmoe train --resume` may be pointed at: of others, alive, half a run.
# What somebody may have put into the folder of a run
_NOTES = ("notes.txt", "checkpoint/my.pt", "tensorboard/plot.png", "vocabulary/words.txt", ".mine")


@dataclass
class FolderDraft:
    """A folder, at first a finished run, and `theirs`: files that no command may touch."""

    draw: random.Random
    run: Path
    around: Callable[[], Any] | None = None
    theirs: list[str] = field(default_factory=list)

    def write(self, name: str, content: str) -> None:
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        self.theirs.append(name)


def project_folder(d: FolderDraft) -> Expect:
    """It has a config.yaml, and whatever else; it never was a run."""
    theirs = [*d.theirs]
    shutil.rmtree(d.run)
    d.theirs.clear()
    for name in (*theirs, "config.yaml", d.draw.choice(["history.json", "plan.json", "a.py"])):
        d.write(name, "mine: true")
    return error("mmoe.json")


def died_before_its_first_checkpoint(d: FolderDraft) -> Expect:
    """Its own files may go, and only these."""
    for path in (d.run / "checkpoint").glob("step-*"):
        shutil.rmtree(path)
    for name in ("checkpoint/index.json", "metrics.json", "curves.json"):
        (d.run / name).unlink()
    return right("none")


def lost_index(d: FolderDraft) -> Expect:
    """The checkpoints are there; which is the best they may tell."""
    (d.run / "checkpoint" / "index.json").unlink()
    if d.draw.random() < 0.5:
        return either(reference="none")
    (d.run / "mmoe.json").unlink()
    return error("index.json")


def live_lock(d: FolderDraft) -> Expect:
    """A process on this machine trains into it."""

    @contextmanager
    def held() -> Iterator[None]:
        lock = FolderLock(d.run)
        try:
            yield
        finally:
            lock.release()

    d.around = held
    return error("trains into it")


def foreign_lock(d: FolderDraft) -> Expect:
    """A process on another machine did; it is alive, or long dead."""
    path = d.run / LOCK
    here = vars(Holder.here())
    path.write_text(json.dumps({**here, "host": "elsewhere", "machine": "another"}), "utf-8")
    if d.draw.random() < 0.5:
        hour_ago = path.stat().st_mtime - 3600
        os.utime(path, (hour_ago, hour_ago))
        return right("none")
    d.around = lambda: _beating(path)
    return error("elsewhere")


def damaged_mark(d: FolderDraft) -> Expect:
    """Cut, flipped, emptied, or somebody else's file."""
    path = d.run / "mmoe.json"
    content = path.read_bytes()
    how = d.draw.choice(["cut", "flip", "empty", "words"])
    if how == "flip":  # a letter of the run's id can be wrong and nobody sees it
        path.write_bytes(flip(content, d.draw.randrange(len(content))))
        return either(reference="none")
    cut = content[: d.draw.randrange(1, len(content) - 2)]
    path.write_bytes({"cut": cut, "empty": b"", "words": b'{"not": "it"}'}[how])
    return error("mmoe.json")


FOLDER_FAULTS: tuple[Callable[[FolderDraft], Expect], ...] = (
    project_folder, died_before_its_first_checkpoint, lost_index, live_lock, foreign_lock,
    damaged_mark,
)  # fmt: skip


@contextmanager
def _beating(path: Path) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.2):
            with suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def folder_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    draft = FolderDraft(draw, space.copy_run(folder / "run"))
    for name in draw.sample(_NOTES, draw.randrange(1, len(_NOTES))):
        draft.write(name, f"of somebody else: {name}")
    fault = draw.choice(FOLDER_FAULTS)
    expect, before = fault(draft), hashes(draft.run, locks=False)

    def lost(refused: bool) -> str | None:
        """Anything, where it refused."""
        now, names = hashes(draft.run, locks=False), before if refused else draft.theirs
        gone = [name for name in names if now.get(name) != before[name]]
        return f"removed or changed: {', '.join(gone)}" if gone else None

    config = str(space.folder / "memory.yaml")
    given = ["train", config, "--out", str(draft.run), "--resume", "--quiet"]
    case = Case(fault.__name__, "train", expect, given, folder / "out" / "nothing", lost=lost)
    case.words, case.around = (str(draft.run),), draft.around or case.around
    return case


def hashes(folder: Path, locks: bool = True) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file() and (locks or not is_lock_file(p.name))]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


# A log whose files are others than those that a run was trained on


def _add(log: Path) -> None:
    pq.write_table(small_log(100, seed=77), log / "part-3.parquet")


def _rotate(log: Path) -> None:
    (log / "part-0.parquet").unlink()
    _add(log)


def _rewrite(path: Path, rows: Callable[[int], list[int]]) -> None:
    table = pq.read_table(path)
    pq.write_table(table.take(rows(table.num_rows)), path)


def _swap(log: Path) -> None:
    (log / "part-0.parquet").rename(log / "held")
    (log / "part-2.parquet").rename(log / "part-0.parquet")
    (log / "held").rename(log / "part-2.parquet")


def _touch(log: Path) -> None:
    for path in log.iterdir():
        os.utime(path, (1, 1))


# What happens to the files, and what has to be said of them; nothing: the rows are the same
_ROTATIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "remove": (lambda log: (log / "part-1.parquet").unlink(), "part-1.parquet was removed"),
    "add": (_add, "part-3.parquet was added"),
    "rotate": (_rotate, "part-0.parquet was removed"),
    "edit": (lambda log: _rewrite(log / "part-1.parquet", lambda n: [*range(1, n)]),
             "part-1.parquet was changed"),
    "reorder": (lambda log: _rewrite(log / "part-2.parquet", lambda n: [*range(n)][::-1]),
                "part-2.parquet was changed"),
    "swap": (_swap, "part-0.parquet now holds what part-2.parquet held"),
    "rename": (lambda log: (log / "part-2.parquet").rename(log / "part-7.parquet"),
               "part-2.parquet was renamed to part-7.parquet"),
    "touch": (_touch, ""),
}  # fmt: skip


def rotated_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A run and its log are copied to another folder, and then the log changes."""
    log, run = folder / "log", folder / "out" / "run"
    how, name = draw.choice(["memory", "stream"]), draw.choice([*_ROTATIONS])
    change, named = _ROTATIONS[name]
    shutil.copytree(space.parts, log)
    shutil.copytree(space.run(f"parts-{how}"), run)
    config = run / "config.yaml"
    config.write_text(config.read_text("utf-8").replace(str(space.parts), str(log)), "utf-8")
    change(log)
    case = Case(f"{name} ({how})", "evaluate", right("none"), [], run, words=(str(run),))
    if draw.random() < 0.5:
        (run / "metrics.json").unlink()  # as if it had been killed
        case.command, case.expect = "train", error(named) if named else right("none")
        case.arguments = ["train", "--out", str(run), "--resume", "--quiet"]
        return case
    case.arguments = ["evaluate", str(run), "--json"]
    if not named or name == "rename":
        case.arguments.append("--quiet")
    else:
        case.expect = complains("test rows may have been trained on", named)
    return case


# Files that shrink, vanish or are overwritten while they are read

HARMS: tuple[Callable[[Path], object], ...] = (
    Path.unlink,
    lambda path: path.write_bytes(path.read_bytes()[:-60]),
    lambda path: path.write_bytes(path.read_bytes() + b"1,2,3\n"),
    lambda path: path.write_bytes(b"X" * path.stat().st_size),
    lambda path: path.write_bytes(b""),
)


def changes_while_read(d: Draft) -> tuple[Expect, Callable[[], Any]]:
    """A file changes just before the n-th time that a piece of the stream is read."""
    path, harm = d.draw.choice(d.files), d.draw.choice(HARMS)
    # Every piece is read for the encoder first, and once more for the epoch
    pieces = sum(1 if d.is_csv else -(-table.num_rows // ROW_GROUP) for table in d.tables)
    when = d.draw.randrange(1, 2 * pieces)
    return error(path.name), lambda: _harmed(when, path, harm)


@contextmanager
def _harmed(when: int, path: Path, harm: Callable[[Path], object]) -> Iterator[None]:
    read, reads, done = StreamSource.read, 0, False

    def harmful(self: StreamSource, piece: Any, columns: list[str]) -> Iterator[Any]:
        nonlocal reads, done
        reads += 1
        # From then on, as soon as the file itself comes: later nobody might notice
        if reads >= when and not done and piece.file.address == str(path):
            done = True
            harm(path)
        yield from read(self, piece, columns)

    with patch.object(StreamSource, "read", harmful):
        yield


def output_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """An output that would take the place of inputs, of the run's files, or of what is not ours."""
    run, user = space.copy_run(folder / "run"), folder / "user"
    foreign = folder / "foreign"
    user.mkdir()
    foreign.mkdir()
    for n in range(2):
        pq.write_table(small_log(20, seed=n), user / f"0000{n}-day.parquet")
    first = user / "00000-day.parquet"
    (folder / "linked").symlink_to(user)
    (folder / "linked.parquet").hardlink_to(first)
    model = next((run / "checkpoint").glob("step-*/model.safetensors"))
    score = ["score", str(run), "--input", draw.choice([str(user), f"{user}/*.parquet"])]
    (foreign / draw.choice([".notes.tmp", "00000-x.parquet", "notes.txt"])).write_text("mine")
    faults = {
        "output_is_the_input_folder": [*score, "--output", str(user)],
        "output_links_to_the_input": [*score, "--output", str(folder / "linked")],
        "output_is_an_input": [*score, "--output", str(first)],
        "output_is_a_link_of_an_input": [*score, "--output", str(folder / "linked.parquet")],
        "output_holds_what_is_not_ours": [*score, "--output", str(foreign)],
        "output_is_of_the_run": [*score, "--output", str(next(run.glob("vocabulary/*.parquet")))],
        "output_is_the_checkpoint": ["unshard", str(run), "--output", str(model)],
        "output_is_the_metrics": ["report", str(run), "--output", str(run / "metrics.json")],
    }
    name = draw.choice(sorted(faults))

    @contextmanager
    def unchanged() -> Iterator[None]:
        before = hashes(folder)
        yield
        if changed := {name for name, _ in before.items() ^ hashes(folder).items()}:
            raise RuntimeError(f"changed: {', '.join(sorted(changed))}")

    words = (str(run), str(space.log), "--output")
    return Case(name, "evaluate", error(), [*faults[name], "--overwrite"],
                folder / "out" / "scores.parquet", words=words, around=unchanged)  # fmt: skip

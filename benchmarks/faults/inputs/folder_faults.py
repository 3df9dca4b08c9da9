"""Folders that `mmoe train --resume` may be pointed at: of others, alive, half a run."""

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

from benchmarks.faults.inputs.draft import Expect, either, error, right
from mmoe.run.locks import LOCK, FolderLock, Holder, is_lock_file

# What somebody may have put into the folder of a run
_NOTES = ("notes.txt", "checkpoint/my.pt", "tensorboard/plot.png", "vocabulary/words.txt", ".mine")


@dataclass
class FolderDraft:
    """A folder that a run is to be resumed in.

    Attributes:
        draw: All that is random about it.
        run: The folder: at first a finished run.
        around: What goes on while the command runs.
        theirs: Files that no command may touch.
        before: Every file and its content, when all is made.
    """

    draw: random.Random
    run: Path
    around: Callable[[], Any] | None = None
    theirs: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, content: str) -> None:
        """A file of somebody else's."""
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        self.theirs.append(name)

    def lost(self, *, refused: bool) -> str | None:
        """What the command has removed or changed and may not: anything, where it refused."""
        now = _contents(self.run)
        names = self.before if refused else self.theirs
        gone = [name for name in names if now.get(name) != self.before[name]]
        return f"removed or changed: {', '.join(gone)}" if gone else None


def draw_folder(draft: FolderDraft) -> tuple[str, Expect]:
    """Makes one of the faults; its name, and what must come of `train --resume`."""
    for name in draft.draw.sample(_NOTES, draft.draw.randrange(1, len(_NOTES))):
        draft.write(name, f"of somebody else: {name}")
    fault = draft.draw.choice(FOLDER_FAULTS)
    expect = fault(draft)
    draft.before = _contents(draft.run)
    return fault.__name__, expect


def project_folder(draft: FolderDraft) -> Expect:
    """It has a config.yaml, and whatever else; it never was a run."""
    theirs = [*draft.theirs]
    shutil.rmtree(draft.run)
    draft.theirs.clear()
    for name in (*theirs, "config.yaml", draft.draw.choice(["history.json", "plan.json", "a.py"])):
        draft.write(name, "mine: true")
    return error("mmoe.json")


def died_before_its_first_checkpoint(draft: FolderDraft) -> Expect:
    """Its own files may go, and only these."""
    for path in (draft.run / "checkpoint").glob("step-*"):
        shutil.rmtree(path)
    for name in ("checkpoint/index.json", "metrics.json", "curves.json"):
        (draft.run / name).unlink()
    return right("none")


def lost_index(draft: FolderDraft) -> Expect:
    """The checkpoints are there; which is the best they may tell."""
    (draft.run / "checkpoint" / "index.json").unlink()
    if draft.draw.random() < 0.5:
        return either(reference="none")
    (draft.run / "mmoe.json").unlink()
    return error("index.json")


def live_lock(draft: FolderDraft) -> Expect:
    """A process on this machine trains into it."""

    @contextmanager
    def held() -> Iterator[None]:
        lock = FolderLock(draft.run)
        try:
            yield
        finally:
            lock.release()

    draft.around = held
    return error("trains into it")


def foreign_lock(draft: FolderDraft) -> Expect:
    """A process on another machine did; it is alive, or long dead."""
    path = draft.run / LOCK
    here = vars(Holder.here())
    path.write_text(json.dumps({**here, "host": "elsewhere", "machine": "another"}), "utf-8")
    if draft.draw.random() < 0.5:
        hour_ago = path.stat().st_mtime - 3600
        os.utime(path, (hour_ago, hour_ago))
        return right("none")
    draft.around = lambda: _beating(path)
    return error("elsewhere")


def damaged_mark(draft: FolderDraft) -> Expect:
    """Cut, flipped, emptied, or somebody else's file."""
    path = draft.run / "mmoe.json"
    content = path.read_bytes()
    how = draft.draw.choice(["cut", "flip", "empty", "words"])
    if how == "flip":  # a letter of the run's id can be wrong and nobody sees it
        at = draft.draw.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        return either(reference="none")
    cut = content[: draft.draw.randrange(1, len(content) - 2)]
    path.write_bytes({"cut": cut, "empty": b"", "words": b'{"not": "it"}'}[how])
    return error("mmoe.json")


FOLDER_FAULTS = (
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


def _contents(folder: Path) -> dict[str, str]:
    """A hash of every file but the lock, which comes and goes."""
    files = (path for path in folder.rglob("*") if path.is_file() and not is_lock_file(path.name))
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}

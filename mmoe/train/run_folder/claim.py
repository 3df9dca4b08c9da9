"""The folder of a run: written into by one process at a time, cleared of its own files alone."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import DeviceKind, RunConfig, dump_config
from mmoe.errors import Diverged, Interrupted
from mmoe.run import own_files
from mmoe.run.addresses import open_run
from mmoe.run.atomic_files import write_json, write_text
from mmoe.run.directory import RunDirectory
from mmoe.run.folder_claim import (
    MARK,
    FolderClaim,
    FolderMark,
    contents,
    exists_already,
    holds_nothing,
    remove_stray_files,
)
from mmoe.train.prepare import PreparedData
from mmoe.train.run_folder.data import RunData
from mmoe.train.run_folder.data_words import continued_data
from mmoe.train.run_folder.maturity import RunMaturity
from mmoe.train.run_folder.start import first_difference
from mmoe.train.warm_start import WarmStartReport


class RunClaim(FolderClaim):
    """Right to write into the folder of a run. Rank 0 alone has it, and calls these methods.

    A dead run that has a checkpoint is gone on with; of one that has none, what it made is removed
    and a new one begins in its folder. Both are known by the mark, mmoe.json, without which a
    folder has to hold a whole run (of a version that made no marks).

    Args:
        say: Told of waits, and of what was mended.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        super().__init__("run", say)
        self.run: RunDirectory | None = None  # on every rank, once it is known

    @contextmanager
    def raising_interrupted(self) -> Generator[None]:
        """Turns a Ctrl-C into `Interrupted`, which says what there is to resume."""
        try:
            yield
        except KeyboardInterrupt as stop:
            if self.run is None:
                raise
            saved = CheckpointFolder(self.run.checkpoint).exists()
            raise Interrupted(self.run.path, saved) from stop

    def find(self, out: Path, config: RunConfig, resume: bool) -> RunDirectory | None:
        """Finds and locks the interrupted run in `out`; None: a new one can begin there.

        Raises:
            ValueError: `out` holds something else, or another process writes into it.
        """
        if not out.exists() or holds_nothing(out):
            return None
        if not out.is_dir():
            raise ValueError(f"{out}: exists already, a file; choose another --out, a folder")
        if not resume:
            raise exists_already(out)
        run = RunDirectory(out)
        if FolderMark.read(out) is None and not _is_whole(run):
            raise _not_a_run(run)
        self.hold(out)
        if self.mark is None and not _is_whole(run):  # the process that held it took all away
            if holds_nothing(out):
                return None
            raise _not_a_run(run)
        if self.mark is not None and self.mark.kind != "run":
            raise ValueError(f"{out}: is the folder of a {self.mark.kind}; choose another --out")
        remove_stray_files(out)
        if not CheckpointFolder(run.checkpoint).exists() and not self._has_found_index(run):
            self._clear(run)
            return None
        _check_same_config(run, config)
        if self.mark is not None and self.mark.diverged is not None:
            self.say(f"{out} diverged before and may well do so again: {self.mark.diverged}")
        return run

    def start(
        self,
        config: RunConfig,
        prepared: PreparedData,
        out: Path,
        report: WarmStartReport | None,
        *,
        numbered: bool = False,
    ) -> RunDirectory:
        """Begins a new run: the mark first, by which `--resume` knows that the rest may go.

        Raises:
            ValueError: Another process was faster.
        """
        text = dump_config(config)
        run = RunDirectory(self.create(out, config_sha256=_digest(text), numbered=numbered))
        if report is not None:  # early, so that no --resume can forget it
            write_json(run.warm_start_file, report.as_dict())
        write_text(run.config_file, text)
        earlier = None if report is None else open_run(report.run, tensors=())
        continued = [] if earlier is None else continued_data(earlier, config, prepared.data)
        RunData(data=prepared.data, continued=continued).save(run)
        if prepared.maturity is not None:
            RunMaturity.of(prepared.maturity, prepared.masked).save(run)
        prepared.encoder.save(run.vocabulary)
        return run

    def give_up(self, run: RunDirectory) -> None:
        """Removes a run that failed before its first checkpoint."""
        if CheckpointFolder(run.checkpoint).exists() or self.lock is None:
            return
        if self.lock.is_mine() and run.path.is_dir():
            _remove_what_it_made(run)
            self.withdraw()

    def told_of_the_end(self, run: RunDirectory, error: Exception) -> Exception:
        """Returns the error to raise where training failed, with what would help."""
        if isinstance(error, OSError):
            try:
                self.check()
            except ValueError as gone:  # and so nothing could be written there
                return gone
        if not isinstance(error, Diverged) or not CheckpointFolder(run.checkpoint).exists():
            return error
        self.remember(str(error))
        return Diverged(
            f"{error}; with another --out, for a --resume of {run.path} keeps the config and would "
            f"diverge again (--warm-start {run.path} goes on from its best epoch)"
        )

    def _has_found_index(self, run: RunDirectory) -> bool:
        """Whether a lost index.json could be made anew; False: there is no checkpoint at all.

        Raises:
            ValueError: There are checkpoints, and which is the best cannot be told.
        """
        folder = CheckpointFolder(run.checkpoint)
        steps = folder.whole_steps()
        if not steps:
            return False
        index = folder.index_of(steps)
        if index is None:
            raise ValueError(
                f"{folder.path}: holds {', '.join(steps)}, but index.json, which names the latest "
                f"and the best of them, is gone, and they do not tell; write it "
                f"({json.dumps({'latest': steps[-1], 'best': 'step-…'})}), or choose another --out"
            )
        write_json(folder.path / "index.json", index)
        self.say(f"{folder.path / 'index.json'} was gone; made anew from {', '.join(steps)}")
        return True

    def _clear(self, run: RunDirectory) -> None:
        """Removes what a run left that died before its first checkpoint."""
        assert self.mark is not None, "without a mark a run has a checkpoint"
        written = run.config_file.exists() and run.config_file.read_bytes()
        if written is not False and sha256(written).hexdigest() != self.mark.config_sha256:
            raise ValueError(
                f"{run.config_file}: was changed since the run wrote it, and the run has no "
                f"checkpoint yet to go on from; move it out of {run.path} and train with it, or "
                "choose another --out"
            )
        _remove_what_it_made(run)


def _remove_what_it_made(run: RunDirectory) -> None:
    """Files by their names, in folders by theirs; whatever else is there stays."""
    own_files.remove_files(run.vocabulary, own_files.VOCABULARY_FILE)
    own_files.remove_folders(run.checkpoint, own_files.STEP_FOLDER, own_files.STEP_FILE)
    own_files.remove_files(run.checkpoint, own_files.STRAY_POINTER)
    own_files.remove_files(run.tensorboard, own_files.EVENT_FILE)
    own_files.remove_files(run.profile, own_files.PROFILE_FILE)
    own_files.remove_folders(run.path, own_files.STRAY_PROFILE, own_files.PROFILE_FILE)
    for path in own_files.matching(run.path, own_files.EARLY_FILE):
        path.unlink()
    remove_stray_files(run.path)


def _is_whole(run: RunDirectory) -> bool:
    needed = (run.config_file, run.vocabulary, run.checkpoint / "index.json")
    return all(path.exists() for path in needed)


def _not_a_run(run: RunDirectory) -> ValueError:
    steps = CheckpointFolder(run.checkpoint).whole_steps()
    lost = ""
    if steps:
        lost = f"; checkpoint/ holds {', '.join(steps)}, but no index.json that names the best"
    return ValueError(
        f"{run.path}: holds {contents(run.path)}, but no {MARK}, the mark of a run that --resume "
        f"could go on with{lost}; nothing was touched: choose another --out, or name a run's folder"
    )


# Where spread experts are, and how rows meet them: sums then round otherwise, and nothing else
_WAYS_OF_EXPERTS = (
    "replicas",
    "experts_per_rank",
    "slices",
    "shadowed",
    "rebalance",
    "exchange",
    "chunks",
    "host_size",
)


def _check_same_config(run: RunDirectory, config: RunConfig) -> None:
    if not run.config_file.exists():
        raise ValueError(
            f"{run.config_file}: is gone, and with it what the run was trained with; put it back, "
            "or choose another --out"
        )
    # Of an earlier version the file may lack keys, whose defaults say what it did then. And a run
    # may go on on another device, and on ranks that share experts out, or reach them, otherwise
    there = run.config()
    here = _on(config, there.training.device)
    placed = {key: getattr(there.parallel, key) for key in _WAYS_OF_EXPERTS}
    parallel = here.parallel.model_copy(update=placed)
    here = here.model_copy(update={"parallel": parallel})
    difference = first_difference(there.model_dump(), here.model_dump())
    if difference:
        raise ValueError(
            f"{run.path}: was trained with another config ({difference}); "
            f"resume with the same one, or choose another --out"
        )


def _on(config: RunConfig, device: DeviceKind) -> RunConfig:
    training = config.training.model_copy(update={"device": device})
    return config.model_copy(update={"training": training})


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()

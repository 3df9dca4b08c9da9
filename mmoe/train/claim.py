"""The folder of a run, or of many: one config and data set on all ranks, one that writes.

Of many runs of one config plan.json says what they share, so that they can be gone on with.
"""

import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from zlib import crc32

from mmoe.checkpoint import CheckpointFolder
from mmoe.config import RunConfig, Stored, config_from_dict, dump_config, read_model
from mmoe.config.run import with_vector_paths
from mmoe.datasets.files.data_file import absolute
from mmoe.datasets.files.fingerprint import DataPrint, data_changes, shown
from mmoe.datasets.rows.sources import below
from mmoe.errors import Diverged, RanksDiffer
from mmoe.parallel import first_other, from_all
from mmoe.run import FolderClaim, RunDirectory, open_run, write_json, write_text
from mmoe.run.folder_claim import (
    EARLY_FILE,
    EVENT_FILE,
    MARK,
    PROFILE_FILE,
    STEP_FILE,
    STEP_FOLDER,
    STRAY_FILE,
    VOCABULARY_FILE,
    contents,
    matching,
    remove_files,
    remove_folders,
    remove_stray_files,
)
from mmoe.train.prepare import PreparedData
from mmoe.train.run_data import RunData, RunMaturity, continued_data
from mmoe.train.warm_start import WarmStartReport

_KEYS_SHOWN = 5
_PACKAGES = ("mmoe", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "pyarrow")


def with_absolute_paths(config: RunConfig, data: str | Path | None) -> RunConfig:
    """Makes the config's paths absolute, and puts `data` in its place."""
    section, folder = config.data, None
    found = {name: getattr(section, name) for name in ("path", "train", "validation", "test")}
    if data is not None and section.split.by == "file":
        folder = data  # that holds the three files
    elif data is not None:
        found["path"] = str(data)

    update = {}
    for name, paths in found.items():
        if paths is not None:
            paths = below(folder, paths)
            update[name] = absolute(paths) if isinstance(paths, str) else [*map(absolute, paths)]
    config = with_vector_paths(config, absolute)
    config = config.model_copy(update={"data": section.model_copy(update=update)})
    return config.with_weight_files(absolute)


def without_paths(config: RunConfig) -> RunConfig:
    """Returns the config without paths: rows from memory must not seem to have come from files."""
    nowhere = {"path": None, "train": None, "validation": None, "test": None}
    return config.model_copy(update={"data": config.data.model_copy(update=nowhere)})


def same_on_all_ranks(config: RunConfig, out: Path, options: Mapping[str, Any]) -> Path:
    """Refuses ranks that were started with different settings; returns rank 0's folder.

    Args:
        config: Of this rank.
        out: The folder to write.
        options: What else was asked for, by the names of the command line.

    Raises:
        ValueError: The config or an option of a rank is another; the same text on every rank.
    """
    started = from_all(({**config.model_dump(mode="json"), **options}, str(out)))
    first, folder = started[0]
    for r, (config_of_rank, _) in enumerate(started):
        found = [*differences(first, config_of_rank)]
        if found:
            more = f" and {len(found) - _KEYS_SHOWN} more" if len(found) > _KEYS_SHOWN else ""
            raise RanksDiffer(
                f"rank {r} was started with another config than rank 0: "
                f"{'; '.join(found[:_KEYS_SHOWN])}{more} (rank 0's is called there, rank {r}'s "
                "here); start all ranks with the same command and the same file"
            )
    return Path(folder)


def same_data_on_all_ranks(prepared: PreparedData) -> None:
    """Refuses ranks that have read different rows: they share batches by number.

    Raises:
        ValueError: A rank has read something else; the same text on every rank.
    """
    splits = (prepared.train, prepared.validation, prepared.test)
    held = prepared.train.held
    labels = None if held is None else held.labels
    seen = {
        "rows of train, validation and test": [len(rows) for rows in splits],
        "files": prepared.fingerprint,
        "sizes or content of the files": prepared.data.digest(),
        "ids": prepared.encoder.fingerprint(),
        "labels": 0 if labels is None else crc32(labels.labels_NT.tobytes()),
    }
    found = first_other(seen)
    if found is not None:
        r, other, first = found
        what = next(what for what in first if other[what] != first[what])
        shown = f" ({other[what]} and {first[what]})" if isinstance(first[what], list) else ""
        raise ValueError(
            f"{prepared.origin}: rank {r} has read other data than rank 0: the {what} "
            f"differ{shown}; give all ranks the same files, on a file system that they share"
        )


def same_warm_start_on_all_ranks(report: WarmStartReport) -> None:
    """Waits for every rank's warm start; refuses where they found different things.

    Raises:
        ValueError: A rank has read another checkpoint; the same text on every rank.
    """
    found = first_other(asdict(report))
    if found is not None:
        r, other, first = found
        raise ValueError(
            f"--warm-start {report.run}: rank {r} has read another checkpoint there than rank "
            f"0 ({first_difference(first, other)}; rank 0's is called there, rank {r}'s here); "
            "let that run finish first, and give all ranks one folder that they share"
        )


def all_see(run: RunDirectory) -> None:
    """Refuses ranks that do not have one folder in common.

    Raises:
        ValueError: A rank has not; the same text on every rank.
    """
    blind = [r for r, sees in enumerate(from_all(run.config_file.exists())) if not sees]
    if blind:
        raise RanksDiffer(
            f"rank {blind[0]} cannot see {run.path}, which rank 0 has made; all ranks need one "
            "folder: name one that they share with --out"
        )


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names the first key whose value differs, for an error; empty where none does."""
    return next(differences(old, new), "")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Lists the keys whose values differ, with the values where these are short."""
    pairs: list[tuple[str, Any, Any]] = [("", old, new)]
    while pairs:
        path, one, two = pairs.pop(0)
        if isinstance(one, dict) and isinstance(two, dict):
            keys = [*one, *(key for key in two if key not in one)]
            pairs[:0] = [(f"{path}.{key}".lstrip("."), one.get(key), two.get(key)) for key in keys]
        elif one != two:
            yield f"{path}: {one!r} there, {two!r} here" if len(repr(one)) < 80 else path


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python and of what is installed of the packages that matter.

    Example:
        >>> "torch" in installed_versions()
        True
    """
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


_PLAN = "plan.json"


class _Plan(Stored):
    """plan.json."""

    config: dict[str, Any]
    data: DataPrint


class RunClaim(FolderClaim):
    """Right to write into the folder of a run. Rank 0 alone has it, and calls these methods.

    A dead run that has a checkpoint is gone on with; of one that has none, what it made is removed
    and a new one begins in its folder. Both are known by the mark, mmoe.json.

    Args:
        say: Told of waits, and of what was mended.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        super().__init__("run", say)

    def saved(self, folder: Path) -> bool:
        """Returns whether there is a checkpoint."""
        return CheckpointFolder(RunDirectory(folder).checkpoint).exists()

    def find(self, out: Path, config: RunConfig, resume: bool) -> RunDirectory | None:
        """Finds and locks the interrupted run in `out`; None: a new one can begin there.

        Raises:
            ValueError: `out` holds something else, or another process writes into it.
        """
        if not self.go_on(out, resume=resume):
            return None
        run = RunDirectory(out)
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
        digest = sha256(text.encode()).hexdigest()
        run = RunDirectory(self.create(out, config_sha256=digest, numbered=numbered))
        if report is not None:  # early, so that no --resume can forget it
            write_json(run.warm_start_file, asdict(report))
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

    def wrap_error(self, run: RunDirectory, error: Exception) -> Exception:
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

    def foreign(self, out: Path) -> ValueError:
        """Makes the refusal of a folder that is not known for a run's."""
        steps = CheckpointFolder(RunDirectory(out).checkpoint).whole_steps()
        lost = ""
        if steps:
            lost = f"; checkpoint/ holds {', '.join(steps)}, but no index.json that names the best"
        return ValueError(
            f"{out}: holds {contents(out)}, but no {MARK}, the mark of a run that --resume could "
            f"go on with{lost}; nothing was touched: choose another --out, or name a run's folder"
        )

    def _has_found_index(self, run: RunDirectory) -> bool:
        """Whether a lost index.json could be made anew; False: there is no checkpoint at all."""
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
    remove_files(run.vocabulary, VOCABULARY_FILE)
    remove_folders(run.checkpoint, STEP_FOLDER, STEP_FILE)
    remove_files(run.checkpoint, STRAY_FILE)
    remove_files(run.tensorboard, EVENT_FILE)
    remove_files(run.profile, PROFILE_FILE)
    for path in matching(run.path, EARLY_FILE):
        path.unlink()
    remove_stray_files(run.path)


# Where spread experts are, and how rows meet them: sums then round otherwise, and nothing else
_WAYS_OF_EXPERTS = (
    *("replicas", "experts_per_rank", "slices", "shadowed", "rebalance", "exchange", "chunks"),
    "host_size",
)


def _check_same_config(run: RunDirectory, config: RunConfig) -> None:
    if not run.config_file.exists():
        raise ValueError(
            f"{run.config_file}: is gone, and with it what the run was trained with; put it back, "
            "or choose another --out"
        )
    # It may go on on another device, and on ranks that share experts out, or reach them, otherwise
    there = run.config()
    training = config.training.model_copy(update={"device": there.training.device})
    placed = {key: getattr(there.parallel, key) for key in _WAYS_OF_EXPERTS}
    parallel = config.parallel.model_copy(update=placed)
    here = config.model_copy(update={"training": training, "parallel": parallel})
    difference = first_difference(there.model_dump(), here.model_dump())
    if difference:
        raise ValueError(
            f"{run.path}: was trained with another config ({difference}); "
            f"resume with the same one, or choose another --out"
        )


def begin_planned(
    claim: FolderClaim, out: Path, config: RunConfig, data: DataPrint, *, numbered: bool
) -> Path:
    """Makes the folder and its plan.json, or checks that the one there has the same.

    Returns:
        The folder.

    Raises:
        ValueError: It was begun with another config or other rows, or another process was faster.
    """
    if claim.lock is None:
        out = claim.create(out, numbered=numbered)
    if (out / _PLAN).exists():
        _check_plan(out, config, data)
    else:
        plan = {"config": config.model_dump(mode="json"), "data": data.model_dump(mode="json")}
        write_json(out / _PLAN, plan)
    claim.begun = out
    return out


def _check_plan(out: Path, config: RunConfig, data: DataPrint) -> None:
    old = read_model(out / _PLAN, _Plan, "choose another --out")
    # Read as any run's config: what it names is not imported
    begun = config_from_dict(old.config, f"{out / _PLAN}: config", of_run=True)
    difference = first_difference(begun.model_dump(mode="json"), config.model_dump(mode="json"))
    if difference:
        raise ValueError(
            f"{out}: was begun with another config ({difference}); resume with the same one, or "
            "choose another --out"
        )
    changes = data_changes(old.data, data)
    if changes:
        raise ValueError(
            f"{out}: the data has changed since it was begun ({shown(changes)}), so its runs "
            "would not be on the same rows; bring back what was there, or choose another --out"
        )

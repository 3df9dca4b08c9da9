"""How a run begins or goes on on all ranks: one config, one data set, one folder."""

import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from zlib import crc32

from mmoe.config import RunConfig
from mmoe.config.run import with_vector_paths
from mmoe.datasets.files.data_file import is_address
from mmoe.datasets.rows.sources import below
from mmoe.errors import RanksDiffer
from mmoe.models.frozen import with_weight_files
from mmoe.parallel import first_other, from_all
from mmoe.run.directory import RunDirectory
from mmoe.train.prepare import PreparedData
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

    def absolute(path: str) -> str:
        return path if is_address(path) else str(Path(path).absolute())

    update = {}
    for name, paths in found.items():
        if paths is not None:
            paths = below(folder, paths)
            update[name] = absolute(paths) if isinstance(paths, str) else [*map(absolute, paths)]
    config = with_vector_paths(config, absolute)
    config = config.model_copy(update={"data": section.model_copy(update=update)})
    return with_weight_files(config, absolute)


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
    found = first_other(report.as_dict())
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
    return found | {name: known for name in _PACKAGES if (known := _version(name))}


@cache  # every run asks, and each package's metadata are a file
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

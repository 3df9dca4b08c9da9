"""What a command must not write over: the files that it reads, and those that a run is made of."""

from collections.abc import Iterable
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from mmoe.datasets.files.data_file import DataFile, is_address, is_hidden
from mmoe.run.directory import RunDirectory

# Which file it is, whatever it is called: links, `..` and other cases of letters lead to the same
Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """Returns device and inode of a file; None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identities(paths: Iterable[Path]) -> dict[Identity, Path]:
    """Returns the files that are there, each under one of its names."""
    return {key: path for path in paths if (key := identity(path)) is not None}


def local_path(file: DataFile) -> Path | None:
    """Returns where a file lies on this machine; None where it is fetched from elsewhere."""
    if not is_address(file.address):
        return Path(file.address)
    # Of a chain such as simplecache::file://… the last link says where the bytes are
    filesystem, path = fsspec.url_to_fs(file.address.rpartition("::")[2])
    return Path(path) if isinstance(filesystem, LocalFileSystem) else None


def check_not_read(
    output: Path, files: Iterable[DataFile], source: str | Path, *, folder: bool
) -> None:
    """Refuses a place that holds what is read, or where it would be found by who reads next.

    Args:
        output: A file or a folder to write.
        files: That are read.
        source: What the user called them.
        folder: Whether `output` is one.

    Raises:
        ValueError: Says which of the files it is.
    """
    read = [path for file in files if (path := local_path(file)) is not None]
    if not folder:
        found = identities(read).get(identity(output) or (-1, -1))
        if found is not None:
            raise ValueError(
                f"--output {output}: is {found}, which --input {source} reads; name another file"
            )
        _refuse_inside(output, source, "a file")
        return
    place = identity(output) or (-1, -1)
    held = next((path for path in read if identity(path.parent) == place), None)
    if held is not None:
        raise ValueError(
            f"--output {output}: holds {held.name}, which --input {source} reads; name another "
            "folder"
        )
    _refuse_inside(output, source, "a folder")


def check_not_read_at(output: str, files: Iterable[DataFile], source: str, *, folder: bool) -> None:
    """Refuses an address that is read, or lies where it would be read next.

    Args:
        output: The address of a file or a folder to write.
        files: That are read.
        source: What the user called them.
        folder: Whether `output` is one.

    Raises:
        ValueError: Says which of the files it is.
    """
    filesystem, place = fsspec.url_to_fs(output)
    place = place.rstrip("/")
    for file in files:
        if not is_address(file.address):
            continue
        other, path = fsspec.url_to_fs(file.address)
        if type(other) is type(filesystem) and (
            path.rpartition("/")[0] == place if folder else path == place
        ):
            raise ValueError(
                f"--output {output}: holds {file.name}, which --input {source} reads; name another "
                "place"
            )
    if is_address(source):
        other, around = fsspec.url_to_fs(source)
        inside = type(other) is type(filesystem) and place.startswith(f"{around.rstrip('/')}/")
        if inside and not any(map(is_hidden, place[len(around.rstrip("/")) :].split("/"))):
            raise ValueError(
                f"--output {output}: lies in --input {source}, where the scores would be read as "
                "rows next time; name a place outside it"
            )


def _refuse_inside(output: Path, source: str | Path, what: str) -> None:
    if _lies_in(output, Path(str(source))):
        raise ValueError(
            f"--output {output}: lies in --input {source}, where the scores would be read as rows "
            f"next time; name {what} outside it"
        )


def _lies_in(output: Path, folder: Path) -> bool:
    """Whether the files of a folder are among those that another one means."""
    place, around = _real(output), _real(folder)
    if not around.is_dir() or not place.is_relative_to(around):
        return False
    return not any(map(is_hidden, place.relative_to(around).parts))


def _real(path: Path) -> Path:
    """Follows links."""
    try:
        return path.resolve()
    except RuntimeError:  # what Python before 3.13 says of a loop
        raise ValueError(
            f"{path}: is a link that leads back to itself; name another place"
        ) from None


def check_not_of_run(output: Path, run: RunDirectory) -> None:
    """Refuses a file of a run, and any place in the folders that training writes and clears.

    Raises:
        ValueError: Says what it is.
    """
    folders = (run.checkpoint, run.vocabulary, run.tensorboard, run.profile)
    place = _real(output)
    for folder in folders:
        if place == folder.resolve() or place.is_relative_to(folder.resolve()):
            raise ValueError(
                f"--output {output}: lies in {folder}, where the run itself is kept; name another "
                "place"
            )
    own = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    own += [path for path in run.path.iterdir() if path.suffix in (".json", ".yaml")]
    own.append(run.path / "predictions.parquet")  # of a day of a backtest
    found = identities(own).get(identity(output) or (-1, -1))
    if found is not None:
        raise ValueError(
            f"--output {output}: is {found}, a file of the run itself; name another file"
        )

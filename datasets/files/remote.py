"""Folders and globs on any file system that fsspec knows."""

from collections.abc import Callable, Iterable
from typing import Any

import fsspec

from mmoe.datasets.files.data_file import DataFile, is_glob, is_hidden_match, natural_key

_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2"}


def not_reached(address: str, error: Exception) -> ValueError:
    """Says on one line what a file system raised, and how it is mended."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, ImportError | ValueError):
        return ValueError(
            f"{address}: cannot be opened ({reason}); check the protocol, or install its fsspec "
            "package"
        )
    return ValueError(
        f"{address}: cannot be reached ({reason}); check the address and the credentials"
    )


def has_folders(filesystem: Any) -> bool:
    """Returns whether a file needs its folder to be there: object stores have none.

    One that is asked to make a folder might make a bucket.
    """
    protocol = filesystem.protocol
    return not ({protocol} if isinstance(protocol, str) else set(protocol)) & _OBJECT_STORES


def resolve_address(address: str, choose: Callable[[Iterable[str]], list[str]]) -> list[DataFile]:
    """Lists the files that an address means.

    Args:
        address: Of a file, a folder or a glob, such as `s3://logs/day=*/*.parquet`.
        choose: The data files among names below a folder, in their order.

    Raises:
        ValueError: The protocol is not known, its package is missing, or nothing is there.
    """
    try:
        filesystem, path = fsspec.url_to_fs(address)
        filesystem.invalidate_cache()
        if is_glob(path):
            found = map(str, filesystem.glob(path))
            matches = [match for match in found if not is_hidden_match(match, path)]
        else:
            matches = [path] if filesystem.exists(path) else []
        files = []
        for match in sorted(map(str, matches), key=natural_key):
            if filesystem.isfile(match):
                files.append(match)
                continue
            start = len(match.rstrip("/")) + 1
            files += [
                f"{match.rstrip('/')}/{name}"
                for name in choose(str(found)[start:] for found in filesystem.find(match))
            ]
    except Exception as error:  # each file system raises its own kind
        raise not_reached(address, error) from None
    if not matches:
        what = "no file matches; check the pattern" if is_glob(path) else "no such file"
        raise ValueError(f"{address}: {what}")
    return [DataFile(str(filesystem.unstrip_protocol(file))) for file in dict.fromkeys(files)]

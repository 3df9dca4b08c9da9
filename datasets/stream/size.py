"""Decides whether a run's rows are streamed or read into memory first."""

from dataclasses import replace
from pathlib import Path

from mmoe.config import RunConfig
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import file_columns
from mmoe.datasets.files.parquet_files import parquet_bytes
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.datasets.rows.projection import required_columns
from mmoe.datasets.rows.sources import with_names

_MEGABYTE = 1_000_000


def wants_stream(config: RunConfig, data: str | Path | None = None) -> bool:
    """Returns whether to stream: by `data.input`, or where that is auto by bytes.

    Args:
        config: Of the run.
        data: Other rows than those of the config.

    Raises:
        ValueError: The rows come from no files, but `data.input` is stream.
    """
    section = config.data
    if section.source != "files":
        if section.input == "stream":
            raise ValueError(
                f"data.input: stream reads files, but data.source is {section.source}; set "
                "data.input: auto, or data.source: files with data.path"
            )
        return False
    if section.input != "auto":
        return section.input == "stream"
    paths = [with_names(config, path) for path in ([data] if data else _configured(config))]
    left = section.streaming.above_mb * _MEGABYTE
    for path in paths:
        for file in resolve_files(path):
            left -= _bytes(file, config)
            if left < 0:
                _refuse_groups(config)
                return True
    return False


def _refuse_groups(config: RunConfig) -> None:
    """Rows that a loss compares must be in one batch, which a stream cannot see to."""
    if config.compared_group is not None:
        raise ValueError(
            f"data.input: auto streams more than {config.data.streaming.above_mb:,} MB, but tasks "
            f"of kinds bpr, softmax and jrc need the rows of each {config.compared_group!r} in one "
            "batch; set data.input: memory (or a higher data.streaming.above_mb)"
        )


def _configured(config: RunConfig) -> list[str]:
    section = config.data
    names = ("train", "validation", "test") if section.split.by == "file" else ("path",)
    found = [getattr(section, name) for name in names]
    return [p for paths in found for p in ([paths] if isinstance(paths, str) else paths or [])]


def _bytes(file: DataFile, config: RunConfig) -> int:
    stored = replace(file, lake=None)  # a file of a lake table is one of Parquet
    if kind_of(stored) != "parquet":
        return file.size()
    columns = required_columns(config, file_columns(file))
    file = stored
    return parquet_bytes(file, [*columns, *([file.candidates] if file.candidates else [])])

"""Writes a workload as Parquet, once, and says where it lies."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.train.workloads import Workload
from benchmarks.train.world import Columns, World

ROWS_PER_GROUP = 50_000
GROUPS_PER_FILE = 8
# Of the training rows of a full-sized log
VALIDATION_SHARE, TEST_SHARE = 1 / 40, 1 / 4


@dataclass(frozen=True)
class Log:
    """Where the parts of a log lie; each is a folder of Parquet files."""

    workload: Workload
    folder: Path
    rows: int

    @property
    def train(self) -> Path:
        """Rows to train on."""
        return self.folder / "train"

    @property
    def validation(self) -> Path:
        """Rows that a run looks at after an epoch."""
        return self.folder / "validation"

    @property
    def test(self) -> Path:
        """Rows that are reported."""
        return self.folder / "test"


def write_log(
    workload: Workload, rows: int, cache: Path, *, seed: int = 0, held_out: int | None = None
) -> Log:
    """Writes the log, unless the folder has it already.

    Args:
        workload: Columns and tasks.
        rows: To train on, before `workload.share`.
        cache: Folder of all logs.
        seed: Of truth and rows. The first rows of a longer log are those of a shorter one.
        held_out: As many validation and test rows as for a log of so many rows.
    """
    kept = max(1, round(rows * workload.share))
    base = round((held_out or rows) * workload.share)
    log = Log(workload, cache / f"{workload.name}-{kept}-{base}-{seed}", kept)
    if not log.folder.exists():
        partial = log.folder.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        world = World(workload, seed)
        sizes = (kept, max(200, int(base * VALIDATION_SHARE)), max(200, int(base * TEST_SHARE)))
        for number, (part, size) in enumerate(
            zip(("train", "validation", "test"), sizes, strict=True)
        ):
            _write_part(world, partial / part, size, [seed, 10 + number])
        partial.rename(log.folder)  # a killed run leaves no half log
    return log


def _write_part(world: World, folder: Path, rows: int, seed: list[int]) -> None:
    folder.mkdir(parents=True)
    starts = range(0, rows, ROWS_PER_GROUP)
    for file_number in range(0, len(starts), GROUPS_PER_FILE):
        path = folder / f"part-{file_number // GROUPS_PER_FILE:03d}.parquet"
        writer: pq.ParquetWriter | None = None
        for group in range(file_number, min(file_number + GROUPS_PER_FILE, len(starts))):
            size = min(ROWS_PER_GROUP, rows - starts[group])
            table = _table(world, size, [*seed, group])
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _table(world: World, rows: int, seed: list[int]) -> pa.Table:
    # A whole group is drawn and cut, so that a shorter log begins like a longer one
    columns = world.draw(ROWS_PER_GROUP, [*seed, 0])
    labels_NT = world.labels(columns, [*seed, 1])
    arrays = {c.column: _ids(columns, c.column) for c in world.workload.ids}
    for number, name in enumerate(world.workload.dense_columns):
        arrays[name] = pa.array(np.ascontiguousarray(columns.dense_NF[:, number]))
    for number, task in enumerate(world.workload.tasks):
        arrays[task] = pa.array(np.ascontiguousarray(labels_NT[:, number]))
    return pa.table(arrays).slice(0, rows)


def _ids(columns: Columns, name: str) -> pa.Array:
    values = pa.array(columns.ids[name])
    if name not in columns.offsets:
        return values
    return pa.ListArray.from_arrays(pa.array(columns.offsets[name].astype(np.int32)), values)

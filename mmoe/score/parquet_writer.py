"""`ParquetWriter`: tables of any height to a file whose row groups are large."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# What engines that read columns like: DuckDB's own row groups are as large
_ROWS_PER_GROUP = 122_880


class ParquetWriter:
    """A Parquet file whose schema is that of the first table written.

    Args:
        path: Is written from the first table on, and complete when the block is left.
        metadata: Of the file.
    """

    def __init__(self, path: Path, metadata: Mapping[bytes, bytes]) -> None:
        self.path, self.metadata = path, metadata
        self.writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> "ParquetWriter":
        return self

    def write(self, table: pa.Table) -> None:
        """Adds rows."""
        table = table.replace_schema_metadata(self.metadata)
        if self.writer is None:
            options: dict[str, Any] = {"use_dictionary": _repeating(table.schema)}
            self.writer = pq.ParquetWriter(self.path, table.schema, compression="zstd", **options)
        self._waiting.append(table)
        if sum(map(len, self._waiting)) >= _ROWS_PER_GROUP:
            self._flush()

    def note(self, metadata: Mapping[bytes, bytes]) -> None:
        """Writes what is known of all rows, after them: further metadata."""
        # Of pyarrow's releases, older ones cannot add to what they have begun
        if self.writer is not None and hasattr(self.writer, "add_key_value_metadata"):
            self.writer.add_key_value_metadata(metadata)

    def _flush(self) -> None:
        if self.writer is not None and self._waiting:
            self.writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        if self.writer is not None:
            self.writer.close()


def _repeating(schema: pa.Schema) -> list[str] | bool:
    """Columns worth a dictionary: not scores, whose dictionary would grow and be given up."""
    if any(pa.types.is_nested(field.type) for field in schema):
        return True  # columns inside others have names of their own
    return [field.name for field in schema if not pa.types.is_floating(field.type)]

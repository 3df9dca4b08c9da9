"""Data files: names to files, one reader for each format, and what a file held when it was read.

`resolve_files` finds them, `read_table` and `iter_tables` read them whole or in chunks,
`cut_file` cuts the rows of a Parquet file into spans, `print_files` and `data_changes` tell
whether they are still what they were.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.files.changed_data import data_changes, same_rows
    from mmoe.datasets.files.data_file import DataFile, is_address
    from mmoe.datasets.files.fingerprint import (
        DataPrint,
        RowsPrint,
        print_data,
        print_files,
        print_tables,
    )
    from mmoe.datasets.files.formats import (
        cut_file,
        file_columns,
        file_types,
        folder_columns,
        iter_file,
    )
    from mmoe.datasets.files.parquet_files import Footers, parquet_bytes, parquet_layout
    from mmoe.datasets.files.readers import (
        Paths,
        column_names,
        common_schema,
        iter_tables,
        plain_columns,
        read_table,
        widen,
    )
    from mmoe.datasets.files.resolve import kind_of, resolve_files

__all__ = [
    "DataFile",
    "DataPrint",
    "Footers",
    "Paths",
    "RowsPrint",
    "column_names",
    "common_schema",
    "cut_file",
    "data_changes",
    "file_columns",
    "file_types",
    "folder_columns",
    "is_address",
    "iter_file",
    "iter_tables",
    "kind_of",
    "parquet_bytes",
    "parquet_layout",
    "plain_columns",
    "print_data",
    "print_files",
    "print_tables",
    "read_table",
    "resolve_files",
    "same_rows",
    "widen",
]

__getattr__ = lazily(
    __name__,
    {
        "changed_data": ["data_changes", "same_rows"],
        "data_file": ["DataFile", "is_address"],
        "fingerprint": ["DataPrint", "RowsPrint", "print_data", "print_files", "print_tables"],
        "formats": ["cut_file", "file_columns", "file_types", "folder_columns", "iter_file"],
        "parquet_files": ["Footers", "parquet_bytes", "parquet_layout"],
        "readers": [
            "Paths",
            "column_names",
            "common_schema",
            "iter_tables",
            "plain_columns",
            "read_table",
            "widen",
        ],
        "resolve": ["kind_of", "resolve_files"],
    },
)

"""What CSV files and JSON lines share: how their text is opened, and what is refused of it."""

from typing import Any

import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile, is_address

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def open_text(file: DataFile) -> pa.NativeFile:
    """Opens the file for reading its bytes, decompressed."""
    if not is_address(str(file)):
        return pa.input_stream(str(file), compression="detect")
    codec = next((c for end, c in _CODECS.items() if file.name.lower().endswith(end)), None)
    return pa.input_stream(file.open(), compression=codec)


def is_packed(file: DataFile) -> bool:
    """Returns whether its text is compressed, so that it can be read from its start alone."""
    return file.name.lower().endswith((*_CODECS, ".lz4"))  # Arrow knows the last one too


def read_start(file: DataFile, num_bytes: int) -> bytes:
    """Reads the first bytes.

    Raises:
        ValueError: The file cannot be read, or is UTF-16.
    """
    try:
        with open_text(file) as stream:
            start = stream.read(num_bytes)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise unreadable(file, error) from None
    if start.startswith(_UTF16) or b"\0" in start[:100]:
        raise ValueError(
            f"{file}: is not UTF-8 text (it looks like UTF-16); convert it, such as with "
            "iconv -f UTF-16 -t UTF-8"
        )
    return start


def unreadable(file: DataFile, error: Exception) -> ValueError:
    """Returns the refusal of a file that is damaged or not there."""
    return ValueError(f"{file}: cannot be read ({one_line(error)}); copy it again")


def one_line(error: Any) -> str:
    """Returns an error's message without line breaks, shortened."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."

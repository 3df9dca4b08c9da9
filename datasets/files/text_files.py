"""Text files, CSV and JSON lines alike: how they are opened, and what is refused."""

import codecs
import io
import lzma
import zipfile
import zlib
from dataclasses import replace
from typing import Any

import pyarrow as pa

from mmoe.datasets.files.data_file import CsvForm, DataFile, is_address

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_ZIP = ".zip"
# First bytes of what is no text, by names that do not say so
_BINARY = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"\x1f\x8b": "compressed by gzip",
    b"BZh9": "compressed by bzip2",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard",
    b"\xfd7zXZ": "compressed by xz",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
}
_TAR, _TAR_AT = b"ustar", 257
_ENCRYPTED = 1  # flag of a member
# Of an archive, and of what is in it by method of compression (bz2 raises OSError); there are more
# methods than zipfile knows
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)
_OF_MACOS = "__MACOSX/"  # what its archives hold beside the files
_BLOCK_BYTES = 1 << 20  # rewritten at once
_UNIT_SEPARATOR = "\x1f"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def open_text(file: DataFile) -> pa.NativeFile:
    """Opens the file for reading its bytes, decompressed."""
    if is_address(str(file)) or _is_zip(file):
        return text_of(file, file.open())
    return _rewritten(file, pa.input_stream(str(file), compression="detect"))


def text_of(file: DataFile, raw: Any) -> pa.NativeFile:
    """Returns the text of a file whose bytes were opened, decompressed."""
    if _is_zip(file):
        return _rewritten(file, pa.PythonFile(_Member(file, raw), mode="r"))
    codec = next((c for end, c in _CODECS.items() if file.name.lower().endswith(end)), None)
    return _rewritten(file, pa.input_stream(raw, compression=codec))


def _is_zip(file: DataFile) -> bool:
    return file.name.lower().endswith(_ZIP)


def _rewritten(file: DataFile, stream: Any) -> pa.NativeFile:
    """The stream as UTF-8 whose cells one character parts, as Arrow reads it."""
    if not file.csv.is_rewritten:
        return stream
    return pa.PythonFile(io.BufferedReader(_Rewritten(file, stream), 1 << 20), mode="r")


def delimiter_read(form: CsvForm) -> str | None:
    """Returns what parts cells once they are rewritten; None: the first line says it."""
    return form.delimiter if form.has_quotes else _UNIT_SEPARATOR


class _Member(io.RawIOBase):
    """The only file in a zip archive, whatever it is called there."""

    def __init__(self, file: DataFile, raw: Any) -> None:
        self._raw = raw
        try:
            self._member = _only_member(file, zipfile.ZipFile(raw))
        except (*_DAMAGED, ValueError) as error:
            raw.close()
            raise unreadable(file, error) if isinstance(error, _DAMAGED) else error from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._member.readinto(buffer)
        except _DAMAGED as error:  # as Arrow's streams say it
            raise OSError(one_line(error)) from None

    def close(self) -> None:
        self._raw.close()
        super().close()


def _only_member(file: DataFile, archive: zipfile.ZipFile) -> Any:
    members = [one for one in archive.infolist() if not one.is_dir()]
    members = [one for one in members if not one.filename.startswith(_OF_MACOS)]
    if len(members) != 1:
        raise ValueError(
            f"{file}: is a zip archive of {len(members)} files, expected one of CSV or JSON lines; "
            "unpack it, and name the files in it"
        )
    if members[0].flag_bits & _ENCRYPTED:
        raise ValueError(f"{file}: is an encrypted zip archive; unpack it")
    return archive.open(members[0])


class _Rewritten(io.RawIOBase):
    """Decodes, puts one character for the delimiter, and encodes as UTF-8, block by block."""

    def __init__(self, file: DataFile, stream: Any) -> None:
        self._file, self._stream = file, stream
        self._decoder = codecs.getincrementaldecoder(file.csv.encoding or "utf-8-sig")()
        self._ready = b""
        self._held = ""  # what may be the beginning of a delimiter
        self._at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._at_end:
            self._ready = self._next()
        room = memoryview(buffer)
        data, self._ready = self._ready[: len(room)], self._ready[len(room) :]
        room[: len(data)] = data
        return len(data)

    def _next(self) -> bytes:
        block = self._stream.read(_BLOCK_BYTES)
        self._at_end = not block
        try:
            text = self._held + self._decoder.decode(block, final=self._at_end)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self._file}: is no {self._file.csv.encoding or 'UTF-8'} text "
                f"({one_line(error)}); say its encoding (data.encoding: latin-1, of mmoe init "
                "--encoding latin-1)"
            ) from None
        self._held = ""
        if self._file.csv.has_quotes:
            return text.encode()
        delimiter = self._file.csv.delimiter
        assert delimiter is not None, "it is rewritten"
        if _UNIT_SEPARATOR in text:
            raise ValueError(
                f"{self._file}: holds the character \\x1f, which parts cells beside the delimiter "
                f"{delimiter!r}; remove it"
            )
        *whole, last = text.split(delimiter)
        if not self._at_end:
            held = next(
                n for n in range(len(delimiter) - 1, -1, -1) if last.endswith(delimiter[:n])
            )
            last, self._held = last[: len(last) - held], last[len(last) - held :]
        return _UNIT_SEPARATOR.join([*whole, last]).encode()

    def close(self) -> None:
        self._stream.close()
        super().close()


def is_packed(file: DataFile) -> bool:
    """Returns whether it can be read from its start alone: compressed text, or rewritten."""
    suffixes = (*_CODECS, _ZIP, ".lz4")  # Arrow knows the last one too
    return file.csv.is_rewritten or file.name.lower().endswith(suffixes)


def first_bytes(file: DataFile, num_bytes: int) -> bytes:
    """Reads the first bytes, decompressed, in whatever encoding.

    Raises:
        ValueError: The file cannot be read.
    """
    return _start(replace(file, csv=CsvForm()), num_bytes)


def read_start(file: DataFile, num_bytes: int) -> bytes:
    """Reads the first bytes of text.

    Raises:
        ValueError: The file cannot be read, is UTF-16, or an archive.
    """
    start = _start(file, num_bytes)
    found = [what for begin, what in _BINARY.items() if start.startswith(begin)]
    if start.startswith(_TAR, _TAR_AT):
        found = ["a tar archive"]
    if found:
        raise ValueError(f"{file}: is {found[0]}, expected text; unpack it (or save it as CSV)")
    if start.startswith(_UTF16) or b"\0" in start[:100]:
        raise ValueError(
            f"{file}: is not UTF-8 text (it looks like UTF-16); if it is CSV, say data.encoding: "
            "utf-16, else convert it, such as with iconv -f UTF-16 -t UTF-8"
        )
    return start


def _start(file: DataFile, num_bytes: int) -> bytes:
    try:
        with open_text(file) as stream:
            return stream.read(num_bytes)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise unreadable(file, error) from None


def unreadable(file: DataFile, error: Exception) -> ValueError:
    """Returns the refusal of a file that is damaged or not there."""
    return ValueError(f"{file}: cannot be read ({one_line(error)}); copy it again")


def one_line(error: Any) -> str:
    """Returns an error's message without line breaks, shortened."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."

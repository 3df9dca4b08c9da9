"""Faults of the bytes: what disks, copies, editors and other programs do to files."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.inputs.draft import Draft, Expect, either, error, right


def truncated(draft: Draft) -> Expect:
    """A file ends too early."""
    path = _any_file(draft)
    content = path.read_bytes()
    path.write_bytes(content[: draft.draw.randrange(1, len(content))])
    return either(reference="files") if draft.kind == "csv" else error(path.name)


def emptied(draft: Draft) -> Expect:
    """A file has no bytes, or nothing but blanks."""
    path = _any_file(draft)
    path.write_bytes(b"" if not draft.is_csv else draft.draw.choice([b"", b"\n\n", b"   \n"]))
    return error(path.name)


def flipped_bits(draft: Draft) -> Expect:
    """A few bits are wrong, anywhere."""
    path = _any_file(draft)
    content = bytearray(path.read_bytes())
    for _ in range(draft.draw.choice([1, 1, 2, 8, 64])):
        content[draft.draw.randrange(len(content))] ^= 1 << draft.draw.randrange(8)
    path.write_bytes(content)
    return either(reference="files")


def flipped_at_the_end(draft: Draft) -> Expect:
    """A few bits of the last hundred bytes are wrong: a Parquet footer."""
    path = _any_file(draft)
    content = bytearray(path.read_bytes())
    for _ in range(draft.draw.choice([1, 2, 4])):
        content[-draft.draw.randrange(1, min(400, len(content)))] ^= 1 << draft.draw.randrange(8)
    path.write_bytes(content)
    return either(reference="files")


def zeroed(draft: Draft) -> Expect:
    """A block of the file was never written."""
    path = _any_file(draft)
    content = bytearray(path.read_bytes())
    start = draft.draw.randrange(len(content))
    stop = min(len(content), start + draft.draw.choice([16, 256, 4096]))
    content[start:stop] = bytes(stop - start)
    path.write_bytes(content)
    return either(reference="files")


def other_content(draft: Draft) -> Expect:
    """The name says one format, the bytes are another's."""
    path = _any_file(draft)
    contents = [b"PAR1" + bytes(100) + b"PAR1", b"\x89PNG\r\n\x1a\n" + bytes(200),
                b'{"a": 1}\n{"a": 2}\n', b"<html><body>404</body></html>"]  # fmt: skip
    path.write_bytes(draft.draw.choice(contents))
    return error(path.name)


def wrong_footer_length(draft: Draft) -> Expect:
    """A Parquet footer that says to be longer than the file, or shorter than it is."""
    if draft.is_csv:
        return unbalanced_quote(draft)
    path = _any_file(draft)
    content = path.read_bytes()
    length = draft.draw.choice([0, 1, 2**31 - 1, 2**32 - 1, len(content)])
    path.write_bytes(content[:-8] + struct.pack("<I", length) + b"PAR1")
    return error(path.name)


def garbage_behind(draft: Draft) -> Expect:
    """Bytes follow the end."""
    path = _any_file(draft)
    path.write_bytes(path.read_bytes() + bytes(draft.draw.choices(range(256), k=40)))
    return either(reference="files")


def byte_order_mark(draft: Draft) -> Expect:
    """A CSV file that begins with a byte order mark."""
    return _csv(draft, lambda text: b"\xef\xbb\xbf" + text, right("clean"))


def windows_lines(draft: Draft) -> Expect:
    """Lines end as on Windows, or on an old Macintosh."""
    end = draft.draw.choice([b"\r\n", b"\r"])
    return _csv(draft, lambda text: text.replace(b"\n", end), right("clean"))


def other_delimiter(draft: Draft) -> Expect:
    """Cells end with a semicolon or a tabulator."""
    mark = draft.draw.choice([b";", b"\t"])
    return _csv(draft, lambda text: text.replace(b",", mark), right("clean"))


def no_header(draft: Draft) -> Expect:
    """The header line is missing."""
    return _csv(draft, lambda text: text.split(b"\n", 1)[1], error())


def header_alone(draft: Draft) -> Expect:
    """Nothing follows the header."""
    if len(draft.files) > 1:
        return either()
    scores = draft.command == "score"
    wanted = either("no row", reference="files") if scores else error("no row")
    return _csv(draft, lambda text: text.split(b"\n", 1)[0] + b"\n", wanted)


def two_headers(draft: Draft) -> Expect:
    """The header stands in the middle again, as where files were joined."""

    def twice(text: bytes) -> bytes:
        lines = text.split(b"\n")
        lines.insert(draft.draw.randrange(2, len(lines) - 1), lines[0])
        return b"\n".join(lines)

    return _csv(
        draft, twice, either() if draft.command == "init" else error(("price", "click", "time"))
    )


def ragged(draft: Draft) -> Expect:
    """A row has a cell too many or too few."""

    def harm(text: bytes) -> bytes:
        lines = text.split(b"\n")
        n = draft.draw.randrange(1, len(lines) - 1)
        longer = draft.draw.random() < 0.5
        lines[n] = lines[n] + b",9" if longer else lines[n].rsplit(b",", 1)[0]
        return b"\n".join(lines)

    return _csv(draft, harm, error("row"))


def unbalanced_quote(draft: Draft) -> Expect:
    """A quote is opened and never closed."""

    def harm(text: bytes) -> bytes:
        lines = text.split(b"\n")
        n = draft.draw.randrange(1, len(lines) - 1)
        cells = lines[n].split(b",")
        c = draft.draw.randrange(len(cells))
        cells[c] = b'"' + cells[c].lstrip(b'"')
        lines[n] = b",".join(cells)
        return b"\n".join(lines)

    return _csv(draft, harm, either(reference="files"))


def not_utf8(draft: Draft) -> Expect:
    """One word in another encoding, or the whole file in UTF-16."""
    if draft.draw.random() < 0.3:
        return _csv(draft, lambda t: t.decode().encode("utf-16"), error("UTF"))
    return _csv(draft, lambda t: t.replace(b"i1", b"i\xe4", 1), either("UTF", reference="files"))


def blank_lines(draft: Draft) -> Expect:
    """Blank lines above, between and below."""

    def harm(text: bytes) -> bytes:
        lines = text.split(b"\n")
        for _ in range(3):
            lines.insert(draft.draw.randrange(len(lines)), b"")
        return b"\n".join(lines)

    return _csv(draft, harm, right("clean"))


def line_above_the_header(draft: Draft) -> Expect:
    """A comment or a spreadsheet's note."""
    line = draft.draw.choice([b"# exported 2024-01-31\n", b"sep=,\n", b"Report of January\n"])
    return _csv(draft, lambda text: line + text, error())


def nul_byte(draft: Draft) -> Expect:
    """A zero byte among the text."""

    def harm(text: bytes) -> bytes:
        at = draft.draw.randrange(len(text))
        return text[:at] + b"\0" + text[at:]

    return _csv(draft, harm, either(reference="files"))


def quoted_everything(draft: Draft) -> Expect:
    """Every cell stands in quotes."""

    def harm(text: bytes) -> bytes:
        lines = [line.split(b",") for line in text.replace(b'"', b"").split(b"\n") if line]
        return b"\n".join(b",".join(b'"' + c + b'"' for c in cells) for cells in lines) + b"\n"

    return _csv(draft, harm, right("clean"))


def damaged_gzip(draft: Draft) -> Expect:
    """A .gz file that is none, or is damaged in the middle."""
    if draft.kind != "csv.gz":
        return flipped_bits(draft)
    path = _any_file(draft)
    if draft.draw.random() < 0.3:
        path.write_bytes(gzip.decompress(path.read_bytes()))
        return either(path.name, reference="clean")
    content = bytearray(path.read_bytes())
    content[draft.draw.randrange(10, len(content))] ^= 0xFF
    path.write_bytes(content)
    return either(path.name, reference="files")


def _any_file(draft: Draft) -> Path:
    return draft.draw.choice(draft.files)


def _csv(draft: Draft, harm: Callable[[bytes], bytes], expect: Expect) -> Expect:
    """Changes the text of one file; of Parquet files some bits instead."""
    if not draft.is_csv:
        return flipped_bits(draft)
    path = _any_file(draft)
    packed = path.suffix == ".gz"
    content = path.read_bytes()
    text = harm(gzip.decompress(content) if packed else content)
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
    return expect


BYTE_FAULTS = (
    truncated, emptied, flipped_bits, flipped_at_the_end, zeroed, other_content,
    wrong_footer_length, garbage_behind, byte_order_mark, windows_lines, other_delimiter, no_header,
    header_alone, two_headers, ragged, unbalanced_quote, not_utf8, blank_lines,
    line_above_the_header, nul_byte, quoted_everything, damaged_gzip,
)  # fmt: skip

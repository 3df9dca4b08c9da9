"""Faults of the data: bytes, text, columns, numbers, ids, and where files lie.

Each changes a draft and says what must come of it. `FAMILIES` tells which ones there are; their
names say what is broken. tests/datasets/files holds paths that lead nowhere, links, and types that
are nested too deep.
"""

import datetime
import gzip
import math
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.chaos.draft import FEATURES, UNREAD, Draft, Expect, either, error, right, write_table

Fault = Callable[[Draft], Expect]


def break_data(d: Draft, family: str) -> tuple[str, Expect]:
    """Writes the draft with a fault of a family; returns which, and what must come of it."""
    name = d.draw.choice([*FAMILIES[family]])
    fault = FAMILIES[family][name]
    if family == "table":
        expect = fault(d)
        d.write()
    else:
        d.write()
        expect = fault(d)
    return f"{name} ({d.kind} × {len(d.tables)})", expect


def _named(*faults: Fault) -> dict[str, Fault]:
    return {fault.__name__: fault for fault in faults}


# Bytes: what disks, copies and other programs do to files


def _bytes(harm: Callable[[Draft, bytes], bytes], *, refused: Callable[[Draft], bool]) -> Fault:
    """Changes the bytes of a file, which is then refused by name, or may be read by others too."""

    def fault(d: Draft) -> Expect:
        path = d.draw.choice(d.files)
        path.write_bytes(harm(d, path.read_bytes()))
        return error(path.name) if refused(d) else either(reference="files")

    return fault


def _always(d: Draft) -> bool:
    return True


def _never(d: Draft) -> bool:
    return False


def _flip(d: Draft, content: bytes, counts: list[int], first: int = 0) -> bytes:
    """Flips bits from the byte `first` on."""
    changed = bytearray(content)
    for _ in range(d.draw.choice(counts)):
        changed[d.draw.randrange(first, len(changed))] ^= 1 << d.draw.randrange(8)
    return bytes(changed)


def _zero(d: Draft, content: bytes) -> bytes:
    first = d.draw.randrange(len(content))
    stop = min(len(content), first + d.draw.choice([16, 256, 4096]))
    return content[:first] + bytes(stop - first) + content[stop:]


def _wrong_footer(d: Draft, content: bytes) -> bytes:
    """A Parquet footer that says to be longer than the file, or shorter than it is."""
    length = d.draw.choice([0, 1, 2**31 - 1, 2**32 - 1, len(content)])
    return content[:-8] + struct.pack("<I", length) + b"PAR1"


_OTHER_CONTENTS = [b"PAR1" + bytes(100) + b"PAR1", b"\x89PNG\r\n\x1a\n" + bytes(200),
                   b'{"a": 1}\n{"a": 2}\n', b"<html><body>404</body></html>"]  # fmt: skip
_flipped_bits = _bytes(lambda d, content: _flip(d, content, [1, 1, 2, 8, 64]), refused=_never)


# Text: what editors and other programs do to CSV; of Parquet files some bits are flipped instead


def _text(
    harm: Callable[[random.Random, bytes], bytes], expect: Expect, init: Expect | None = None
) -> Fault:
    def fault(d: Draft) -> Expect:
        if not d.is_csv:
            return _flipped_bits(d)
        path = d.draw.choice(d.files)
        packed, content = path.suffix == ".gz", path.read_bytes()
        text = harm(d.draw, gzip.decompress(content) if packed else content)
        path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
        return init if init is not None and d.command == "init" else expect

    return fault


def _lines(harm: Callable[[random.Random, list[bytes]], object]) -> Callable[..., bytes]:
    def changed(draw: random.Random, text: bytes) -> bytes:
        lines = text.split(b"\n")
        harm(draw, lines)
        return b"\n".join(lines)

    return changed


def _ragged(draw: random.Random, lines: list[bytes]) -> None:
    n = draw.randrange(1, len(lines) - 1)
    lines[n] = lines[n] + b",9" if draw.random() < 0.5 else lines[n].rsplit(b",", 1)[0]


def _open_quote(draw: random.Random, lines: list[bytes]) -> None:
    n = draw.randrange(1, len(lines) - 1)
    cells = lines[n].split(b",")
    c = draw.randrange(len(cells))
    cells[c] = b'"' + cells[c].lstrip(b'"')
    lines[n] = b",".join(cells)


def _blank_lines(draw: random.Random, lines: list[bytes]) -> None:
    for _ in range(3):
        lines.insert(draw.randrange(len(lines)), b"")


def _with_nul(draw: random.Random, text: bytes) -> bytes:
    at = draw.randrange(len(text))
    return text[:at] + b"\0" + text[at:]


def _quoted(draw: random.Random, text: bytes) -> bytes:
    lines = [line.split(b",") for line in text.replace(b'"', b"").split(b"\n") if line]
    return b"\n".join(b",".join(b'"' + c + b'"' for c in cells) for cells in lines) + b"\n"


def header_alone(d: Draft) -> Expect:
    if len(d.files) > 1:
        return either()
    wanted = either("no row", reference="files") if d.command == "score" else error("no row")
    return _text(lambda _, text: text.split(b"\n", 1)[0] + b"\n", wanted)(d)


def damaged_gzip(d: Draft) -> Expect:
    """A .gz file that is none, or is damaged in the middle."""
    if d.kind != "csv.gz":
        return _flipped_bits(d)
    path = d.draw.choice(d.files)
    content = bytearray(path.read_bytes())
    if d.draw.random() < 0.3:
        path.write_bytes(gzip.decompress(content))
        return either(path.name, reference="clean")
    content[d.draw.randrange(10, len(content))] ^= 0xFF
    path.write_bytes(content)
    return either(path.name, reference="files")


# Columns and rows


def drop_column(d: Draft) -> Expect:
    column = d.draw.choice([*FEATURES, "click", "buy", UNREAD])
    part = d.part()
    d.tables[part] = d.tables[part].drop_columns([column])
    if d.command == "init" and column in (*FEATURES, UNREAD):
        return either(column)
    return error(column) if d.reads(column) else right("clean")


def rename_column(d: Draft) -> Expect:
    column = d.draw.choice([*FEATURES, "click"])
    other = d.draw.choice([column.upper(), column + "_", column[:-1], "x"])
    names = [other if name == column else name for name in d.tables[0].column_names]
    d.tables = [table.rename_columns(names) for table in d.tables]
    if d.command == "init" and column in FEATURES:
        return right()
    return error(column) if d.reads(column) else right()


def other_columns(d: Draft) -> Expect:
    """In one file: another order, or a column more."""
    part = d.part()
    names = list(d.tables[part].column_names)
    d.draw.shuffle(names)
    values = pa.array([d.draw.random() for _ in range(d.tables[part].num_rows)])
    d.tables[part] = d.draw.choice([
        d.tables[part].select(names), d.tables[part].append_column("surprise", values),
    ])  # fmt: skip
    return either() if d.command == "init" else right("clean")


def duplicate_column(d: Draft) -> Expect:
    column = d.draw.choice([*FEATURES, UNREAD])
    d.tables = [t.append_column(column, pa.nulls(len(t), t[column].type)) for t in d.tables]
    return either(column, reference="clean")


def few_rows(d: Draft) -> Expect:
    """No row, a few, or none in one file of several."""
    part, count = d.part(), d.draw.choice([0, 0, 1, 5])
    if len(d.tables) > 1 and d.draw.random() < 0.5:
        d.tables[part] = d.tables[part].slice(0, 0)
        return right()
    if count == 0:
        d.tables = [table.slice(0, 0) for table in d.tables]
        return either("no row") if d.command == "score" else error("no row")
    d.tables = [d.tables[0].slice(0, count)]
    return right() if d.command == "score" else either()


def all_null(d: Draft) -> Expect:
    """A column holds nothing, in one file or in all, with its type or without."""
    column = d.draw.choice([*FEATURES, "click", "buy"])
    typed = d.draw.random() < 0.5
    for part in d.some_parts():
        kind = d.tables[part][column].type if typed else pa.null()
        d.replace(part, column, pa.nulls(d.tables[part].num_rows, kind))
    if column in FEATURES:
        return either(column) if d.command == "init" else right()
    return either(column) if d.reads(column) else right("clean")


def one_class(d: Draft) -> Expect:
    value = d.draw.choice([0, 1])
    d.replace_all("click", lambda labels: [value] * len(labels))
    if d.command == "train":
        return error(("click", "buy"))
    return either(("click", "buy")) if d.command == "init" else right()


def stray_label(d: Draft) -> Expect:
    """One label is neither 0 nor 1."""
    part = d.part()
    labels = d.tables[part]["click"].to_pylist()
    stray = d.draw.choice([2, -1, 7, 0.5, "maybe", "yes?", 1e300])
    labels[d.draw.randrange(len(labels))] = stray
    d.replace(part, "click", pa.array([type(stray)(value) for value in labels]))
    if d.command == "init":
        return either()
    return error("click") if d.reads("click") else right("clean")


# Numbers and times


def odd_number(d: Draft) -> Expect:
    """One price is infinite, no number, or at the end of what there is."""
    inf = math.inf
    value = d.draw.choice([inf, -inf, math.nan, 1e300, -1e308, 3.5e38, 1e-320])
    missing = d.is_csv and math.isnan(value)
    d.change_some("price", [None if missing else value], pa.float64())
    if d.command == "init":
        return either("price")
    return error("price") if math.isinf(value) else right()


def word_among_numbers(d: Draft) -> Expect:
    """One price is a word; the column is text in that file."""
    part = d.part()
    prices = [None if p is None else str(p) for p in d.tables[part]["price"].to_pylist()]
    prices[d.draw.randrange(len(prices))] = d.draw.choice(["cheap", "12,50", "1.2.3", "€5"])
    d.replace(part, "price", pa.array(prices, pa.string()))
    return either("price") if d.command == "init" else error("price")


def numbers_as_text(d: Draft) -> Expect:
    d.replace_all("price", lambda prices: pa.array(
        [None if p is None else repr(p) for p in prices.to_pylist()], pa.string()))  # fmt: skip
    return either("price") if d.command == "init" else right("clean")


def moments_as_numbers(d: Draft) -> Expect:
    """A numeric column that holds dates, times of day, durations or halves."""
    if d.is_csv:
        return numbers_as_text(d)
    kind = d.draw.choice([pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32(),
                          pa.time64("us"), pa.duration("ms"), pa.float16()])  # fmt: skip
    between = {pa.float16(): pa.float32(), pa.date32(): pa.int32()}.get(kind, pa.int64())
    d.replace_all("price", lambda prices: pc.fill_null(prices, 0.0).cast(pa.int64(), safe=False)
                  .cast(between).cast(kind))  # fmt: skip
    return either("price")


def _times(d: Draft, by_time: Expect, read: Expect, unread: Expect) -> Expect:
    """What is expected of a column that splits rows by time, is read for it, or is not."""
    if d.command == "init":
        return either("time")
    if not d.reads("time"):
        return unread
    return by_time if d.split is not None and d.split[0] == "time" else read


def times_of_two_kinds(d: Draft) -> Expect:
    """In one file milliseconds for seconds, or timestamps of another unit or with a zone."""
    if len(d.tables) == 1:
        return null_time(d)
    odd = d.part()
    if d.is_csv or d.draw.random() < 0.5:
        d.replace(odd, "time", pc.multiply(d.tables[odd]["time"], 1000))
    else:
        other = d.draw.choice([pa.timestamp("ms"), pa.timestamp("us", "UTC")])
        d.replace_all("time", lambda t: t.cast(pa.timestamp("s")).cast(pa.timestamp("us")))
        d.replace(odd, "time", d.tables[odd]["time"].cast(other))
    refused = error("time", "part-")
    return _times(d, refused, refused, right("clean"))


def null_time(d: Draft) -> Expect:
    d.change_some("time", [None], pa.int64())
    return _times(d, error("time"), right(), right())


def words_as_time(d: Draft) -> Expect:
    part = d.part()
    d.replace(part, "time", pa.array(["yesterday"] * d.tables[part].num_rows))
    return _times(d, error("time"), either("time"), right("clean"))


def dates_as_time(d: Draft) -> Expect:
    """Times as dates or ISO text: the order is the same."""

    def change(times: pa.ChunkedArray) -> pa.Array:
        moments = [datetime.datetime.fromtimestamp(t, datetime.UTC).replace(tzinfo=None)
                   for t in times.to_pylist()]  # fmt: skip
        if d.is_csv or d.draw.random() < 0.5:
            return pa.array([m.isoformat() for m in moments])
        return pa.array(moments, pa.timestamp("us"))

    d.replace_all("time", change)
    return either("time", reference="clean")


# Types, ids, and lists of ids

# Types that hold the same values; CSV says the first two of text and lists alone
_TYPES = {
    "user": [pa.int32(), pa.uint32(), pa.float64()],
    "click": [pa.int8(), pa.float32(), pa.bool_()],
    "price": [pa.float32(), pa.decimal128(20, 2)],
    "item": [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary(),
             pa.large_binary(), pa.string_view()],
    "history": [pa.large_list(pa.int32()), pa.list_(pa.int16()), pa.list_(pa.float64()),
                pa.list_(pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.int64()))],
}  # fmt: skip
_USERS_EVERYWHERE = [pa.uint16(), pa.decimal128(21, 2), pa.uint64(), pa.float32(), pa.int16()]


def _as_written(d: Draft) -> str:
    return "files" if d.is_csv else "tables"


def other_types(d: Draft) -> Expect:
    """A column of another type, in one file or in all."""
    column, parts = d.draw.choice([*_TYPES]), d.some_parts()
    kinds, everywhere = _TYPES[column], len(parts) == len(d.tables)
    if column == "user" and everywhere:
        kinds = [*kinds, *_USERS_EVERYWHERE]
    if column in ("item", "history") and d.is_csv:
        kinds = kinds[:2]
    kind = d.draw.choice(kinds)
    words = column == "history" and pa.types.is_string(kind.value_type)  # ids are words then
    for part in parts:
        values = d.tables[part][column]
        if column == "history":
            lists = values.to_pylist()
            lists = [[str(value) for value in row] for row in lists] if words else lists
            d.replace(part, column, pa.array(lists, kind))
        else:
            d.replace(part, column, values.cast(kind, safe=False))
    if column == "user" and everywhere:
        return right("clean")
    rounded = column == "price" and kind == pa.float32()
    return either(column, reference=_as_written(d) if words or rounded else "clean")


def ids_of_two_kinds(d: Draft) -> Expect:
    """Integers in one file, text in another; CSV settles to text."""
    part = d.part()
    d.replace(part, "user", pa.array([f"u{user}" for user in d.tables[part]["user"].to_pylist()]))
    if d.is_csv or len(d.tables) == 1:
        return right(_as_written(d))
    return either("user", "part-")


def odd_words(d: Draft) -> Expect:
    odd = ["", " ", "a\nb", 'say "hi"', "äöü", "日本語", "x" * 100_000, "a,b", "007", "\u202e", "'",
           "i1", "NA", "\ufeffi1", "a\rb"]  # fmt: skip
    d.change_some("item", (d.draw.choice(odd) for _ in range(3)), None)
    # Blanks around a CSV value go: compared by what another reader finds
    return either("item", reference=_as_written(d))


def bytes_as_ids(d: Draft) -> Expect:
    """Ids that are bytes, some of them no UTF-8."""
    if d.is_csv:
        return odd_words(d)
    for part, table in enumerate(d.tables):
        items = [item.encode() for item in table["item"].to_pylist()]
        items[d.draw.randrange(len(items))] = b"\xff\xfe\x00"
        d.replace(part, "item", pa.array(items, pa.binary()))
    return either("item")


def huge_ids(d: Draft) -> Expect:
    part = d.part()
    users = d.tables[part]["user"].to_pylist()
    big = d.draw.choice([2**63 - 1, -(2**63), 2**53 + 1, 2**63, 2**64 - 1])
    users[d.draw.randrange(len(users))] = big
    d.replace(part, "user", pa.array(users, pa.uint64() if big >= 2**63 else pa.int64()))
    return either("user", reference=_as_written(d))


def missing_lists(d: Draft) -> Expect:
    gaps = (d.draw.choice([None, [], [None], [None, 3]]) for _ in range(5))
    d.change_some("history", gaps, pa.list_(pa.int64()))
    return right()


def nested_ids(d: Draft) -> Expect:
    """Lists of lists, structs or maps where ids belong."""
    if d.is_csv:
        return word_among_numbers(d)
    column = d.draw.choice(["history", "item", "user", "price"])
    values, kind = d.draw.choice([
        ([[1], [2, 3]], pa.list_(pa.list_(pa.int64()))),
        ({"a": 1, "b": "x"}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([("k", 1)], pa.map_(pa.string(), pa.int64())),
        ([{"a": 1}], pa.list_(pa.struct([("a", pa.int64())]))),
    ])  # fmt: skip
    for part in d.some_parts():
        d.replace(part, column, pa.array([values] * d.tables[part].num_rows, kind))
    return either(column) if d.command == "init" else error(column)


def powers_of_ten(d: Draft) -> Expect:
    """Integers as R and spreadsheets write them: 1e+02, 2.5E1."""
    d.replace_all("user", lambda users: pa.array([
        d.draw.choice([f"{user}", f"{user}.0", f"{user:.6e}", f"{user / 10}E1"])
        for user in users.to_pylist()]))  # fmt: skip
    # A log of words that are no CSV cells holds words, unless what reads it knows numbers alone
    return right("tables" if not d.is_csv and d.command == "train" else "clean")


def unsigned_beside_signed(d: Draft) -> Expect:
    """Ids of 64 bits, in one file without a sign: some of them beyond 2⁶³."""
    part = d.part()
    users = [2**63 + user if user % 3 else user for user in d.tables[part]["user"].to_pylist()]
    d.replace(part, "user", pa.array(users, pa.uint64()))
    return right(_as_written(d))


def large_beside_fractions(d: Draft) -> Expect:
    """Integers beyond 2⁵³ in one file, fractions in another: float64 would round."""
    for part, table in enumerate(d.tables):
        users = table["user"].to_pylist()
        d.replace(part, "user", pa.array([u + 0.5 if part else 2**53 + u for u in users]))
    return right(_as_written(d)) if len(d.tables) == 1 else either("user", reference="none")


# Where files lie, and what they are called


def mixed_kinds(d: Draft) -> Expect:
    write_table(d.tables[0], _folder(d) / ("odd.parquet" if d.is_csv else "odd.csv"))
    return error(d.data)


def hidden_files(d: Draft) -> Expect:
    """What other programs leave beside the data is passed over."""
    folder = _folder(d)
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / "._part-0.parquet").write_bytes(b"\0\0")
    (folder / "notes.txt").write_text("not data", encoding="utf-8")
    return right("clean")


def globbed(d: Draft) -> Expect:
    d.data = f"{_folder(d)}/*.{d.kind}"
    return right("clean")


def shouting_names(d: Draft) -> Expect:
    folder = _folder(d)
    d.files = [path.rename(folder / path.name.upper()) for path in d.files]
    return either(reference="clean") if d.kind == "csv.gz" else right("clean")


def no_suffix(d: Draft) -> Expect:
    """A single file without a suffix: its bytes say what it is."""
    bare = d.files[0].rename(d.files[0].with_name("bare"))
    d.files, d.data, d.tables = [bare], str(bare), d.tables[:1]
    return error("bare") if d.kind == "csv.gz" else right()


def folder_called_like_a_file(d: Draft) -> Expect:
    """A folder whose name ends in .parquet, as Spark writes them."""
    folder = _folder(d)
    named = folder.rename(folder.with_name("log.all.parquet"))
    d.data, d.files = str(named), [named / path.name for path in d.files]
    return right("clean")


def partitions(d: Draft) -> Expect:
    """Folders name a column; one of them holds no file, or a file without rows."""
    folder = d.folder / "hive"
    for n, path in enumerate(d.files):
        below = folder / f"day=2024-01-0{n + 1}"
        below.mkdir(parents=True)
        shutil.move(path, below / path.name)
    (folder / "day=2024-01-09").mkdir()
    d.files, d.data = sorted(folder.rglob("*.*")), str(folder)
    if d.draw.random() < 0.5:
        empty = folder / "day=2024-01-09" / f"part-9.{d.kind}"
        write_table(d.tables[0].slice(0, 0), empty)
        d.files.append(empty)
        if d.is_csv and d.command == "init":  # a header alone
            return either(reference="clean")
    return either() if d.command == "init" else right("clean")


def _folder(d: Draft) -> Path:
    """The folder of the files; a single file moves into one."""
    if len(d.files) > 1:
        return Path(d.data)
    folder = d.folder / "log"
    folder.mkdir()
    d.files = [d.files[0].rename(folder / d.files[0].name)]
    d.data = str(folder)
    return folder


_BYTES: dict[str, Fault] = {
    "truncated": _bytes(lambda d, content: content[: d.draw.randrange(1, len(content))],
                        refused=lambda d: d.kind != "csv"),
    "emptied": _bytes(lambda d, _: d.draw.choice([b"", b"\n\n", b"   \n"]) if d.is_csv else b"",
                      refused=_always),
    "flipped_bits": _flipped_bits,
    # A Parquet footer
    "flipped_at_the_end": _bytes(
        lambda d, content: _flip(d, content, [1, 2, 4], max(0, len(content) - 400)),
        refused=_never),
    "zeroed": _bytes(_zero, refused=_never),
    "other_content": _bytes(lambda d, _: d.draw.choice(_OTHER_CONTENTS), refused=_always),
    "garbage_behind": _bytes(
        lambda d, content: content + bytes(d.draw.choices(range(256), k=40)), refused=_never),
}  # fmt: skip
_READ_BY_OTHERS = either(reference="files")
_TEXT: dict[str, Fault] = {
    "byte_order_mark": _text(lambda _, text: b"\xef\xbb\xbf" + text, right("clean")),
    "windows_lines": _text(
        lambda draw, text: text.replace(b"\n", draw.choice([b"\r\n", b"\r"])), right("clean")),
    "other_delimiter": _text(
        lambda draw, text: text.replace(b",", draw.choice([b";", b"\t"])), right("clean")),
    "quoted_everything": _text(_quoted, right("clean")),
    "blank_lines": _text(_lines(_blank_lines), right("clean")),
    "no_header": _text(lambda _, text: text.split(b"\n", 1)[1], error()),
    "line_above_the_header": _text(lambda draw, text: draw.choice(
        [b"# exported 2024-01-31\n", b"sep=,\n", b"Report of January\n"]) + text, error()),
    # As where files were joined
    "two_headers": _text(
        _lines(lambda draw, lines: lines.insert(draw.randrange(2, len(lines) - 1), lines[0])),
        error(("price", "click", "time")), init=either()),
    "ragged": _text(_lines(_ragged), error("row")),
    "utf_16": _text(lambda _, text: text.decode().encode("utf-16"), error("UTF")),
    "not_utf8": _text(lambda _, text: text.replace(b"i1", b"i\xe4", 1),
                      either("UTF", reference="files")),
    "unbalanced_quote": _text(_lines(_open_quote), _READ_BY_OTHERS),
    "nul_byte": _text(_with_nul, _READ_BY_OTHERS),
    **_named(header_alone, damaged_gzip),
}  # fmt: skip


def wrong_footer_length(d: Draft) -> Expect:
    return (_TEXT["unbalanced_quote"] if d.is_csv else _bytes(_wrong_footer, refused=_always))(d)


FAMILIES: dict[str, dict[str, Fault]] = {
    "bytes": {**_BYTES, **_TEXT, **_named(wrong_footer_length)},
    "table": _named(
        drop_column, rename_column, other_columns, duplicate_column, few_rows, all_null, one_class,
        stray_label, odd_number, word_among_numbers, numbers_as_text, moments_as_numbers,
        times_of_two_kinds, null_time, words_as_time, dates_as_time, other_types, ids_of_two_kinds,
        odd_words, bytes_as_ids, huge_ids, missing_lists, nested_ids, powers_of_ten,
        unsigned_beside_signed, large_beside_fractions,
    ),
    "layout": _named(
        mixed_kinds, hidden_files, globbed, shouting_names, no_suffix, folder_called_like_a_file,
        partitions,
    ),
}  # fmt: skip

"""Faults of the data: bytes, columns, numbers, ids, and where files lie.

Each changes a draft and says what must come of it. Which ones there are the tables at the end tell;
their names say what is broken.
"""

import datetime
import decimal
import gzip
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.chaos.draft import FEATURES, UNREAD, Draft, Expect, either, error, right, write_table

Fault = Callable[[Draft], Expect]


# Bytes: what disks, copies, editors and other programs do to files


def _bytes(expect: Callable[[Draft, Path], Expect], harm: Callable[[Draft, bytes], bytes]) -> Fault:
    """Changes the bytes of one file."""

    def fault(d: Draft) -> Expect:
        path = d.draw.choice(d.files)
        path.write_bytes(harm(d, path.read_bytes()))
        return expect(d, path)

    return fault


def _as_files(d: Draft, path: Path) -> Expect:
    return either(reference="files")


def _names_file(d: Draft, path: Path) -> Expect:
    return error(path.name)


def _flip(d: Draft, content: bytes, counts: list[int], last: int | None = None) -> bytes:
    """Flips bits anywhere, or in the last bytes alone."""
    changed = bytearray(content)
    for _ in range(d.draw.choice(counts)):
        if last is None:
            at = d.draw.randrange(len(changed))
        else:
            at = -d.draw.randrange(1, min(last, len(changed)))
        changed[at] ^= 1 << d.draw.randrange(8)
    return bytes(changed)


def _zero(d: Draft, content: bytes) -> bytes:
    first = d.draw.randrange(len(content))
    stop = min(len(content), first + d.draw.choice([16, 256, 4096]))
    return content[:first] + bytes(stop - first) + content[stop:]


flipped_bits = _bytes(_as_files, lambda d, content: _flip(d, content, [1, 1, 2, 8, 64]))


def wrong_footer_length(d: Draft) -> Expect:
    """A Parquet footer that says to be longer than the file, or shorter than it is."""
    if d.is_csv:
        return unbalanced_quote(d)

    def harm(d: Draft, content: bytes) -> bytes:
        length = d.draw.choice([0, 1, 2**31 - 1, 2**32 - 1, len(content)])
        return content[:-8] + struct.pack("<I", length) + b"PAR1"

    return _bytes(_names_file, harm)(d)


def _csv(d: Draft, harm: Callable[[bytes], bytes], expect: Expect) -> Expect:
    """Changes the text of one file; of Parquet files some bits instead."""
    if not d.is_csv:
        return flipped_bits(d)
    path = d.draw.choice(d.files)
    packed, content = path.suffix == ".gz", path.read_bytes()
    text = harm(gzip.decompress(content) if packed else content)
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
    return expect


def _csv_lines(d: Draft, harm: Callable[[list[bytes]], object], expect: Expect) -> Expect:
    def changed(text: bytes) -> bytes:
        lines = text.split(b"\n")
        harm(lines)
        return b"\n".join(lines)

    return _csv(d, changed, expect)


def windows_lines(d: Draft) -> Expect:
    end = d.draw.choice([b"\r\n", b"\r"])
    return _csv(d, lambda text: text.replace(b"\n", end), right("clean"))


def other_delimiter(d: Draft) -> Expect:
    mark = d.draw.choice([b";", b"\t"])
    return _csv(d, lambda text: text.replace(b",", mark), right("clean"))


def header_alone(d: Draft) -> Expect:
    if len(d.files) > 1:
        return either()
    wanted = either("no row", reference="files") if d.command == "score" else error("no row")
    return _csv(d, lambda text: text.split(b"\n", 1)[0] + b"\n", wanted)


def two_headers(d: Draft) -> Expect:
    """The header stands in the middle again, as where files were joined."""
    return _csv_lines(
        d,
        lambda lines: lines.insert(d.draw.randrange(2, len(lines) - 1), lines[0]),
        either() if d.command == "init" else error(("price", "click", "time")),
    )


def ragged(d: Draft) -> Expect:
    """A row has a cell too many or too few."""

    def harm(lines: list[bytes]) -> None:
        n = d.draw.randrange(1, len(lines) - 1)
        longer = d.draw.random() < 0.5
        lines[n] = lines[n] + b",9" if longer else lines[n].rsplit(b",", 1)[0]

    return _csv_lines(d, harm, error("row"))


def unbalanced_quote(d: Draft) -> Expect:
    def harm(lines: list[bytes]) -> None:
        n = d.draw.randrange(1, len(lines) - 1)
        cells = lines[n].split(b",")
        c = d.draw.randrange(len(cells))
        cells[c] = b'"' + cells[c].lstrip(b'"')
        lines[n] = b",".join(cells)

    return _csv_lines(d, harm, either(reference="files"))


def not_utf8(d: Draft) -> Expect:
    """One word in another encoding, or the whole file in UTF-16."""
    if d.draw.random() < 0.3:
        return _csv(d, lambda text: text.decode().encode("utf-16"), error("UTF"))
    one_word = either("UTF", reference="files")
    return _csv(d, lambda text: text.replace(b"i1", b"i\xe4", 1), one_word)


def blank_lines(d: Draft) -> Expect:
    def harm(lines: list[bytes]) -> None:
        for _ in range(3):
            lines.insert(d.draw.randrange(len(lines)), b"")

    return _csv_lines(d, harm, right("clean"))


def line_above_the_header(d: Draft) -> Expect:
    line = d.draw.choice([b"# exported 2024-01-31\n", b"sep=,\n", b"Report of January\n"])
    return _csv(d, lambda text: line + text, error())


def nul_byte(d: Draft) -> Expect:
    def harm(text: bytes) -> bytes:
        at = d.draw.randrange(len(text))
        return text[:at] + b"\0" + text[at:]

    return _csv(d, harm, either(reference="files"))


def quoted_everything(d: Draft) -> Expect:
    def harm(text: bytes) -> bytes:
        lines = [line.split(b",") for line in text.replace(b'"', b"").split(b"\n") if line]
        return b"\n".join(b",".join(b'"' + c + b'"' for c in cells) for cells in lines) + b"\n"

    return _csv(d, harm, right("clean"))


def damaged_gzip(d: Draft) -> Expect:
    """A .gz file that is none, or is damaged in the middle."""
    if d.kind != "csv.gz":
        return flipped_bits(d)
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


def shuffled_columns(d: Draft) -> Expect:
    part = d.part()
    names = list(d.tables[part].column_names)
    d.draw.shuffle(names)
    d.tables[part] = d.tables[part].select(names)
    return either() if d.command == "init" else right("clean")


def extra_column(d: Draft) -> Expect:
    part = d.part()
    values = pa.array([d.draw.random() for _ in range(d.tables[part].num_rows)])
    d.tables[part] = d.tables[part].append_column("surprise", values)
    return either() if d.command == "init" else right("clean")


def duplicate_column(d: Draft) -> Expect:
    column = d.draw.choice([*FEATURES, UNREAD])
    d.tables = [t.append_column(column, pa.nulls(len(t), t[column].type)) for t in d.tables]
    return either(column, reference="clean")


def no_rows_in_one(d: Draft) -> Expect:
    if len(d.tables) == 1:
        return no_rows(d)
    part = d.part()
    d.tables[part] = d.tables[part].slice(0, 0)
    return right()


def no_rows(d: Draft) -> Expect:
    d.tables = [table.slice(0, 0) for table in d.tables]
    return either("no row") if d.command == "score" else error("no row")


def few_rows(d: Draft) -> Expect:
    d.tables = [d.tables[0].slice(0, d.draw.randint(1, 5))]
    return right() if d.command == "score" else either()


def all_null(d: Draft) -> Expect:
    """A column holds nothing, in one file or in all, with its type or without."""
    column = d.draw.choice([*FEATURES, "click", "buy"])
    typed, whole = d.draw.random() < 0.5, d.draw.random() < 0.5
    for part in range(len(d.tables)) if whole else [d.part()]:
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
    as_all = str if isinstance(stray, str) else int if stray in (2, -1, 7) else float
    d.replace(part, "click", pa.array([as_all(value) for value in labels]))
    if d.command == "init":
        return either()
    return error("click") if d.reads("click") else right("clean")


# Numbers and times


def _one_price(d: Draft, value: float | None, expect: Expect) -> Expect:
    d.change_some("price", [value], pa.float64())
    return either("price") if d.command == "init" else expect


def infinite_number(d: Draft) -> Expect:
    return _one_price(d, d.draw.choice([float("inf"), float("-inf")]), error("price"))


def nan_number(d: Draft) -> Expect:
    return _one_price(d, None if d.is_csv else float("nan"), right())


def huge_number(d: Draft) -> Expect:
    return _one_price(d, d.draw.choice([1e300, -1e308, 3.5e38, 1e-320]), right())


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


def _other_times(d: Draft) -> Expect:
    if d.command == "init":
        return either("time")
    return error("time", "part-") if d.reads("time") else right("clean")


def two_time_units(d: Draft) -> Expect:
    """Times in seconds, in one file in milliseconds."""
    if len(d.tables) == 1:
        return null_time(d)
    part = d.part()
    d.replace(part, "time", pc.multiply(d.tables[part]["time"], 1000))
    return _other_times(d)


def two_timestamp_types(d: Draft) -> Expect:
    """Timestamps of two units, or with and without a time zone."""
    if len(d.tables) == 1 or d.is_csv:
        return two_time_units(d)
    odd, other = d.part(), d.draw.choice([pa.timestamp("ms"), pa.timestamp("us", "UTC")])
    d.replace_all("time", lambda t: t.cast(pa.timestamp("s")).cast(pa.timestamp("us")))
    d.replace(odd, "time", d.tables[odd]["time"].cast(other))
    return _other_times(d)


def null_time(d: Draft) -> Expect:
    d.change_some("time", [None], pa.int64())
    if d.command == "init":
        return either("time")
    by_time = d.reads("time") and d.split is not None and d.split[0] == "time"
    return error("time") if by_time else right()


def words_as_time(d: Draft) -> Expect:
    part = d.part()
    d.replace(part, "time", pa.array(["yesterday"] * d.tables[part].num_rows))
    if d.command == "init":
        return either("time")
    if not d.reads("time"):
        return right("clean")
    by_time = d.split is not None and d.split[0] == "time"
    return error("time") if by_time else either("time")


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


def decimals(d: Draft) -> Expect:
    """Prices as decimals; their last bit may be another than that of the same text."""
    d.replace_all("price", lambda prices: pa.array(
        [None if p is None else decimal.Decimal(str(p)) for p in prices.to_pylist()],
        pa.decimal128(30, 2)))  # fmt: skip
    return either("price") if d.command == "init" else right()


# Ids, and lists of ids


def _as_written(d: Draft) -> str:
    return "files" if d.is_csv else "tables"


def _some_parts(d: Draft) -> range | list[int]:
    return [d.part()] if d.draw.random() < 0.5 else range(len(d.tables))


def ids_of_two_kinds(d: Draft) -> Expect:
    """Integers in one file, text in another; CSV settles to text."""
    part = d.part()
    d.replace(part, "user", pa.array([f"u{user}" for user in d.tables[part]["user"].to_pylist()]))
    if d.is_csv or len(d.tables) == 1:
        return right(_as_written(d))
    return either("user", "part-")


def other_integers(d: Draft) -> Expect:
    kind = d.draw.choice([pa.int32(), pa.uint16(), pa.float64(), pa.decimal128(21, 2),
                          pa.uint64(), pa.float32(), pa.int16()])  # fmt: skip
    d.replace_all("user", lambda users: users.cast(kind))
    return right("clean")


def other_types_in_one(d: Draft) -> Expect:
    """One file has wider or narrower numbers than the others."""
    column = d.draw.choice(["user", "click", "price"])
    kinds = {"user": [pa.int32(), pa.uint32(), pa.float64()], "click": [pa.int8(), pa.float32(),
             pa.bool_()], "price": [pa.float32(), pa.decimal128(20, 2)]}[column]  # fmt: skip
    part, kind = d.part(), d.draw.choice(kinds)
    d.replace(part, column, d.tables[part][column].cast(kind, safe=False))
    rounded = kind == pa.float32() and column != "click"
    return either(column, reference=_as_written(d) if rounded else "clean")


def other_text(d: Draft) -> Expect:
    kinds = [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary(),
             pa.large_binary(), pa.string_view()]  # fmt: skip
    kind = d.draw.choice(kinds[:2] if d.is_csv else kinds)
    for part in _some_parts(d):
        d.replace(part, "item", d.tables[part]["item"].cast(kind))
    return either("item", reference="clean")


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


def other_lists(d: Draft) -> Expect:
    kinds = [pa.large_list(pa.int32()), pa.list_(pa.int16()), pa.list_(pa.float64()),
             pa.list_(pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.int64()))]  # fmt: skip
    kind = d.draw.choice(kinds[:2] if d.is_csv else kinds)
    as_words = pa.types.is_string(kind.value_type)  # then ids of a vocabulary are words
    for part in _some_parts(d):
        lists = d.tables[part]["history"].to_pylist()
        if as_words:
            lists = [[str(value) for value in row] for row in lists]
        d.replace(part, "history", pa.array(lists, kind))
    return either("history", reference="tables" if as_words else "clean")


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
    for part in _some_parts(d):
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


def nothing_there(d: Draft) -> Expect:
    d.data = d.draw.choice([d.data + "x", f"{d.folder}/no/such.csv", f"{d.folder}/*.nothing"])
    return error(d.data)


def empty_folder(d: Draft) -> Expect:
    empty = d.folder / "empty"
    empty.mkdir()
    if d.draw.random() < 0.5:
        (empty / "_SUCCESS").write_bytes(b"")
        (empty / ".part-0.parquet.crc").write_bytes(b"crc")
    d.data = str(empty)
    return error(d.data)


def mixed_kinds(d: Draft) -> Expect:
    write_table(d.tables[0], _folder(d) / ("odd.parquet" if d.is_csv else "odd.csv"))
    return error(d.data)


def deep_types(d: Draft) -> Expect:
    """A column that nobody reads, nested deeper than data is."""
    path = d.folder / d.draw.choice(["deep.parquet", "deep.arrow", "deep.jsonl"])
    depth = d.draw.choice([40, 45]) if path.suffix == ".parquet" else 90
    kind = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    table = d.tables[0].select(["click"])
    if path.suffix == ".jsonl":
        path.write_text(f'{{"click": 1, "deep": {"[" * depth}{"]" * depth}}}\n' * 5, "utf-8")
    elif path.suffix == ".arrow":
        pa.ipc.new_file(str(path), table.schema.append(pa.field("deep", kind))).close()
    else:
        pq.write_table(table.append_column("deep", pa.nulls(len(table), kind)), path)
    d.data = str(path)
    return error(d.data, "nested more than 64 levels")


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


def dangling_link(d: Draft) -> Expect:
    (_folder(d) / f"part-9.{d.kind}").symlink_to(d.folder / "gone")
    return either("part-9", reference="clean")


def one_file_under_two_names(d: Draft) -> Expect:
    """A link beside the file that it is a link to: its rows count once."""
    again = _folder(d) / f"part-9.{d.kind}"
    link = again.symlink_to if d.draw.random() < 0.5 else again.hardlink_to
    link(d.files[0])
    return right("clean")


def partitions(d: Draft) -> Expect:
    """Folders name a column; one of them holds no file."""
    folder = d.folder / "hive"
    for n, path in enumerate(d.files):
        below = folder / f"day=2024-01-0{n + 1}"
        below.mkdir(parents=True)
        shutil.move(path, below / path.name)
    (folder / "day=2024-01-09").mkdir()
    d.files = sorted(folder.rglob("part-*")) or sorted(folder.rglob("log*"))
    d.data = str(folder)
    return either() if d.command == "init" else right("clean")


def partition_without_rows(d: Draft) -> Expect:
    expect = partitions(d)
    path = Path(d.data) / "day=2024-01-09" / f"part-9.{d.kind}"
    write_table(d.tables[0].slice(0, 0), path)
    d.files.append(path)
    if d.is_csv:  # a header alone
        return either(reference="clean") if d.command == "init" else right("clean")
    return expect


def _folder(d: Draft) -> Path:
    """The folder of the files; a single file moves into one."""
    if len(d.files) > 1:
        return Path(d.data)
    folder = d.folder / "log"
    folder.mkdir()
    d.files = [d.files[0].rename(folder / d.files[0].name)]
    d.data = str(folder)
    return folder


def _by_name(*faults: Fault) -> dict[str, Fault]:
    return {fault.__name__: fault for fault in faults}


_OTHER_CONTENTS = [b"PAR1" + bytes(100) + b"PAR1", b"\x89PNG\r\n\x1a\n" + bytes(200),
                   b'{"a": 1}\n{"a": 2}\n', b"<html><body>404</body></html>"]  # fmt: skip
BYTE_FAULTS: dict[str, Fault] = {
    "truncated": _bytes(
        lambda d, path: _as_files(d, path) if d.kind == "csv" else _names_file(d, path),
        lambda d, content: content[: d.draw.randrange(1, len(content))],
    ),
    "emptied": _bytes(
        _names_file, lambda d, _: d.draw.choice([b"", b"\n\n", b"   \n"]) if d.is_csv else b""
    ),
    "flipped_bits": flipped_bits,
    # A Parquet footer
    "flipped_at_the_end": _bytes(_as_files, lambda d, content: _flip(d, content, [1, 2, 4], 400)),
    "zeroed": _bytes(_as_files, _zero),
    "other_content": _bytes(_names_file, lambda d, _: d.draw.choice(_OTHER_CONTENTS)),
    "wrong_footer_length": wrong_footer_length,
    "garbage_behind": _bytes(
        _as_files, lambda d, content: content + bytes(d.draw.choices(range(256), k=40))
    ),
    "byte_order_mark": lambda d: _csv(d, lambda text: b"\xef\xbb\xbf" + text, right("clean")),
    **_by_name(windows_lines, other_delimiter),
    "no_header": lambda d: _csv(d, lambda text: text.split(b"\n", 1)[1], error()),
    **_by_name(
        header_alone, two_headers, ragged, unbalanced_quote, not_utf8, blank_lines,
        line_above_the_header, nul_byte, quoted_everything, damaged_gzip,
    ),
}  # fmt: skip
TABLE_FAULTS = _by_name(
    drop_column, rename_column, shuffled_columns, extra_column, duplicate_column, no_rows_in_one,
    no_rows, few_rows, all_null, one_class, stray_label,
    infinite_number, nan_number, huge_number, word_among_numbers, numbers_as_text,
    moments_as_numbers, two_time_units, two_timestamp_types, null_time, words_as_time,
    dates_as_time, decimals,
    ids_of_two_kinds, other_integers, other_types_in_one, other_text, odd_words, bytes_as_ids,
    huge_ids, missing_lists, other_lists, nested_ids, powers_of_ten, unsigned_beside_signed,
    large_beside_fractions,
)  # fmt: skip
LAYOUT_FAULTS = _by_name(
    nothing_there, empty_folder, mixed_kinds, hidden_files, globbed, shouting_names, no_suffix,
    folder_called_like_a_file, dangling_link, one_file_under_two_names, partitions,
    partition_without_rows, deep_types,
)  # fmt: skip

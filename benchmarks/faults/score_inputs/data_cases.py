"""Rows that are broken: bytes, columns, types, and where files lie."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.inputs.arrow_types import ARROW_TYPES, column_of
from benchmarks.faults.inputs.as_they_come import draw_made, write_config, wrong_level
from benchmarks.faults.inputs.byte_faults import BYTE_FAULTS
from benchmarks.faults.inputs.column_faults import COLUMN_FAULTS
from benchmarks.faults.inputs.draft import Draft, Expect
from benchmarks.faults.inputs.id_faults import ID_FAULTS
from benchmarks.faults.inputs.id_type_faults import ID_TYPE_FAULTS
from benchmarks.faults.inputs.in_process import run_in_process
from benchmarks.faults.inputs.layout_faults import LAYOUT_FAULTS
from benchmarks.faults.inputs.number_faults import NUMBER_FAULTS
from benchmarks.faults.score_inputs.case import ScoreCase, any_column

_KINDS = ("csv", "csv", "parquet", "parquet", "csv.gz")


def broken_bytes(case: ScoreCase) -> None:
    """Of Parquet and CSV: cut, empty, ragged, in another encoding, …"""
    _faulty(case, BYTE_FAULTS, written=True)


def broken_columns(case: ScoreCase) -> None:
    """Gone, doubled, empty, numbers that are huge or words."""
    faults = (*COLUMN_FAULTS, *NUMBER_FAULTS, *ID_FAULTS, *ID_TYPE_FAULTS)
    _faulty(case, faults, written=False)


def broken_layout(case: ScoreCase) -> None:
    """Paths without files, folders of several kinds, links that lead nowhere."""
    _faulty(case, LAYOUT_FAULTS, written=True)


def _faulty(case: ScoreCase, faults: Iterable[Callable[[Draft], Expect]], *, written: bool) -> None:
    case.into_any_place()
    draft, fault = case.draft(case.draw.choice(_KINDS)), case.draw.choice([*faults])
    if written:
        draft.write()
    expect = fault(draft)
    if not written:
        draft.write()
    case.source, case.refused = draft.data, expect.outcome == "error"
    case.name = f"{fault.__name__} ({draft.kind} × {len(draft.tables)})"


def broken_types(case: ScoreCase) -> None:
    """A column of any type of Arrow, in one file of three or in all, read or kept."""
    case.into_any_place()
    draft, kind = case.draft("parquet"), case.draw.choice([*ARROW_TYPES])
    column = any_column(case.draw, draft.tables[0])
    everywhere = case.draw.random() < 0.4
    for part in range(len(draft.tables)) if everywhere else [draft.part()]:
        numbers = [case.draw.choice([0, 1, 7, 30]) for _ in range(draft.tables[part].num_rows)]
        draft.replace(part, column, column_of(kind, numbers))
    if case.draw.random() < 0.5:
        case.options += ["--keep", column]
    case.source = _arrow_files(draft)
    case.name = f"{column} is {kind} ({'everywhere' if everywhere else 'in one file'})"


def broken_numbers(case: ScoreCase) -> None:
    """Numbers at the ends of what there is."""
    case.into_any_place()
    draft = case.draft("parquet")
    value = case.draw.choice([1.7e308, -1.7e308, 5e-324, np.inf, -np.inf, np.nan, 2.0**63, -0.0])
    for part in range(len(draft.tables)):
        draft.replace(part, "price", pa.array([value] * draft.tables[part].num_rows, pa.float64()))
    case.options += case.draw.choice([[], ["--fuse", "income=click * price"]])
    case.source, case.name = _arrow_files(draft), f"price is {value:g}"


def as_they_come(case: ScoreCase) -> None:
    """A log as public files have it, scored by a run that was trained on such a one."""
    case.name, made = draw_made(case.draw, case.folder / "in", to_score=True)
    if isinstance(made.path, list):  # `--input` is one path
        case.name = f"{case.name} (its first path)"
    source = made.path[0] if isinstance(made.path, list) else made.path
    case.source, rows = (source, made.truth) if made.to_score is None else made.to_score
    case.out = str(case.place("scores.parquet"))
    case.refused = made.expect.outcome == "error"
    if case.refused:
        return
    runs = []
    for name in ("as_it_came", "of_truth"):
        config, run, truth = (case.folder / f"{name}{end}" for end in (".yaml", "", ".parquet"))
        write_config(made, config, truth if name == "of_truth" else None)
        trained = run_in_process(["train", str(config), "--out", str(run), "--quiet"], 60.0)
        if trained.code != 0 and made.expect.outcome == "either" and not runs:
            return  # by the run that all cases share
        if trained.code != 0:
            raise RuntimeError(f"{case.name}: the training before it failed: {trained.stderr}")
        runs.append(run)
    case.run = str(runs[0])
    plain = case.folder / "truth.parquet"
    pq.write_table(rows, plain)
    case.wrong = lambda: case.differs_from(runs[1], plain) or wrong_level(made, runs[0])


def broken_other_formats(case: ScoreCase) -> None:
    """Arrow files and streams, and lines of JSON: cut, flipped, or of something else."""
    case.into_any_place()
    draft = case.draft("parquet")
    kind = case.draw.choice(["arrow", "stream", "jsonl", "jsonl"])
    path = case.folder / "in" / f"log.{'arrow' if kind == 'stream' else kind}"
    path.parent.mkdir()
    rows = draft.tables[0]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), "utf-8")
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(path, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=40)
    how = case.draw.choice([*_HARMS, *(_JSON_HARMS if kind == "jsonl" else ())])
    content = path.read_bytes()
    if how in _HARMS:
        path.write_bytes(_HARMS[how](content, case.draw.randrange(1, len(content))))
    else:
        lines = content.splitlines()
        lines[case.draw.randrange(len(lines))] = _JSON_HARMS[how]
        path.write_bytes(b"\n".join(lines) + b"\n")
    case.source, case.name = str(path), f"{kind} {how}"


_HARMS: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda content, at: content[:at],
    "empty": lambda content, at: b"",
    "flipped": lambda content, at: content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :],
    "zeroed": lambda content, at: content[:at] + bytes(64) + content[at + 64 :],
    "garbage behind": lambda content, at: content + b"\xff\xfe" * at,
    "begins later": lambda content, at: content[at:],
    "is Parquet": lambda content, at: b"PAR1" + content[:at] + b"PAR1",
}
_JSON_HARMS = {
    "a list": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "no end": b'{"user": 1, "item": ',
    "another type": b'{"user": {"a": [1]}, "item": [["x"]], "price": "cheap", "history": "x"}',
    "no column": b"{}",
    "twice": b'{"user": 1, "user": 2, "item": "a", "item": "b"}',
    "no UTF-8": b'{"user": 1, "item": "\xff\xfe", "price": 1.0, "history": [1]}',
    "a huge number": b'{"user": 1e400, "item": 99999999999999999999999, "price": 1e999}',
    "deep": b'{"user": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "NaN": b'{"user": NaN, "item": Infinity, "price": -Infinity, "history": NaN}',
}


def _arrow_files(draft: Draft) -> str:
    """Parquet, or Arrow where Parquet has no such type; several in one folder."""
    folder = draft.folder
    folder.mkdir(parents=True, exist_ok=True)
    for n, table in enumerate(draft.tables):
        path = folder / f"part-{n}.parquet"
        try:
            pq.write_table(table, path, row_group_size=50)
        except pa.ArrowException:
            path.unlink(missing_ok=True)
            return _all_arrow(draft, folder)
    return str(folder)


def _all_arrow(draft: Draft, folder: Path) -> str:
    for path in folder.iterdir():
        path.unlink()
    for n, table in enumerate(draft.tables):
        with pa.ipc.new_file(folder / f"part-{n}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    return str(folder)

"""Runs a case and judges it: a right answer is that of the same command on a clean copy."""

import csv
import gzip
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import load_config
from tests.chaos.draft import FEATURES, LABELS, Case, Draft, Workspace, flat, write_yaml
from tests.chaos.processes import Ended, Verdict, run_in_process
from tests.chaos.small_log import small_config

SECONDS = 60.0
_START, _LONGEST = "mmoe: error: ", 3_000
# Words of the interpreter that a user cannot act on
_RAW = re.compile(
    r"Traceback|object at 0x|'NoneType'|has no attribute|unhashable type|index out of range|"
    r"invalid literal for|not subscriptable|unsupported operand|<class|KeyError|AssertionError"
)


def judge(number: int, case: Case, space: Workspace, folder: Path) -> Verdict:
    ended = run_in_process(case.arguments, SECONDS)
    verdict, why = _verdict(case, ended, space, folder)
    said = ended.stderr.strip()[-2_000:]
    return Verdict(number, case.fault, case.command, verdict, why[:500], said)


def _verdict(case: Case, ended: Ended, space: Workspace, folder: Path) -> tuple[str, str]:
    crash = crashed(ended)
    if crash:
        return ("failure" if ended.code == -2 else "traceback"), crash
    if ended.code == 0:
        if case.expect.outcome == "error":
            return "failure", "it succeeded, but should not have"
        if ended.stderr.strip():
            return "failure", "it succeeded, but complained"
        why = _wrong_answer(case, ended, space, folder)
        return ("wrong answer", why) if why else ("right answer", "")
    if case.expect.outcome == "right":
        return "failure", "it failed, but the rows can be read"
    groups = (*case.expect.names, *([case.words] if case.words else []))
    why = unclear(ended, (2,), groups) or _left_behind(case)
    return ("failure", why) if why else ("clear error", "")


def crashed(ended: Ended) -> str | None:
    if ended.code == -2:
        return f"still running after {SECONDS:.0f} s"
    if ended.code < 0 or "Traceback (most recent" in ended.stderr:
        return ended.stderr.strip().splitlines()[-1][:300]
    return None


def unclear(ended: Ended, codes: tuple[int, ...], groups: Sequence[Sequence[str]] = ()):
    """Says why a user could not act on an error: of each group of words it must hold one."""
    said = ended.stderr.strip()
    if ended.code not in codes:
        return f"exit code {ended.code}, not 2"
    if "\n" in said or not said.startswith(_START):
        return "not one line"
    if len(said) > _LONGEST:
        return f"{len(said)} characters"
    raw = _RAW.search(said)
    if raw:
        return f"says {raw[0]!r}, which nobody can act on"
    for words in groups:
        if not any(word in said for word in words):
            return f"names none of {', '.join(map(repr, words))}"
    return None


def _left_behind(case: Case) -> str | None:
    """A run that had a checkpoint may stand: it can be resumed. Anything else is half-written."""
    there = sorted(case.out.parent.iterdir())
    if there == [case.out] and (case.out / "checkpoint" / "index.json").exists():
        return None
    return f"left behind: {', '.join(p.name for p in there)}" if there else None


# Right answers


def _wrong_answer(case: Case, ended: Ended, space: Workspace, folder: Path) -> str | None:
    if case.command == "init":
        return _wrong_config(case, folder)
    if case.expect.reference == "none":
        return None
    clean = space.log
    if case.draft is not None:
        clean = folder / "clean.parquet"
        try:
            _write_reference(case.draft, case.clean, case.expect.reference, clean)
        except Exception as error:  # whatever the other reader raises
            return f"it succeeded, but another reader says: {error!r}"
    out, run = folder / "reference", space.run("memory")
    if case.command == "train":
        split = case.draft.split if case.draft is not None else None
        config = data_config(str(clean), split, "memory")
        config_path = write_yaml(folder / "reference.yaml", config)
        arguments = ["train", config_path, "--out", str(out), "--quiet"]
    elif case.command == "score":
        arguments = ["score", str(run), "--input", str(clean), "--output", str(out), "--quiet"]
    else:
        arguments = ["evaluate", str(run), "--data", str(clean), "--json", "--quiet"]
    wanted = run_in_process(arguments, SECONDS)
    if wanted.code != 0:
        return f"it succeeded, but on the clean rows: {wanted.stderr.strip()[-300:]}"
    if case.command == "train":
        difference = first_difference(case.out, out, settings=False)
        return difference and f"differs from training on the clean rows in {difference}"
    if case.command == "score":
        same = pq.read_table(case.out).equals(pq.read_table(out))
        return None if same else "scores differ from those of the clean rows"
    mine, theirs = (without_clock(json.loads(e.stdout))["tasks"] for e in (ended, wanted))
    return None if mine == theirs else "metrics differ from those of the clean rows"


def data_config(path: str, split: tuple[str, str] | None, how: str) -> dict[str, Any]:
    raw = small_config(path)
    raw["data"] |= {"input": how, "streaming": {"chunk_rows": 40}}
    if split is not None:
        raw["data"]["split"] = {"by": split[0], "column": split[1]}
    return raw


def _wrong_config(case: Case, folder: Path) -> str | None:
    """A first config is right if it has the labels asked for, and trains or says why not."""
    config = load_config(case.out)
    if [task.label for task in config.tasks] != ["click", "buy"]:
        return f"tasks are {[task.label for task in config.tasks]}"
    small = ["training.epochs=1", "model.num_experts=2", "model.expert.hidden=[8]"]
    overrides = [part for text in small for part in ("--set", text)]
    arguments = ["train", str(case.out), "--out", str(folder / "trained"), "--quiet", *overrides]
    ended = run_in_process(arguments, SECONDS)
    return None if ended.code == 0 else f"its config does not train: {ended.stderr.strip()[-400:]}"


# The same rows, read another way and written cleanly

_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_COLUMNS = (*FEATURES, *LABELS, "time")


def _write_reference(draft: Draft, clean: Sequence[pa.Table], which: str, path: Path) -> None:
    """Writes the rows that the command should have understood as one Parquet file, plain types."""
    tables = list(clean) if which == "clean" else draft.tables
    if which == "files":
        wanted = [name for name in _COLUMNS if draft.reads(name)]
        tables = [_read(path, wanted) for path in draft.files]
    if draft.is_csv:  # what it cannot say (an empty list, a number's type) it is not asked for
        tables = _settled([_as_csv_says(table) for table in tables])
    decoded = [_decoded(t.select([n for n in _COLUMNS if n in t.column_names])) for t in tables]
    if len({table["user"].type for table in decoded} & {pa.int64(), pa.uint64()}) == 2:
        decoded = [_cast(table, "user", pa.string()) for table in decoded]  # no type holds both
    try:
        whole = pa.concat_tables(decoded, promote_options="permissive")
    except pa.ArrowTypeError:  # words in one file, numbers in another
        words = [_cast(table, "user", pa.string()) for table in decoded]
        whole = pa.concat_tables(words, promote_options="permissive")
    pq.write_table(whole, path)


def _cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, table[name].cast(kind))


def _decoded(table: pa.Table) -> pa.Table:
    for name in table.column_names:
        if isinstance(kind := table[name].type, pa.DictionaryType):
            table = _cast(table, name, kind.value_type)
    return table


def _read(path: Path, wanted: list[str]) -> pa.Table:
    if path.suffix == ".parquet":
        with pq.ParquetFile(str(path)) as file:
            return file.read(columns=wanted)
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    text = content.decode("utf-8-sig", errors="replace")  # what nobody reads may hold anything
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("ragged")
    cells = list(zip(*rows, strict=True)) or [()] * len(header)
    first = {name: n for n, name in reversed(list(enumerate(name.strip() for name in header)))}
    return pa.table({name: pa.array(list(cells[n]), pa.string()) for name, n in first.items()})


def _as_csv_says(table: pa.Table) -> pa.Table:
    def word(value: object) -> str | None:
        text = repr(value) if isinstance(value, float) else str(value)
        return text.strip(" \t\n\r\v\f") or None

    columns = {}
    for name, column in zip(table.column_names, flat(table).columns, strict=True):
        words = [None if v is None else word(v) for v in column.to_pylist()]
        columns.setdefault(name, pa.array(words, pa.string()))
    return pa.table(columns)


def _settled(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Columns of words that are numbers in all tables become numbers."""
    out = list(tables)
    for name in {n for table in tables for n in table.column_names} - {"history"}:
        here = [t for t in tables if name in t.column_names]
        if not all(pa.types.is_string(t[name].type) for t in here):
            continue
        kind = _number_type([w for t in here for w in t[name].to_pylist() if w is not None])
        if kind is not None:
            to = int if pa.types.is_integer(kind) else float
            out = [_numbers(t, name, kind, to) if name in t.column_names else t for t in out]
    return out


def _numbers(table: pa.Table, name: str, kind: pa.DataType, to: type) -> pa.Table:
    values = [None if w is None else to(w) for w in table[name].to_pylist()]
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind))


def _number_type(words: Sequence[str]) -> pa.DataType | None:
    if all(_WHOLE.fullmatch(w) and w != "-0" and -(2**63) <= int(w) < 2**63 for w in words):
        return pa.int64()
    if not any(_WHOLE.fullmatch(w) is None for w in words):
        return None  # whole numbers beyond 64 bits are words
    try:
        return pa.float64() if [float(w) for w in words] else None
    except ValueError:
        return None


# Did two runs end with the same bits?

# What a clock says differs from run to run; versions stand in metrics.json as well.
_CLOCK = frozenset({
    "seconds", "rows_per_second", "epoch_seconds",
    "communication",  # of the steps of one process: of a resumed epoch those since
})  # fmt: skip


def first_difference(one: Path, two: Path, *, settings: bool = True) -> str | None:
    """The first thing in which two finished run directories differ, or None.

    Compared are every tensor of the last and the best checkpoint (weights, optimizer, random
    state), vocabularies, curves, and history and metrics but for the times; with `settings` the
    config too, and where training stands (which names the files).
    """
    found = [
        _differs_in_vocabularies(one / "vocabulary", two / "vocabulary", settings=settings),
        _differs_in_tensors(one / "checkpoint", two / "checkpoint"),
        *(_differs_in_json(one / f, two / f) for f in ("history.json", "metrics.json",
                                                       "curves.json")),
    ]  # fmt: skip
    if settings:
        steps = (CheckpointFolder(run / "checkpoint").step("latest") for run in (one, two))
        found.append(_differs_in_json(*(step / "state.json" for step in steps)))
        same = (one / "config.yaml").read_bytes() == (two / "config.yaml").read_bytes()
        found.append(None if same else "config.yaml")
    return next((what for what in found if what is not None), None)


def leftovers(run: Path) -> list[str]:
    return sorted(str(p.relative_to(run)) for p in run.rglob(".*"))


def without_clock(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_clock(value) for key, value in node.items() if key not in _CLOCK}
    return [without_clock(value) for value in node] if isinstance(node, list) else node


def _differs_in_tensors(one: Path, two: Path) -> str | None:
    for which, file in (("latest", "model"), ("latest", "training"), ("best", "model")):
        mine, theirs = (CheckpointFolder(path).tensors(which, file).whole() for path in (one, two))
        if mine.keys() != theirs.keys():
            return f"{which} {file}.safetensors: names of tensors"
        for name, tensor in mine.items():
            # Bytes, because NaN would differ from itself, and -0.0 equal 0.0
            if tensor.numpy().tobytes() != theirs[name].numpy().tobytes():
                return f"{which} {file}.safetensors: {name}"
    return None


def _differs_in_vocabularies(one: Path, two: Path, *, settings: bool) -> str | None:
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in two.iterdir()):
        return f"{one.name}: other files"
    for name in names:
        if name == "encoder.json" and not settings:
            mine, theirs = (json.loads((run / name).read_text("utf-8")) for run in (one, two))
            same = {**mine, "config": None} == {**theirs, "config": None}
        else:
            same = (one / name).read_bytes() == (two / name).read_bytes()
        if not same:
            return f"{one.name}/{name}"
    return None


def _differs_in_json(one: Path, two: Path) -> str | None:
    mine, theirs = (without_clock(json.loads(p.read_text(encoding="utf-8"))) for p in (one, two))
    return None if mine == theirs else one.name

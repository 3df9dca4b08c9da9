"""Broken inputs of `mmoe score`: each ends harmlessly or in one line, and nothing half-written."""

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.run.atomic_files import is_temporary
from tests.arrow_types import ARROW_TYPES, column_of, write_arrow
from tests.chaos.data_faults import break_data
from tests.chaos.draft import SCORED, Draft, Scored, cut, score
from tests.chaos.judge import SECONDS, crashed, unclear
from tests.chaos.processes import Ended, Say, Verdict, judge_in_forks, prepare, run_in_process
from tests.chaos.run_faults import damage_run, files_of_run, flip, json_files, tamper
from tests.chaos.small_log import small_log


@dataclass
class ScoreCase:
    """What a scoring is given; at first everything is as it should be."""

    draw: random.Random
    space: Scored  # What is there before, for all cases; never written to
    folder: Path
    # Of what was broken. run, source, out: That score, what `--input` and `--output` name;
    # `options` all others.
    name: str = ""
    run: str = ""
    source: str = ""
    out: str = ""
    options: list[str] = field(default_factory=list)
    refused: bool = False  # Whether an error must come
    # Says what is wrong with scores whose true value is known
    wrong: Callable[[], str | None] | None = None

    def __post_init__(self) -> None:
        self.run, self.source = str(self.space.run("memory")), str(self.space.parts)
        (self.folder / "out").mkdir(parents=True)
        self.out = str(self.beside("scores"))

    @property
    def arguments(self) -> list[str]:
        given = ["score", self.run, "--input", self.source, "--output", self.out]
        return [*given, "--quiet", *self.options]

    def beside(self, name: str) -> Path:
        return self.folder / "out" / name

    def anywhere(self) -> None:
        """Draws where scores go: one file or a folder, with scores of before or without."""
        kind = self.draw.choice(["folder", "folder", "file", "there", "there", "file there"])
        if kind.startswith("file"):
            self.out = str(self.beside("scores.parquet"))
        if kind == "file there":
            shutil.copyfile(self.space.one_file, self.out)
            self.options += ["--mode", "overwrite"]
        if kind == "there":
            self.with_scores("memory")
            self.options += ["--mode", self.draw.choice(["overwrite", "overwrite-partitions"])]
        elif kind == "folder" and self.draw.random() < 0.3:
            self.options += ["--rows-per-file", "64"]

    def with_scores(self, how: str) -> Path:
        return Path(shutil.copytree(self.space.scores(how), self.out))

    def draft(self, kind: str) -> Draft:
        rows = small_log(260, seed=self.draw.randrange(5))
        tables = cut(rows, 1 if self.draw.random() < 0.3 else 3)
        return Draft(self.draw, "score", kind, tables, None, self.folder / "in")


# Rows: bytes, columns, types, and where files lie


def broken_data(family: str, case: ScoreCase) -> None:
    case.anywhere()
    draft = case.draft(case.draw.choice(("csv", "csv", "parquet", "parquet", "csv.gz")))
    case.name, expect = break_data(draft, family)
    case.refused, case.source = expect.outcome == "error", draft.data


def broken_types(case: ScoreCase) -> None:
    """A column of any type of Arrow, in one file of three or in all, read or kept."""
    case.anywhere()
    draft, kind = case.draft("parquet"), case.draw.choice([*ARROW_TYPES])
    columns = ["user", "item", "history", "price", *draft.tables[0].column_names]
    column, parts = case.draw.choice(columns), draft.some_parts()
    for part in parts:
        numbers = [case.draw.choice([0, 1, 7, 30]) for _ in range(draft.tables[part].num_rows)]
        draft.replace(part, column, column_of(kind, numbers))
    if case.draw.random() < 0.5:
        case.options += ["--keep", column]
    case.source = _arrow_files(draft)
    case.name = f"{column} is {kind} in {len(parts)} of {len(draft.tables)} files"


_HARMS: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda content, at: content[:at],
    "empty": lambda content, at: b"",
    "flipped": flip,
    "zeroed": lambda content, at: content[:at] + bytes(64) + content[at + 64 :],
    "garbage behind": lambda content, at: content + b"\xff\xfe" * at,
    "begins later": lambda content, at: content[at:],
    "is Parquet": lambda content, at: b"PAR1" + content[:at] + b"PAR1",
}
_JSON_HARMS = {
    "a list": b"[1, 2]", "a number": b"7", "null": b"null", "no end": b'{"user": 1, "item": ',
    "another type": b'{"user": {"a": [1]}, "item": [["x"]], "price": "cheap", "history": "x"}',
    "no column": b"{}", "twice": b'{"user": 1, "user": 2, "item": "a", "item": "b"}',
    "no UTF-8": b'{"user": 1, "item": "\xff\xfe", "price": 1.0, "history": [1]}',
    "a huge number": b'{"user": 1e400, "item": 99999999999999999999999, "price": 1e999}',
    "deep": b'{"user": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "NaN": b'{"user": NaN, "item": Infinity, "price": -Infinity, "history": NaN}',
}  # fmt: skip


def broken_other_formats(case: ScoreCase) -> None:
    """Arrow files and streams, and lines of JSON: cut, flipped, or of something else."""
    case.anywhere()
    draft = case.draft("parquet")
    kind = case.draw.choice(["arrow", "stream", "jsonl", "jsonl"])
    path, rows = case.folder / "in" / f"log.{kind}", draft.tables[0]
    path = path.with_suffix(".arrow") if kind == "stream" else path
    path.parent.mkdir()
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), "utf-8")
    else:
        write_arrow(rows, path, pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)
    how = case.draw.choice([*_HARMS, *(_JSON_HARMS if kind == "jsonl" else ())])
    content = path.read_bytes()
    if how in _HARMS:
        path.write_bytes(_HARMS[how](content, case.draw.randrange(1, len(content))))
    else:
        lines = content.splitlines()
        lines[case.draw.randrange(len(lines))] = _JSON_HARMS[how]
        path.write_bytes(b"\n".join(lines) + b"\n")
    case.source, case.name = str(path), f"{kind} {how}"


def _arrow_files(draft: Draft) -> str:
    """Parquet, or Arrow where Parquet has no such type; several in one folder."""
    draft.folder.mkdir(parents=True, exist_ok=True)
    try:
        for n, table in enumerate(draft.tables):
            pq.write_table(table, draft.folder / f"part-{n}.parquet", row_group_size=50)
    except pa.ArrowException:
        for path in draft.folder.iterdir():
            path.unlink()
        for n, table in enumerate(draft.tables):
            write_arrow(table, draft.folder / f"part-{n}.arrow")
    return str(draft.folder)


# A run whose files are cut, changed, gone or of something else

_TEXTS = (b"", b"{}", b"[]", b"null", b"\xff\xfe\x00", b"a: [1, 2", b"mine: true\n", b"{" * 4000)


def broken_run(case: ScoreCase) -> None:
    """One file of a copy is damaged, or the folder is no run at all."""
    case.anywhere()
    run = case.space.copy_run(case.folder / "run")
    case.run = str(run)
    how = case.draw.choice(["damaged", "tampered", "tampered", "config", "text", "no run"])
    if how == "damaged":
        damage_run(run, case.draw)
        case.name = "run: a file is damaged"
    elif how == "tampered":
        case.name = f"run: {tamper(case.draw.choice(json_files(run)), case.draw)}"
    elif how == "config":
        case.name = f"run: config.yaml, {_edited(run / 'config.yaml', case)}"
    elif how == "text":
        path, text = case.draw.choice(files_of_run(run)), case.draw.choice(_TEXTS)
        path.write_bytes(text)
        case.name = f"run: {path.name} is {text[:12]!r}"
    else:
        case.name = f"run: {_no_run(run, case)}"


def _edited(path: Path, case: ScoreCase) -> str:
    """A line of it is gone, or says something else."""
    lines = path.read_text("utf-8").splitlines()
    at = case.draw.randrange(len(lines))
    how = case.draw.choice(["gone", "null", "word", "list", "indent", "twice"])
    key = lines[at].partition(":")[0]
    new = {
        "gone": [], "null": [f"{key}: null"], "word": [f"{key}: word"], "list": [f"{key}: [1, x]"],
        "indent": ["   " + lines[at]], "twice": [lines[at], lines[at]],
    }[how]  # fmt: skip
    path.write_text("\n".join([*lines[:at], *new, *lines[at + 1 :]]) + "\n", "utf-8")
    return f"{key.strip()!r}: {how}"


def _no_run(run: Path, case: ScoreCase) -> str:
    how = case.draw.choice(["absent", "a file", "empty", "a link to itself", "no vocabulary"])
    case.refused = True
    if how == "absent":
        case.run = str(run) + "-nowhere"
    elif how == "no vocabulary":
        shutil.rmtree(run / "vocabulary")
    else:
        shutil.rmtree(run)
        if how == "a file":
            run.write_text("no run")
        elif how == "empty":
            run.mkdir()
        else:
            run.symlink_to(run)
    return how


# Places for scores that are taken, cannot be written, or hold scores that are damaged

_MODES = ([], ["--resume"], ["--mode", "overwrite"], ["--mode", "overwrite-partitions"],
          ["--resume", "--mode", "overwrite"])  # fmt: skip
_EXPECT = ([], [], ["--expect", "usual"], ["--expect", "rows > 1e9"], ["--expect", "repeated < 2"])


def broken_output(case: ScoreCase) -> None:
    """One of them, with any mode, and sometimes with expectations that fail."""
    fault = case.draw.choice(OUTPUT_FAULTS)
    case.name = f"output: {fault(case)}"
    case.options += [*SCORED, *case.draw.choice(_MODES), *case.draw.choice(_EXPECT)]
    if ".parquet" in Path(case.out).name:
        case.options = [word for word in case.options if word not in ("--rows-per-file", "64")]
    case.name += f" {' '.join(case.options[4:])}"


def linked_partition(case: ScoreCase) -> None:
    """Scores of two days, one of which lies on another disk, take the place of those before."""
    rows, days = small_log(40, seed=case.draw.randrange(5)), case.folder / "in"
    for day in (1, 2):
        (days / f"day={day}").mkdir(parents=True)
        pq.write_table(rows.slice(20 * (day - 1), 20), days / f"day={day}" / "part.parquet")
    case.source, out = str(days), Path(case.out)
    score(case.space.run("stream"), days, out)
    name, real = case.draw.choice(["day=1", "day=2", "_staging", "_rejected"]), case.beside("disk")
    shutil.move(out / name, real) if (out / name).exists() else real.mkdir()
    (out / name).symlink_to(real)
    mode, gone = case.draw.choice(["overwrite", "overwrite-partitions"]), case.draw.random() < 0.5
    case.options, case.name = ["--mode", mode], f"output: {name} is a link, {mode}"
    if gone:
        shutil.rmtree(days / "day=1")
    new, old = case.space.run("memory"), case.space.run("stream")
    by_day = {2: new} if gone and mode == "overwrite" else {1: old if gone else new, 2: new}
    case.wrong = lambda: _wrong_days(case, rows, by_day)


def _wrong_days(case: ScoreCase, rows: pa.Table, by_day: dict[int, Path]) -> str | None:
    """What is wrong with the scores of days, each of which a run has scored."""
    found = sorted(Path(case.out).glob("day=*/*.parquet"))
    if [path.parent.name for path in found] != [f"day={day}" for day in by_day]:
        return f"scores are {', '.join(str(path.relative_to(case.out)) for path in found)}"
    for path, (day, run) in zip(found, by_day.items(), strict=True):
        plain, out = (case.folder / f"day-{day}{end}.parquet" for end in ("", "-scores"))
        pq.write_table(rows.slice(20 * (day - 1), 20), plain)
        score(run, plain, out)
        if not pq.ParquetFile(path).read().equals(pq.read_table(out)):
            return f"other scores of day {day} than its rows have"
    return None


def _of_somebody_else(case: ScoreCase) -> str:
    if case.draw.random() < 0.5:
        case.with_scores("memory")
    name = case.draw.choice([
        "notes.txt", ".hidden", "00000-x.parquet", "_manifest.json", "sub/notes.txt", "_SUCCESS",
        "day=1/notes.txt", "_staging/notes.txt", "_rejected/notes.txt", "_rejected/sub/x.parquet",
        "_staging/00000-x.parquet.json", "_summary.json", ".notes.tmp", "day=1/00000-x.parquet",
        "_rejected/_summary.json", "00000-part-0-00000.parquet", "_staging/.lock/x",
    ])  # fmt: skip
    _mine(Path(case.out) / name)
    return f"{name} of somebody else"


def _mine(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")


def _another_kind(case: ScoreCase) -> str:
    """A file where a folder should be, and the other way round."""
    how = case.draw.choice(["a file", "a folder", "_staging", "_rejected", "_SUCCESS", "_manifest"])
    out = Path(case.out)
    if how == "a file":
        _mine(out)
    elif how == "a folder":
        case.out = str(case.beside("scores.parquet"))
        _mine(Path(case.out) / "x")
    elif how in ("_staging", "_rejected"):
        case.with_scores("memory")
        _mine(out / how)
    else:
        case.with_scores("memory")
        name = {"_SUCCESS": "_SUCCESS", "_manifest": "_manifest.json"}[how]
        (out / name).unlink()
        _mine(out / name / "x")
    return f"{how} is of another kind"


def _no_place(case: ScoreCase) -> str:
    case.refused = True
    _mine(case.beside("file"))
    case.out = case.draw.choice([
        "/dev/null/out", "/proc/mmoe/out", "/proc/mmoe/out.parquet",
        str(case.beside("file") / "out"),
        str(case.beside("file") / "out.parquet"), str(case.beside("n" * 300)), "nope://bucket/out",
        str(case.beside("n" * 300 + ".parquet")), str(case.beside("scores.csv")),
        "nope://b/x.parquet",
    ])  # fmt: skip
    return f"no place, {case.out[:20]}"


def _read_only(case: ScoreCase) -> str:
    case.with_scores("memory").chmod(0o555)  # nothing to the superuser
    return "read-only"


def _links(case: ScoreCase) -> str:
    how = case.draw.choice(["nowhere", "itself", "scores", "the input", "the run"])
    out = Path(case.out)
    target = {
        "nowhere": case.beside("gone"), "itself": out, "scores": case.beside("real"),
        "the input": case.folder / "in", "the run": case.folder / "run" / "vocabulary",
    }[how]  # fmt: skip
    if how == "scores":
        shutil.copytree(case.space.scores("memory"), target)
    elif how == "the input":
        case.source = str(shutil.copytree(case.space.parts, target))
    elif how == "the run":
        case.run = str(case.space.copy_run(case.folder / "run"))
    out.symlink_to(target)
    return f"a link to {how}"


def _odd_name(case: ScoreCase) -> str:
    name = case.draw.choice([
        "a\nb", "a*b", "a[b]", "day=1", " ", "-x", "ä\u202e", "a'b\"c", "a%20b", "\udcff",
        "_staging", ".", "..", "_x", "x.parquet/",
    ])  # fmt: skip
    case.out = f"{case.beside('odd')}/{name}"
    case.beside("odd").mkdir()
    return f"called {name!r}"


def _another_model(case: ScoreCase) -> str:
    case.with_scores("stream")
    return "scores of another model"


def _damaged(case: ScoreCase) -> str:
    """Of scores that were published: the manifest, the summary, a part."""
    out = case.with_scores("memory")
    part = case.draw.choice(sorted(p.name for p in out.glob("*.parquet")))
    name = case.draw.choice(["_manifest.json", "_manifest.json", "_summary.json", part])
    return f"damaged {_harm(out / name, case.draw)}"


def _damaged_begun(case: ScoreCase) -> str:
    staging = _put(case, "_staging", keeps=case.draw.random() < 0.5)
    return f"begun, damaged {_harm(case.draw.choice(sorted(staging.iterdir())), case.draw)}"


def _damaged_rejected(case: ScoreCase) -> str:
    aside = _put(case, "_rejected", keeps=case.draw.random() < 0.5)
    (aside / "_summary.json").write_text("{}")
    return f"rejected, damaged {_harm(case.draw.choice(sorted(aside.iterdir())), case.draw)}"


def _put(case: ScoreCase, where: str, *, keeps: bool) -> Path:
    """Parts and records of scores, as they lie while they wait; some of them."""
    out = case.with_scores("memory")
    manifest = json.loads((out / "_manifest.json").read_text())
    folder = out / where
    folder.mkdir()
    for record in manifest["parts"]:
        if case.draw.random() < 0.8:
            shutil.copyfile(out / record["name"], folder / record["name"])
            (folder / f"{record['name']}.json").write_text(json.dumps(record))
    (folder / "00000-part-0-00000.parquet.json").write_text(json.dumps(manifest["parts"][0]))
    for path in [] if keeps else [*out.iterdir()]:
        if path.is_file():
            path.unlink()
    return folder


def _harm(path: Path, draw: random.Random) -> str:
    """One file is cut, flipped, emptied, gone, of something else, or one key of it is."""
    content = path.read_bytes()
    hows = ["cut", "flip", "empty", "gone", "words", "folder", "list"]
    how = draw.choice([*hows, *["tampered"] * (8 if path.suffix == ".json" else 0)])
    if how == "tampered":
        return tamper(path, draw)
    at = draw.randrange(1, max(len(content), 2))
    path.unlink()
    if how == "folder":
        _mine(path / "x")
    elif how != "gone":
        texts = {"cut": content[:at], "empty": b"", "words": b'{"not": "it"}', "list": b"[" * 3000}
        path.write_bytes(flip(content or b"A", min(at, max(len(content) - 1, 0)))
                         if how == "flip" else texts[how])  # fmt: skip
    return f"{path.name}: {how}"


OUTPUT_FAULTS: tuple[Callable[[ScoreCase], str], ...] = (
    _of_somebody_else, _of_somebody_else, _another_kind, _another_kind, _no_place, _read_only,
    _links, _odd_name, _another_model, _damaged, _damaged, _damaged_begun, _damaged_begun,
    _damaged_rejected,
)  # fmt: skip


# How often each is drawn
FAMILIES: dict[Callable[[ScoreCase], None], int] = {
    partial(broken_data, "bytes"): 18, partial(broken_data, "table"): 14,
    partial(broken_data, "layout"): 6, broken_types: 10, broken_other_formats: 9, broken_run: 14,
    broken_output: 22, linked_partition: 5,
}  # fmt: skip


def draw_case(seed: int, number: int, space: Scored, folder: Path) -> ScoreCase:
    draw = random.Random(f"score inputs {seed} {number}")
    case = ScoreCase(draw, space, folder)
    draw.choices([*FAMILIES], [*FAMILIES.values()])[0](case)
    return case


def judge_scorings(
    folder: Path, numbers: Iterable[int], seed: int, say: Say, jobs: int = 2
) -> list[Verdict]:
    (folder / "elsewhere").mkdir(parents=True)

    def one(number: int) -> Verdict:
        os.chdir(folder / "elsewhere")
        where = folder / f"case-{number}"
        verdict = judge(number, draw_case(seed, number, Scored(folder / "space"), where))
        shutil.rmtree(where, ignore_errors=True)
        return verdict

    prepare(lambda: Scored(folder / "space"))
    return judge_in_forks(one, numbers, say, again=f"score --seed {seed}", jobs=jobs, seconds=120.0)


# How a case ended, and what it left behind

# An option's value that is no number or no such word, or an option that is not there
_USAGE = re.compile(r"Usage: [\w. -]*mmoe score .*─ Error ─", re.S)
# Names that are ours in a folder of scores, whoever has written there
_OURS = re.compile(
    r"_SUCCESS|_manifest\.json|_summary\.json|_(staging|rejected)/(_summary\.json|\.lock|"
    r"\d{5}-.*\.parquet(\.json)?)|\d{5}-part-\d-\d{5}\.parquet"
)
_MINE = hashlib.sha256(b"mine").hexdigest()


def judge(number: int, case: ScoreCase) -> Verdict:
    """Runs the command in this process: `harmless`, `refused`, `rejected`, or what is wrong."""
    before = _files(case.folder)
    ended = run_in_process(case.arguments, SECONDS)
    verdict, why = _verdict(case, ended, before)
    said, late = ended.stderr[-2_000:].strip(), ended.code == -2
    return Verdict(number, case.name[:300], "score", verdict, why[:500], said, late)


def _verdict(case: ScoreCase, ended: Ended, before: dict[str, str]) -> tuple[str, str]:
    crash = crashed(ended)
    if crash is not None:
        return "traceback", crash
    left = _left(case, before, ended.code)
    if left is not None:
        return "half-written", left
    if ended.code == 0:
        if case.refused:
            return "unclear", "it succeeded, but should not have"
        incomplete = _incomplete(Path(case.out))
        if incomplete:
            return "half-written", incomplete
        wrong = case.wrong() if case.wrong is not None else None
        return ("wrong", wrong) if wrong else ("harmless", "")
    usage = ended.code == 2 and _USAGE.match(ended.stderr.strip())
    why = None if usage else unclear(ended, (2, 3))
    if why is not None:
        return "unclear", why
    return ("rejected" if ended.code == 3 else "refused"), ""


def _left(case: ScoreCase, before: dict[str, str], code: int) -> str | None:
    """What has come, gone or changed and may not."""
    after = _files(case.folder)
    out = os.path.relpath(case.out, case.folder)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if is_temporary(name.rpartition("/")[2]) and name in after:
            return f"{name} is left behind"
        inside = os.path.relpath(name, out) if name.startswith(out) else ""
        beside = f"{out.rpartition('/')[0]}/_rejected/"  # of a single file
        aside = name.startswith((f"{out}/_staging/", f"{out}/_rejected/", beside))
        theirs = before.get(name) == _MINE and not _OURS.fullmatch(inside)
        if theirs or not (aside or (code == 0 and _written(case, name, out))):
            how = "has come" if name not in before else "changed" if name in after else "is gone"
            return f"exit code {code}, but {name} {how}"
    return None


def _written(case: ScoreCase, name: str, out: str) -> bool:
    """Whether a scoring that succeeds may write there; links lead to other places."""
    if name.startswith(out):
        return True
    places = [case.out, *(path for path in Path(case.out).glob("*") if path.is_symlink())]
    folder = os.path.realpath(case.folder)
    return any(name.startswith(os.path.relpath(os.path.realpath(p), folder)) for p in places)


def _incomplete(out: Path) -> str | None:
    if out.is_file():
        pq.read_table(out)
        return None
    if not (out / "_SUCCESS").exists():
        return "it succeeded without a _SUCCESS"
    manifest = json.loads((out / "_manifest.json").read_text())
    for part in manifest["parts"]:
        content = (out / part["name"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != part["sha256"]:
            return f"it succeeded, and {part['name']} is other than the manifest says"
    left = [p.name for p in (out / "_staging").glob("*") if p.name != ".lock"]
    return f"it succeeded, and left _staging/{left[0]}" if left else None


def _files(folder: Path) -> dict[str, str]:
    found = {}
    for above, folders, files in os.walk(folder):
        paths = [*(Path(above, name) for name in files)]
        paths += [path for name in folders if (path := Path(above, name)).is_symlink()]
        for path in paths:
            name = os.path.relpath(path, folder)
            is_link = path.is_symlink()
            found[name] = (
                str(path.readlink()) if is_link else hashlib.sha256(path.read_bytes()).hexdigest()
            )
    return found

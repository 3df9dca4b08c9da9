"""Places for scores that are taken, cannot be written, or hold scores that are damaged."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.inputs.json_faults import tamper
from benchmarks.faults.score_inputs.case import SCORED, ScoreCase, score
from benchmarks.faults.small_log import small_log

_MODES = ([], ["--resume"], ["--mode", "overwrite"], ["--mode", "overwrite-partitions"],
          ["--resume", "--mode", "overwrite"])  # fmt: skip
_EXPECT = ([], [], ["--expect", "usual"], ["--expect", "rows > 1e9"], ["--expect", "repeated < 2"])


def broken_output(case: ScoreCase) -> None:
    """One of them, with any mode, and sometimes with expectations that fail."""
    fault = case.draw.choice(_FAULTS)
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
    name, real = case.draw.choice(["day=1", "day=2", "_staging", "_rejected"]), case.place("disk")
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
    out = Path(case.out)
    if case.draw.random() < 0.5:
        case.with_scores("memory")
    name = case.draw.choice([
        "notes.txt", ".hidden", "00000-x.parquet", "_manifest.json", "sub/notes.txt", "_SUCCESS",
        "day=1/notes.txt", "_staging/notes.txt", "_rejected/notes.txt", "_rejected/sub/x.parquet",
        "_staging/00000-x.parquet.json", "_summary.json", ".notes.tmp", "day=1/00000-x.parquet",
        "_rejected/_summary.json", "00000-part-0-00000.parquet", "_staging/.lock/x",
    ])  # fmt: skip
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    return f"{name} of somebody else"


def _another_kind(case: ScoreCase) -> str:
    """A file where a folder should be, and the other way round."""
    how = case.draw.choice(["a file", "a folder", "_staging", "_rejected", "_SUCCESS", "_manifest"])
    out = Path(case.out)
    if how == "a file":
        out.write_text("mine")
    elif how == "a folder":
        case.out = str(case.place("scores.parquet"))
        Path(case.out).mkdir()
        (Path(case.out) / "x").write_text("mine")
    elif how in ("_staging", "_rejected"):
        case.with_scores("memory")
        (out / how).write_text("mine")
    else:
        case.with_scores("memory")
        name = {"_SUCCESS": "_SUCCESS", "_manifest": "_manifest.json"}[how]
        (out / name).unlink()
        (out / name).mkdir()
        (out / name / "x").write_text("mine")
    return f"{how} is of another kind"


def _no_place(case: ScoreCase) -> str:
    case.refused = True
    (case.place("file")).write_text("mine")
    case.out = case.draw.choice([
        "/dev/null/out", "/proc/mmoe/out", "/proc/mmoe/out.parquet",
        str(case.place("file") / "out"),
        str(case.place("file") / "out.parquet"), str(case.place("n" * 300)), "nope://bucket/out",
        str(case.place("n" * 300 + ".parquet")), str(case.place("scores.csv")), "nope://b/x.parquet",
    ])  # fmt: skip
    return f"no place, {case.out[:20]}"


def _read_only(case: ScoreCase) -> str:
    case.with_scores("memory")
    Path(case.out).chmod(0o555)  # nothing to the superuser
    return "read-only"


def _links(case: ScoreCase) -> str:
    how = case.draw.choice(["nowhere", "itself", "scores", "the input", "the run"])
    out = Path(case.out)
    target = {
        "nowhere": case.place("gone"), "itself": out, "scores": case.place("real"),
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
    case.out = f"{case.place('odd')}/{name}"
    case.place("odd").mkdir()
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
    """Of scores that were begun: a record, or a part."""
    staging = _put(case, "_staging", keeps=case.draw.random() < 0.5)
    return f"begun, damaged {_harm(case.draw.choice(sorted(staging.iterdir())), case.draw)}"


def _damaged_rejected(case: ScoreCase) -> str:
    """Of scores that were put aside."""
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
    if not keeps:
        for path in out.iterdir():
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
        path.mkdir()
        (path / "x").write_text("mine")
    elif how != "gone":
        path.write_bytes({
            "cut": content[:at], "empty": b"", "words": b'{"not": "it"}', "list": b"[" * 3000,
            "flip": content[:at] + bytes([content[at : at + 1][0] ^ 0x41 if content[at:] else 0])
            + content[at + 1 :],
        }[how])  # fmt: skip
    return f"{path.name}: {how}"


_FAULTS: tuple[Callable[[ScoreCase], str], ...] = (
    _of_somebody_else, _of_somebody_else, _another_kind, _another_kind, _no_place, _read_only,
    _links, _odd_name, _another_model, _damaged, _damaged, _damaged_begun, _damaged_begun,
    _damaged_rejected,
)  # fmt: skip

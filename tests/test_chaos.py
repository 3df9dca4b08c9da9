"""`tests.chaos` in small: what it must notice, it does."""

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos import __main__ as program
from tests.chaos import cases, growth, score_cases
from tests.chaos.draft import Case, Scored, Workspace, error, right
from tests.chaos.judge import first_difference, judge, leftovers
from tests.chaos.nights import FAULTS, Shop, Upstream
from tests.chaos.processes import run_in_process
from tests.chaos.score_cases import OUTPUT_FAULTS, ScoreCase
from tests.chaos.score_kills import Watcher, contents
from tests.chaos.score_kills import first_difference as first_other_file

WHOLE = {"0.parquet": b"rows", "day=1/1.parquet": b"more", "_manifest.json": b"{}", "_SUCCESS": b""}


@pytest.fixture(name="space", scope="module")
def _space(tmp_path_factory):
    return Scored(tmp_path_factory.mktemp("chaos") / "space")


@pytest.fixture(name="case")
def _case(space, tmp_path):
    return ScoreCase(random.Random(1), space, tmp_path / "case")


@pytest.mark.slow
def test_kills_and_inputs(capsys):
    code = program.main(["train", "--kills", "2", "--inputs", "30", "--jobs", "1"])
    out, err = capsys.readouterr()
    counts = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert counts["kills"] == counts["resumed"] == counts["bit_identical"] == 2
    assert counts["inputs"] == counts["clear_errors"] + counts["right_answers"] == 30
    assert counts["tracebacks"] == counts["silently_wrong"] == 0


def test_growth_is_judged_and_printed(monkeypatch, capsys):
    seconds = iter([9.0, 1.0, 4.0, 1.0, 4.0, 2.0, 5.0, 2.0, 7.0])  # the first one warms up
    monkeypatch.setattr(growth, "_train", lambda *_: next(seconds))
    assert program.main(["growth", "--groups", "2", "--ids", "20"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert any("streaming 8 row groups: 4.0 times what 2 take" in line for line in out)
    assert any("20 distinct ids (text): 3.5 times what hashing" in line for line in out)
    expected = {"row_groups_2000_over_500": 4.0, "distinct_ids_over_hashed": 3.5}
    assert json.loads(out[-1]) == expected


@pytest.mark.parametrize("module", [cases, score_cases])
def test_a_number_is_always_the_same_case(space, tmp_path, module):
    for number in range(30):
        drawn = []
        for again in range(2):
            folder = tmp_path / f"{number}-{again}"
            case = module.draw_case(7, number, space, folder)
            words = [argument.replace(str(folder), "") for argument in case.arguments]
            drawn.append((getattr(case, "fault", "").replace(str(folder), ""), words))
        assert drawn[0] == drawn[1]


def _score(space: Workspace, folder, table: pa.Table, expect) -> Case:
    data, out = folder / "x.parquet", folder / "out" / "scores.parquet"
    out.parent.mkdir()
    pq.write_table(table, data)
    arguments = ["score", str(space.run("memory")), "--input", str(data), "--output", str(out)]
    return Case("by hand", "score", expect, [*arguments, "--quiet"], out, words=("x.parquet",))


@pytest.mark.parametrize(
    ("change", "expect", "verdict", "why"),
    [
        ("none", error("price"), "failure", "should not have"),
        ("none", right("clean"), "right answer", ""),
        ("other prices", right("clean"), "wrong answer", "scores differ"),
        ("words", error("price"), "clear error", ""),
        ("words", error("item"), "failure", "names none of 'item'"),
        ("words", right("clean"), "failure", "the rows can be read"),
    ],
)
def test_verdicts(space, tmp_path, change, expect, verdict, why):
    table = pq.read_table(space.log)
    values = {"other prices": [2.0], "words": ["cheap"]}.get(change)
    if values is not None:
        index = table.column_names.index("price")
        table = table.set_column(index, "price", pa.array(values * table.num_rows))
    found = judge(0, _score(space, tmp_path, table, expect), space, tmp_path)
    assert (found.verdict, why in found.why) == (verdict, True), found


def test_tracebacks_hangs_and_halves_are_seen(space, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a fault of ours")

    def hangs(*_, **__):
        while True:
            pass

    def leaves_half(run, source, output, **_):
        Path(output).write_bytes(b"half")
        raise ValueError("x.parquet: price")

    case = _score(space, tmp_path, pq.read_table(space.log), error("price"))
    monkeypatch.setattr("mmoe.score.score_files", fails)
    found = judge(0, case, space, tmp_path)
    assert (found.verdict, found.why) == ("traceback", "RuntimeError: a fault of ours")
    monkeypatch.setattr("mmoe.score.score_files", hangs)
    assert run_in_process(case.arguments, 0.2).code == -2
    monkeypatch.setattr("mmoe.score.score_files", leaves_half)
    found = judge(0, case, space, tmp_path)
    assert (found.verdict, found.why) == ("failure", "left behind: scores.parquet")


def test_runs_that_differ_are_told_apart(space, tmp_path):
    one, two = space.run("memory"), space.copy_run(tmp_path / "run")
    history = json.loads((two / "history.json").read_text())
    history["epochs"][0]["seconds"] += 1
    (two / "history.json").write_text(json.dumps(history))
    assert first_difference(one, two) is None
    [weights] = (two / "checkpoint").rglob("model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "model.safetensors" in str(first_difference(one, two))
    (two / "checkpoint" / ".index.json.1.tmp").touch()
    assert leftovers(two) == ["checkpoint/.index.json.1.tmp"]


def _spoilt(monkeypatch, case, spoil):
    """How a case is judged whose command does something else, too."""

    def run_and_spoil(arguments, seconds):
        ended = run_in_process(arguments, seconds)
        spoil()
        return ended

    monkeypatch.setattr(score_cases, "run_in_process", run_and_spoil)
    return score_cases.judge(0, case)


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ([], "harmless"),
        (["--keep", "nothing"], "refused"),
        (["--rows-per-file", "many"], "refused"),
        (["--expect", "rows > 1e9"], "rejected"),
    ],
)
def test_how_a_scoring_ended(case, options, verdict):
    case.options = options
    assert score_cases.judge(0, case).verdict == verdict


def test_what_had_to_be_refused_is_not_harmless(case):
    case.refused = True
    assert score_cases.judge(0, case).verdict == "unclear"


def test_what_is_half_written_is_noticed(case, monkeypatch):
    case.options = ["--keep", "nothing"]
    out = case.with_scores("memory")
    verdict = _spoilt(monkeypatch, case, (out / "_SUCCESS").unlink)
    found = (verdict.verdict, verdict.why)
    assert found == ("half-written", "exit code 2, but out/scores/_SUCCESS is gone")


def test_a_damaged_part_of_a_success_is_noticed(case, monkeypatch):
    part = case.beside("scores") / "00000-part-0.parquet"
    verdict = _spoilt(monkeypatch, case, lambda: part.write_bytes(b"else"))
    assert verdict.verdict == "half-written"
    assert "is other than the manifest says" in verdict.why


def test_what_is_of_somebody_else_has_to_stay(case, monkeypatch):
    path = case.with_scores("memory") / "_rejected" / "notes.txt"
    path.parent.mkdir()
    path.write_text("mine")
    case.options = ["--mode", "overwrite"]
    verdict = _spoilt(monkeypatch, case, lambda: shutil.rmtree(path.parent))
    assert verdict.why.endswith("_rejected/notes.txt is gone")


def test_every_fault_of_an_output_can_be_made(space, tmp_path):
    for number, fault in enumerate(dict.fromkeys(OUTPUT_FAULTS)):
        assert fault(ScoreCase(random.Random(number), space, tmp_path / str(number)))


def test_every_fault_upstream_changes_the_night():
    shop = Shop(1)
    for fault in FAULTS:
        what, rows = fault(Upstream(shop, 15, random.Random(2)))
        assert what and not rows.equals(shop.day(15))
    assert len(FAULTS) == 12


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([{}, {"0.parquet": b"rows", "_staging/x.parquet": b"ha"}, WHOLE], []),
        ([{"0.parquet": b"ro"}, WHOLE], ["0.parquet: 2 bytes that are not the whole file"]),
        ([{"2.parquet": b"rows"}], ["2.parquet: 4 bytes that are not the whole file"]),
        (
            [{"0.parquet": b"rows", "_SUCCESS": b""}],
            ["_SUCCESS without _manifest.json, day=1/1.parquet"],
        ),
    ],
)
def test_what_is_published_too_early_is_noticed(tmp_path, steps, wrong):
    watcher = Watcher(str(tmp_path), WHOLE)
    for files in steps:
        write(tmp_path, files)
        watcher.look()
    assert watcher.wrong == wrong


def test_the_first_other_file_is_named(tmp_path):
    write(tmp_path, WHOLE)
    assert first_other_file(WHOLE, contents(tmp_path)) is None
    write(tmp_path, {"0.parquet": b"row", "day=1/2.parquet": b""})
    assert first_other_file(WHOLE, contents(tmp_path)) == "0.parquet has other bytes"
    write(tmp_path, {"0.parquet": b"rows"})
    assert first_other_file(WHOLE, contents(tmp_path)) == "day=1/2.parquet is left behind"
    (tmp_path / "0.parquet").unlink()
    assert first_other_file(WHOLE, contents(tmp_path)) == "0.parquet is missing"

"""`benchmarks.faults` in small: that it kills, breaks and judges what it says."""

import dataclasses
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.faults import growth, memory_limit, train_program
from benchmarks.faults.inputs import as_they_come, made_logs
from benchmarks.faults.inputs.cases import Case, draw_case
from benchmarks.faults.inputs.draft import complains, error, right
from benchmarks.faults.inputs.in_process import run_in_process
from benchmarks.faults.inputs.judge import judge
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.same_end import first_difference, leftovers

KEYS = ["kills", "resumed", "bit_identical", "inputs", "clear_errors", "right_answers",
        "tracebacks", "silently_wrong"]  # fmt: skip


@pytest.fixture(name="space", scope="module")
def _space(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("faults") / "space")


@pytest.mark.slow
def test_kills_and_inputs(capsys):
    arguments = ["--kills", "2", "--inputs", "30", "--jobs", "1", "--real", "1"]
    code = train_program.main([*arguments, "--no-memory-limit", "--no-growth"])
    out, err = capsys.readouterr()
    counts = json.loads(out.splitlines()[-1])
    assert list(counts) == KEYS
    assert code == 0, err
    assert counts["kills"] == counts["resumed"] == counts["bit_identical"] == 2
    assert counts["inputs"] == counts["clear_errors"] + counts["right_answers"] == 30
    assert counts["tracebacks"] == 0


@pytest.mark.slow
def test_a_limit_of_memory(tmp_path):
    runs = memory_limit.limited_runs(tmp_path, lambda _: None)
    assert runs.passed, runs
    assert runs.decoded > 2 * memory_limit.MORE_BYTES


def test_growth_is_judged_and_printed(monkeypatch, capsys):
    seconds = iter([9.0, 1.0, 4.0, 1.0, 4.0, 2.0, 5.0, 2.0, 7.0])  # the first one warms up
    monkeypatch.setattr(growth, "_train", lambda *_: next(seconds))
    assert growth.main(["--groups", "2", "--ids", "20"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert any(
        line.strip().startswith("streaming 8 row groups: 4.0 times what 2 take") for line in out
    )
    assert any(
        line.strip().startswith("20 distinct ids (text): 3.5 times what hashing") for line in out
    )
    expected = {"row_groups_2000_over_500": 4.0, "distinct_ids_over_hashed": 3.5}
    assert json.loads(out[-1]) == expected


def test_a_number_is_always_the_same_case(space, tmp_path):
    for number in range(40):
        drawn = []
        for again in range(2):
            folder = tmp_path / f"{number}-{again}"
            folder.mkdir()
            case = draw_case(7, number, space, folder)
            words = [argument.replace(str(folder), "") for argument in case.arguments]
            files = {p.name: p.read_bytes() for p in folder.rglob("*.csv") if p.is_file()}
            texts = {name: text for name, text in files.items() if name != "config.yaml"}
            drawn.append((case.fault, case.expect.outcome, words, texts))
        assert drawn[0] == drawn[1]


def _score(space: Workspace, folder, table: pa.Table, expect) -> Case:
    data, out = folder / "x.parquet", folder / "out" / "scores.parquet"
    out.parent.mkdir()
    pq.write_table(table, data)
    arguments = ["score", str(space.run("memory")), "--input", str(data), "--output", str(out)]
    return Case(0, "by hand", "score", expect, [*arguments, "--quiet"], out, words=("x.parquet",))


@pytest.mark.parametrize(
    ("change", "expect", "verdict", "why"),
    [
        ("none", right("none"), "right answer", ""),
        ("none", error("price"), "failure", "should not have"),
        ("none", complains("other rows"), "failure", "did not say 'other rows'"),
        ("none", right("clean"), "right answer", ""),
        ("other prices", right("clean"), "wrong answer", "scores differ"),
        ("words", error("price"), "clear error", ""),
        ("words", error("item"), "failure", "names none of 'item'"),
        ("words", right("clean"), "failure", "the rows can be read"),
    ],
)
def test_verdicts(space, tmp_path, change, expect, verdict, why):
    table = pq.read_table(space.log)
    place = table.column_names.index("price")
    if change == "other prices":
        table = table.set_column(place, "price", pa.array([2.0] * table.num_rows))
    elif change == "words":
        table = table.set_column(place, "price", pa.array(["cheap"] * table.num_rows))
    found = judge(_score(space, tmp_path, table, expect), space, tmp_path)
    assert (found.verdict, why in found.why) == (verdict, True), found


@pytest.mark.parametrize(
    ("kind", "untrue", "why"),
    [
        (made_logs.missing_words, {}, None),
        (made_logs.missing_words, {"data": {"missing_words": []}}, "differs from training on the"),
        (made_logs.delivered_twice, {"alarm": "leak"}, "no alarm 'leak' among 'repeated_rows'"),
        (made_logs.own_units, {"level": ("spend", 7e7, 1.0)}, "pred_spend is "),
    ],
)
def test_untrue_rows_are_seen(space, tmp_path, monkeypatch, kind, untrue, why):
    """Of a log as it comes: what is known of it is compared."""
    monkeypatch.setattr(
        as_they_come, "KINDS", [lambda *given: dataclasses.replace(kind(*given), **untrue)]
    )
    (tmp_path / "out").mkdir()
    drawn = as_they_come.as_they_come(random.Random(2), space, tmp_path)
    verdict = judge(Case(0, **vars(drawn)), space, tmp_path)
    assert verdict.verdict == ("right answer" if why is None else "wrong answer"), verdict
    assert (why or "") in verdict.why


def test_tracebacks_and_hangs_are_seen(space, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a fault of ours")

    case = _score(space, tmp_path, pq.read_table(space.log), right("clean"))
    monkeypatch.setattr("mmoe.score.score_files", fails)
    found = judge(case, space, tmp_path)
    assert (found.verdict, found.why) == ("traceback", "RuntimeError: a fault of ours")

    def hangs(*_, **__):
        while True:
            pass

    monkeypatch.setattr("mmoe.score.score_files", hangs)
    assert run_in_process(case.arguments, 0.2).code == -2


def test_half_written_output_is_seen(space, tmp_path, monkeypatch):
    case = _score(space, tmp_path, pq.read_table(space.log), error("price"))

    def leaves_half(run, source, output, **_):
        Path(output).write_bytes(b"half")
        raise ValueError("x.parquet: price")

    monkeypatch.setattr("mmoe.score.score_files", leaves_half)
    found = judge(case, space, tmp_path)
    assert (found.verdict, found.why) == ("failure", "left behind: scores.parquet")


def test_runs_that_differ_are_told_apart(space, tmp_path):
    one, two = space.run("memory"), space.copy_run(tmp_path / "run")
    assert first_difference(one, two) is None
    history = json.loads((two / "history.json").read_text())
    history["epochs"][0]["seconds"] += 1
    (two / "history.json").write_text(json.dumps(history))
    assert first_difference(one, two) is None
    [weights] = (two / "checkpoint").rglob("model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "model.safetensors" in str(first_difference(one, two))
    (two / "checkpoint" / ".index.1.tmp").touch()
    assert leftovers(two) == ["checkpoint/.index.1.tmp"]

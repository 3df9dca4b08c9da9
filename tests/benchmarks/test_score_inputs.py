"""Broken inputs of scoring, and nights: what is drawn, and how it is judged."""

import random
import shutil

import pyarrow as pa
import pytest

from benchmarks.faults.nights.month import NIGHTS, TRAINING_DAYS, Shop
from benchmarks.faults.nights.upstream import FAULTS, Upstream
from benchmarks.faults.nights.watch import watch_nights
from benchmarks.faults.score_inputs import output_cases
from benchmarks.faults.score_inputs.case import ScoreCase, Scored
from benchmarks.faults.score_inputs.judged import draw_case, judge
from benchmarks.faults.score_inputs.pool import judge_scorings


@pytest.fixture(name="space", scope="module")
def _space(tmp_path_factory):
    return Scored(tmp_path_factory.mktemp("scorings") / "space")


@pytest.fixture(name="case")
def _case(space, tmp_path):
    return ScoreCase(random.Random(1), space, tmp_path / "case")


def spoilt(monkeypatch, case, spoil):
    """How a case is judged whose command does something else, too."""
    from benchmarks.faults.score_inputs import judged

    run = judged.run_in_process

    def run_and_spoil(arguments, seconds):
        ended = run(arguments, seconds)
        spoil()
        return ended

    monkeypatch.setattr(judged, "run_in_process", run_and_spoil)
    return judge(0, case)


def test_a_case_that_is_right_is_harmless(case):
    assert judge(0, case).verdict == "harmless"


def test_a_case_that_is_wrong_is_refused(case):
    case.options = ["--keep", "nothing"]
    assert judge(0, case).verdict == "refused"
    case.options = ["--rows-per-file", "many"]
    assert judge(0, case).verdict == "refused"
    case.options = ["--expect", "rows > 1e9"]
    assert judge(0, case).verdict == "rejected"


def test_what_is_half_written_is_noticed(case, monkeypatch):
    case.options = ["--keep", "nothing"]
    out = case.with_scores("memory")
    verdict = spoilt(monkeypatch, case, (out / "_SUCCESS").unlink)
    assert (verdict.verdict, verdict.why) == (
        "half-written",
        "exit code 2, but out/scores/_SUCCESS is gone",
    )


def test_a_damaged_part_of_a_success_is_noticed(case, monkeypatch):
    part = case.place("scores") / "00000-part-0.parquet"
    verdict = spoilt(monkeypatch, case, lambda: part.write_bytes(b"else"))
    assert verdict.verdict == "half-written"
    assert "is other than the manifest says" in verdict.why


def test_what_is_of_somebody_else_has_to_stay(case, monkeypatch):
    path = case.with_scores("memory") / "_rejected" / "notes.txt"
    path.parent.mkdir()
    path.write_text("mine")
    case.options = ["--mode", "overwrite"]
    assert judge(0, case).verdict == "refused"
    verdict = spoilt(monkeypatch, case, lambda: shutil.rmtree(path.parent))
    assert verdict.why.endswith("_rejected/notes.txt is gone")


def test_what_must_be_refused_and_is_not_is_unclear(case):
    case.refused = True
    assert judge(0, case).verdict == "unclear"


def test_a_number_is_always_the_same_case(space, tmp_path):
    for number in range(30):
        drawn = []
        for again in range(2):
            case = draw_case(3, number, space, tmp_path / f"{number}-{again}")
            words = [word.replace(str(case.folder), "") for word in case.arguments]
            drawn.append((case.name.replace(str(case.folder), ""), words))
        assert drawn[0] == drawn[1]


def test_every_fault_of_an_output_can_be_made(space, tmp_path):
    for number, fault in enumerate({*output_cases._FAULTS}):
        case = ScoreCase(random.Random(number), space, tmp_path / str(number))
        assert fault(case)


@pytest.mark.slow
def test_cases_in_forked_processes(tmp_path):
    said = []
    verdicts = judge_scorings(tmp_path / "inputs", range(12), 5, said.append)
    assert [verdict.number for verdict in verdicts] == list(range(12))
    assert all(verdict.is_right for verdict in verdicts), said


def test_days_of_the_log_are_alike_and_weekdays_differ():
    shop = Shop(7)
    days = [shop.day(number) for number in range(14)]
    rows = [day.num_rows for day in days]
    assert max(rows) > 1.3 * min(rows)
    assert days[3].equals(Shop(7).day(3))
    users = [set(day["user"].to_pylist()) for day in days]
    assert users[0] != users[13]
    assert len(users[0] & users[13]) > 0.5 * len(users[0])


def test_every_fault_changes_the_night():
    shop = Shop(1)
    for fault in FAULTS:
        what, rows = fault(Upstream(shop, 15, random.Random(2)))
        assert what
        assert isinstance(rows, pa.Table)
        assert not rows.equals(shop.day(15))
    assert len(FAULTS) == 12


@pytest.mark.slow
def test_a_month_of_nights(tmp_path):
    nights = watch_nights(tmp_path / "month", 11, lambda _: None)
    healthy = [night for night in nights if night.fault is None]
    broken = [night for night in nights if night.fault is not None]
    assert [night.number for night in healthy] == [TRAINING_DAYS + n for n in range(NIGHTS)]
    assert all(night.code == 0 for night in healthy)
    assert sum(night.stopped for night in broken) >= 11

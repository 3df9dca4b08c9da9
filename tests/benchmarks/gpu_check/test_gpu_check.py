"""`benchmarks.gpu_check` without a GPU: its record, its summary, and what it runs."""

import json
import re

import pytest
import torch

from benchmarks.gpu_check import smoke
from benchmarks.gpu_check.__main__ import problems
from benchmarks.gpu_check.operator_cases import BUILDERS, CASES, EXCHANGE_CASES
from benchmarks.gpu_check.record import (
    EXIT_LEFT_OUT,
    EXIT_NO_TIME,
    FAILED,
    LEFT_OUT,
    MEASURED,
    NO_TIME,
    PASSED,
    ROOT,
    Item,
    Record,
    run_items,
)


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "record.jsonl", "a machine")


def script(text):
    return ("-c", text)


# ---------------------------------------------------------------- record and processes


def test_what_is_known_is_not_done_again(record, tmp_path):
    item = Item("smoke/one", script("print('done')"), 20)
    said = []
    for _ in range(2):
        run_items([item], record, tmp_path / "log", 30, say=said.append)

    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [PASSED]
    assert Record(tmp_path / "other.jsonl", "a machine", [record.path]).done() == {"smoke/one"}
    assert Record(record.path, "another machine").done() == set()


def test_other_sources_are_measured_again(record):
    record.add("kernels/x", MEASURED)
    record.code = "of other sources"
    assert record.done() == set()


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("print('fine')", PASSED, None),
        ("raise SystemExit('it is wrong')", FAILED, "exit status 1: it is wrong"),
        (f"print('no tool'); raise SystemExit({EXIT_LEFT_OUT})", LEFT_OUT, "no tool"),
        (f"print('later'); raise SystemExit({EXIT_NO_TIME})", NO_TIME, "later"),
        ("import os; os.abort()", FAILED, "exit status -6: it said nothing"),
    ],
)
def test_how_a_process_ends_is_what_its_line_says(record, tmp_path, text, status, reason):
    run_items([Item("smoke/x", script(text), 20)], record, tmp_path / "log", 30, say=lambda _: None)

    line = record.lines()["smoke/x"]
    assert (line["status"], line.get("reason")) == (status, reason)


# ---------------------------------------------------------------- summary


def test_nothing_that_was_left_out_counts_as_passed(record):
    record.add("smoke/a", PASSED)
    record.add("tests/a", LEFT_OUT, reason="no CUDA device")

    assert problems(record.lines(), ["smoke"]) == []
    assert problems(record.lines(), ["smoke", "tests"]) == ["nothing of tests ran"]
    assert problems({}, ["smoke"]) == ["nothing of smoke ran"]
    record.add("smoke/b", NO_TIME, reason="later")
    assert problems(record.lines(), ["smoke"]) == ["1 no time"]


# ---------------------------------------------------------------- what the processes do, here


def test_the_smoke_calls_every_operator(monkeypatch):
    monkeypatch.setattr(smoke, "compare", lambda *_: None)
    defined = set()
    for path in (ROOT / "mmoe/ops").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        defined |= set(re.findall(r'define\(\s*"([a-z_]+)\(', text))
    assert len(defined) > 20
    defined -= {"grouped_product", "dense_product"}  # settings, which compute nothing

    called = set()
    for name, builder in BUILDERS.items():
        case = EXCHANGE_CASES[0] if name == "exchange" else CASES[0]
        called |= {operator for operator, _ in builder(case, torch.float32)}

    assert called == defined


@pytest.mark.parametrize("name", smoke.NAMES)
def test_the_smoke_passes_on_the_cpu(name):
    assert smoke.check(name, "cpu", few=True)


def test_the_smoke_fails_where_an_operator_is_wrong(monkeypatch):
    right = torch.ops.mmoe.route_plan

    def wrong(*arguments):
        rows_P, offsets_E1, slots_BGK = right(*arguments)
        return rows_P, offsets_E1 + 1, slots_BGK

    monkeypatch.setattr(torch.ops.mmoe, "route_plan", wrong)
    with pytest.raises(ValueError, match=r"route_plan, .*result 1: .* integers differ"):
        smoke.check("route_plan", "cpu", few=True)

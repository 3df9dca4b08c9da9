"""The rates that a check measures for `auto`, and the form it writes them in."""

import json

from benchmarks.gpu_check import cost_rates
from mmoe.mixture.execution import RATE_TABLE, CostRates, read_table


def test_a_rehearsal_writes_a_line_that_the_table_can_hold(tmp_path, capsys):
    record = tmp_path / "record.jsonl"

    cost_rates.main(["--record", str(record), "--device", "cpu", "--small"])

    (line,) = (tmp_path / "cost_rates_cpu.jsonl").read_text().splitlines()
    measured = CostRates.from_line(line)
    assert measured.device == "cpu"
    assert "means nothing" in measured.source
    others = [text for text in RATE_TABLE.read_text().splitlines() if '"device": "cpu"' not in text]
    assert read_table("\n".join([line, *others]))["cpu"] == measured
    recorded = json.loads(record.read_text())
    assert (recorded["key"], recorded["rates"]) == (cost_rates.KEY, json.loads(line))
    printed = capsys.readouterr().out
    for word in (
        "dense bf16",
        "grouped fp64",
        "seconds_per_pick",
        "ratio",
        "the table's: measured",
    ):
        assert word in printed

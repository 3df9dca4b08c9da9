"""Scoring where memory or the disk is short: it ends, with one line that says what is missing."""

import pyarrow.parquet as pq

from tests.score.limited_scoring import limited_scorings


def test_scoring_under_a_limit_on_memory_ends(run, funnel_table, tmp_path):
    pq.write_table(funnel_table, tmp_path / "log.parquet", row_group_size=1000)
    ended = limited_scorings(run.path, tmp_path / "log.parquet", mib=(8, 18, 96, 768), seconds=20)
    assert [one.passed for one in ended] == [True] * 4, ended
    assert [ended[0].code, ended[-1].code] == [2, 0]
    assert "leaves less than 64 MiB); hold the tables in fewer bytes" in ended[0].said

"""Scores are judged before they are published: figures, and what is expected of them."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from mmoe.cli.score import summary_table
from mmoe.errors import Rejected
from mmoe.run import RunDirectory
from mmoe.score import score_files
from mmoe.score.guard import KEY, ColumnCounts, ScoreCounts
from tests.score.listing import parts
from tests.score.nights import FAILS, changed, summarised

AT = {"kind": "datetime", "name": "at", "unit": "s", "parts": ["hour", "weekday"]}


def test_figures_are_those_of_the_rows(run, funnel_table, night, tmp_path):
    out = tmp_path / "scores.parquet"
    summary = summarised(run, night, out, keep=["user"], fused={"value": "click * buy"})
    scores = pq.read_table(out)
    assert summary.rows == 1000
    for name in ("pred_click", "pred_buy", "value"):
        values, figures = scores[name].to_numpy(), summary.scores[name]
        assert figures["mean"] == pytest.approx(values.mean(), rel=1e-5)
        assert figures["p50"] == pytest.approx(np.median(values), rel=0.02)
        assert (figures["min"], figures["max"]) == (values.min(), values.max())
        assert figures["nan"] == figures["null"] == 0
    assert "pred_click" in summary.of_training
    assert "value" not in summary.of_training
    tags = funnel_table["tags"][3000:]
    assert (
        summary.columns["tags"]["missing"]
        == pc.mean(pc.equal(pc.list_value_length(tags), 0)).as_py()
    )
    assert summary.columns["item"]["unseen"] == 0
    assert all(figures.get("psi", 0) < 0.1 for figures in summary.columns.values())
    written = json.loads(pq.read_metadata(out).metadata[b"mmoe.summary"])
    assert written == summary.as_dict()
    shown = summary_table(summary)
    assert shown.row_count == 3 + len(summary.columns)
    assert shown.columns[1].header == "mean (test split)"  # as of_training says of predictions


def test_a_folder_has_the_same_figures_however_it_is_cut(run, night, tmp_path):
    whole = summarised(run, night, tmp_path / "whole.parquet").as_dict()
    for name, rows in (("one", None), ("cut", 512)):
        out = tmp_path / name
        told = summarised(run, night, out, rows_per_file=rows).as_dict()
        assert json.loads((out / "_summary.json").read_text()) == told
        assert told["columns"] == whole["columns"]
        for task, figures in told["scores"].items():
            assert figures.pop("training") == whole["scores"][task]["training"]
            for figure, value in figures.items():
                assert value == pytest.approx(whole["scores"][task][figure], rel=1e-12), figure
    assert len(parts(tmp_path / "cut")) == 2
    of_part = pq.read_metadata(tmp_path / "cut" / "00000-night-00001.parquet").metadata
    assert KEY in of_part
    assert ScoreCounts.in_metadata(of_part).rows == 1000 - 512


@pytest.mark.parametrize(
    ("column", "values", "failing"),
    [
        ("price", lambda x: pa.nulls(len(x), x.type), {"missing(*)", "psi(*)"}),
        ("price", lambda x: pc.multiply(x, 1000.0), {"psi(*)", "outside(*)"}),
        ("item", lambda x: pc.binary_join_element_wise(x, "v2", "-"), {"unseen(*)", "psi(*)"}),
        ("user", lambda x: pa.nulls(len(x), x.type), {"missing(*)", "psi(*)"}),
        ("tags", lambda x: pa.nulls(len(x), x.type), {"missing(*)"}),
    ],
    ids=["no price", "price in other units", "new ids", "no user", "no tags"],
)
def test_usual_finds_a_column_that_broke(run, funnel_table, tmp_path, column, values, failing):
    broken = changed(funnel_table, tmp_path / "night.parquet", **{column: values})
    with pytest.raises(Rejected, match=rf"not published.*{column}: ") as raised:
        score_files(run, broken, tmp_path / "out", expect=["usual"])
    for measure in failing:
        assert measure in str(raised.value)


def test_missing_numbers_are_told_from_the_mean(
    funnel_config, funnel_table, train_funnel, tmp_path
):
    """Once it is scaled, a number that is missing looks like the mean."""
    raw = {**funnel_config, "features": [{"kind": "numeric", "name": "price"}]}
    run = train_funnel(raw)

    def third(values):
        return pa.array([None if n % 3 == 0 else x for n, x in enumerate(values.to_pylist())])

    night = changed(funnel_table, tmp_path / "night.parquet", price=third)
    text = tmp_path / "night.csv"
    pa_csv.write_csv(pq.read_table(night, columns=["price"]), text)
    for source in (night, text):
        summary = summarised(run, source, tmp_path / f"{source.suffix}.parquet")
        assert summary.columns["price"]["missing"] == 0.334
        assert summary.of_training["price"]["missing"] == 0


def test_no_rows_meet_no_expectation(run, funnel_table, tmp_path):
    empty = tmp_path / "empty.parquet"
    pq.write_table(funnel_table[:0], empty)
    with pytest.raises(Rejected, match=r"mean\(pred_click\) > 0 \(pred_click: no row to tell by\)"):
        score_files(run, empty, tmp_path / "o2", expect=["mean(pred_click) > 0"])


def test_files_that_were_scored_before(run, night, funnel_table, tmp_path):
    """The log of yesterday again, in this folder or in that of a day beside it."""
    other = tmp_path / "other.parquet"
    pq.write_table(funnel_table[:1000], other)
    first, second = tmp_path / "s" / "day=1", tmp_path / "s" / "day=2"
    expect = ["repeated < 0.5"]
    score_files(run, night, first, expect=expect)  # there is nothing to repeat
    assert summarised(run, other, second, expect=expect).repeated == 0
    with pytest.raises(Rejected, match=r"repeated < 0\.5 \(1\)"):
        score_files(run, night, tmp_path / "s" / "day=3", expect=expect)
    score_files(run, night, first, mode="overwrite", expect=expect)  # the same day again
    score_files(run, night, tmp_path / "nightly", expect=expect)
    with pytest.raises(Rejected, match=r"repeated < 0\.5 \(1\)"):
        score_files(run, night, tmp_path / "nightly", mode="overwrite", expect=expect)


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("unseen(itme) < 0.2", r"no column 'itme' has unseen \(did you mean 'item'\?\)"),
        ("unseen(price) < 0.2", "price has no unseen: its ids are hashed, managed or none"),
        ("mean(click) > 0", r"no column 'click' has mean \(did you mean 'pred_click'\?\)"),
        ("mean(value) > 0 of training", r"does not know mean\(value\) of its training"),
        ("psi(x*) < 1", r"no column 'x\*' has psi"),
        ("price < 1", "no measure 'price'"),
    ],
)
def test_an_expectation_of_nothing_is_refused_before_anything_is_written(
    run, night, tmp_path, expect, message
):
    for out in (tmp_path / "out", tmp_path / "scores.parquet"):
        with pytest.raises(ValueError, match=message):
            score_files(run, night, out, expect=[expect], fused={"value": "click + buy"})
    assert list(tmp_path.iterdir()) == []


def test_expectations_of_the_config(funnel_config, train_funnel, night, tmp_path):
    training = {**funnel_config["training"], "epochs": 1}
    run = train_funnel({**funnel_config, "score": {"expect": FAILS}, "training": training})
    with pytest.raises(Rejected):
        score_files(run, night, tmp_path / "out")
    score_files(run, night, tmp_path / "out", expect=[])  # those of the call go before


def test_a_run_of_an_earlier_version_has_nothing_to_compare_with(run, night, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    run.columns_file.unlink()
    run.predictions_file.unlink()
    summary = summarised(run, night, tmp_path / "out", expect=["usual"])
    assert not summary.failed
    assert summary.columns["item"] == {"missing": 0, "unseen": 0}
    assert summary.of_training == {}
    for expect in ("psi(*) < 1", "mean(*) in [0.5, 2] of training"):
        with pytest.raises(ValueError, match=r"no column|does not know"):
            score_files(run, night, tmp_path / "o2", expect=[expect])


def test_the_command_says_why_and_ends_with_3(mmoe, run, night, tmp_path):
    asked = ("score", run.path, "--input", night, "--output", tmp_path / "out")
    code, out, err = mmoe(*asked, "--expect", "rows > 1e6", "psi(*) < 9", "--expect", "rows > 1")
    assert code == 3
    assert err.splitlines()[-1].startswith(
        f"mmoe: error: {tmp_path / 'out'}: not published, as 1 of 3"
    )
    assert "pred_click" in out
    assert "1,000 rows" in out
    code, out, err = mmoe(*asked, "--expect", "psi(nothing) < 9", "--quiet")
    assert (code, out) == (2, "")
    assert mmoe(*asked, "--expect", "usual", "--quiet") == (0, "", "")


def test_unseen_items_of_a_list_are_a_share_of_its_items(run, funnel_table, tmp_path):
    """As training has it: of long lists most rows hold one that is new."""
    lists = [[*(tags or []), "known to nobody"] for tags in funnel_table["tags"][3000:].to_pylist()]
    night = changed(funnel_table, tmp_path / "night.parquet", tags=lambda _: pa.array(lists))
    summary = summarised(run, night, tmp_path / "out")
    assert summary.columns["tags"]["unseen"] == len(lists) / sum(map(len, lists))


def test_a_part_of_a_datetime_is_judged_where_it_is_named(
    funnel_config, funnel_table, train_funnel, tmp_path
):
    """Weekdays differ from day to day; hours do not where a night is a whole day."""
    config = {**funnel_config, "features": [{"kind": "numeric", "name": "price"}, AT]}
    hours = pa.array([1_704_067_200 + 3600 * (n * 7 % 500) for n in range(len(funnel_table))])
    run = train_funnel(config, funnel_table.append_column("at", hours))
    nobody = tmp_path / "night.parquet"
    pq.write_table(funnel_table[3000:].append_column("at", pa.array([0] * 1000)), nobody)
    told = summarised(run, nobody, tmp_path / "usual", expect=["usual", "psi(*) < 0.25"])
    assert told.columns["at__hour"]["psi"] > 1
    with pytest.raises(Rejected, match=r"1 of 1 .*: psi\(at__hour\) < 0\.25 \(at__hour: "):
        score_files(run, nobody, tmp_path / "out", expect=["psi(at__hour) < 0.25"])
    with pytest.raises(ValueError, match=r"did you mean 'at__hour'"):
        score_files(run, nobody, tmp_path / "out", expect=["psi(at_hour) < 0.25"])


def test_one_file_does_not_know_what_is_repeated(run, night, tmp_path):
    with pytest.raises(ValueError, match=r"'repeated' with --output .*: one file does not say"):
        score_files(run, night, tmp_path / "s.parquet", expect=["repeated < 0.5"])


def test_counts_of_bins_are_added_up():
    one = ColumnCounts(items=3, missing=0, bins=[1, 2])
    assert list((one + one).bins) == [2, 4]

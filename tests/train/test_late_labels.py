"""Labels of young rows count nowhere, by whatever road rows come."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, dump_config, set_values
from mmoe.run import RunDirectory
from mmoe.train import evaluate_run, prepare, train_run
from mmoe.train.backtest import BacktestSettings, backtest
from tests.ranks import launch
from tests.runs import Listens

START = np.datetime64("2024-01-01", "us")
DAY = 86_400_000_000
ROWS, DAYS = 1_200, 30
WEIGHTED = ["tasks.buy.immature=weight", "tasks.buy.happened_at=bought_at"]


@pytest.fixture(name="log", scope="module")
def _log():
    rng = np.random.default_rng(0)
    day = rng.permutation(np.linspace(0, DAYS, ROWS))
    x = rng.normal(size=ROWS)
    delay = rng.exponential(2, ROWS)
    bought = (rng.random(ROWS) < 1 / (1 + np.exp(-2 * x))) & (day + delay <= DAYS)
    at = START + (day * DAY).astype(np.int64)
    return pa.table(
        {
            "at": at,
            "day": at.astype("datetime64[D]"),
            "x": x,
            "item": rng.integers(0, 20, ROWS),
            "click": (rng.random(ROWS) < 0.5).astype(int),
            "buy": bought.astype(int),
            "bought_at": pa.array(at + (delay * DAY).astype(np.int64), mask=~bought),
        }
    )


@pytest.fixture(name="path", scope="module")
def _path(log, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(log, path, row_group_size=150)
    return path


@pytest.fixture(name="config")
def _config(path):
    def make(*overrides, **data):
        raw = {
            "data": {"path": str(path), "time": {"column": "at"}, "input": "memory", **data},
            "features": [
                {"kind": "numeric", "name": "x"},
                {"kind": "categorical", "name": "item", "dim": 4},
            ],
            "tasks": [
                {"name": "click", "label": "click"},
                {"name": "buy", "label": "buy", "matures_after": "7d"},
            ],
            "model": {"num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}},
            "training": {"epochs": 2, "batch_size": 128, "embedding_backend": "plain"},
        }
        return config_from_dict(set_values(raw, overrides))

    return make


def rows_of(metrics):
    return {task: (values["rows"], values.get("masked")) for task, values in metrics.items()}


def test_a_run_is_that_on_the_log_with_those_labels_empty(config, log, tmp_path, assert_same):
    heard = Listens()
    masked = train_run(config(), tmp_path / "masked", reporter=heard)
    young = (log["at"].to_numpy().max() - log["at"].to_numpy()) < np.timedelta64(7, "D")
    empty = pa.array(log["buy"].to_numpy(), mask=young)
    emptied = log.set_column(log.column_names.index("buy"), "buy", empty)
    plain = config("tasks.buy.matures_after=null", time=None)
    plain = train_run(plain, tmp_path / "plain", data=emptied)
    assert_same(masked.directory.path, plain.directory.path)
    for split in ("tasks", "validation"):
        for task, values in plain.metrics[split].items():
            assert masked.metrics[split][task] | values == masked.metrics[split][task]
    counts = masked.metrics["tasks"]["buy"]["masked"], masked.metrics["train"]["masked"]["buy"]
    assert sum(counts) + masked.metrics["validation"]["buy"]["masked"] == young.sum()
    assert masked.metrics["as_of"] == "2024-01-31T00:00:00"
    assert "masked" not in masked.metrics["tasks"]["click"]
    assert "masked" not in plain.metrics["tasks"]["buy"]
    assert any(line.startswith("buy: labels of rows younger than 7d as of") for line in heard.lines)
    assert not any(line.startswith("warning") for line in heard.lines)


def test_a_stream_is_the_run_in_memory(config, tmp_path, assert_same):
    runs = {
        kind: train_run(config(f"data.input={kind}", *WEIGHTED), tmp_path / kind)
        for kind in ("memory", "stream")
    }
    assert_same(tmp_path / "memory", tmp_path / "stream")
    one, two = (runs[kind].directory.maturity_file.read_text() for kind in runs)
    assert one == two
    assert runs["memory"].metrics["tasks"] == runs["stream"].metrics["tasks"]
    for run in runs.values():
        found = evaluate_run(run.directory)
        assert found["tasks"] == run.metrics["tasks"]
        assert found["as_of"] == run.metrics["as_of"]


def test_young_rows_are_weighted_in_training_alone(config):
    data = prepare(config(*WEIGHTED))
    counts = {split: found["buy"] for split, found in data.masked.items()}
    assert counts["train"]["weighted"] > counts["train"]["masked"] > 0
    assert counts["validation"]["weighted"] == counts["test"]["weighted"] == 0
    assert data.train.held.labels.labels_NT[:, 1].max() > 1.2
    assert data.test.held.labels.labels_NT.max() == data.sample.labels.labels_NT.max() == 1
    observed = data.sample.labels.observed_NT[:, 1].sum()
    assert observed == counts["train"]["left"] - counts["train"]["weighted"]


def test_the_entire_space_goes_with_windows(config, log, tmp_path, assert_same):
    space = ["tasks.buy.kind=entire_space", "tasks.buy.observed_when=click"]
    log = log.set_column(
        log.column_names.index("buy"), "buy",
        pa.array(log["buy"].to_numpy() * log["click"].to_numpy()),
    )  # fmt: skip
    train_run(config(*space), tmp_path / "masked", data=log)
    # Young rows count nowhere, those without a click either: alone they would say "no purchase"
    young = (log["at"].to_numpy().max() - log["at"].to_numpy()) < np.timedelta64(7, "D")
    weighed = log.append_column("old", pa.array(1.0 - young))
    plain = config(*space, "tasks.buy.matures_after=null", "tasks.buy.weight_column=old", time=None)
    train_run(plain, tmp_path / "plain", data=weighed)
    assert_same(tmp_path / "masked", tmp_path / "plain")
    train_run(config(*space, *WEIGHTED), tmp_path / "weighted", data=log)


def test_other_rows_are_as_of_their_own_newest_time(config, log, path, tmp_path):
    run = train_run(config("training.epochs=1"), tmp_path / "run").directory
    day = (log["at"].to_numpy() - START) / np.timedelta64(1, "D")
    before = log.filter(pa.array(day <= 20))
    pq.write_table(before, tmp_path / "before.parquet")
    for data in (before, tmp_path / "before.parquet"):
        heard = Listens()
        found = evaluate_run(run, data, heard)
        assert found["as_of"].startswith("2024-01-20T23")
        end = day[day <= 20].max()
        old, young = (day <= end - 7).sum(), (day[day <= 20] > end - 7).sum()
        assert rows_of(found["tasks"])["buy"] == (old, young)
        assert any("labels are masked, of rows younger than 7d" in line for line in heard.lines)
    later = evaluate_run(run, before, as_of="2024-02-10")
    assert rows_of(later["tasks"])["buy"] == (len(before), 0)
    few = log.filter(pa.array(day > 25)).drop_columns(["click"])
    few = few.append_column("click", pa.nulls(len(few), pa.int64()))
    with pytest.raises(ValueError, match=r"all \d+ labels of task 'buy' are of rows younger"):
        evaluate_run(run, few)
    young = log.filter(pa.array(day > 25))  # of which clicks are known
    found = evaluate_run(run, young)["tasks"]
    assert found["click"]["rows"] == len(young)
    assert rows_of(found)["buy"] == (0, len(young))
    with pytest.raises(ValueError, match="--as-of: is for rows of --data"):
        evaluate_run(run, as_of="2024-02-10")
    with pytest.raises(ValueError, match="--as-of: expected a datetime such as"):
        evaluate_run(run, before, as_of="soon")


def test_a_run_of_other_labels_takes_no_moment(config, log, tmp_path):
    plain = config("tasks.buy.matures_after=null", "training.epochs=1", time=None)
    run = train_run(plain, tmp_path / "run").directory
    assert not run.maturity_file.exists()
    with pytest.raises(ValueError, match="--as-of: no task of this run has matures_after"):
        evaluate_run(run, log, as_of="2024-02-10")


def test_what_is_resumed_keeps_its_moment(config, log, tmp_path, dies_after, assert_same):
    """Rows that have come since are younger than nothing: they are masked."""
    path = tmp_path / "log.parquet"
    pq.write_table(log, path)
    made = config("data.input=stream", "training.checkpoint_every_steps=3", path=str(path))
    whole = train_run(made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_run(made, tmp_path / "run", reporter=dies_after(5))
    resumed = train_run(made, tmp_path / "run", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert resumed.metrics["as_of"] == whole.metrics["as_of"]
    with pytest.raises(KeyboardInterrupt):
        train_run(made, tmp_path / "grown", reporter=dies_after(5))
    more = log.set_column(0, "at", pa.array(log["at"].to_numpy() + np.timedelta64(30, "D")))
    pq.write_table(pa.concat_tables([log, more]), path)
    grown = train_run(made, tmp_path / "grown", resume=True, changed_data=True)
    assert grown.metrics["as_of"] == whole.metrics["as_of"]


def test_a_run_without_its_moment_is_not_evaluated(config, tmp_path):
    run = train_run(config("training.epochs=1"), tmp_path / "run").directory
    run.maturity_file.unlink()
    with pytest.raises(ValueError, match=r"maturity.json: is damaged .*put it back, or train"):
        evaluate_run(run)


def test_a_test_split_that_is_all_young_is_warned_of(config, tmp_path):
    days = [f"2024-01-{day:02}" for day in range(1, 23)]
    split = {"by": "day", "column": "day", "train_days": days, "test_days": ["2024-01-29"]}
    heard = Listens()
    run = train_run(config("training.epochs=1", split=split), tmp_path / "run", reporter=heard)
    # The newest row is of a day in no split
    assert run.metrics["as_of"] == "2024-01-31T00:00:00"
    assert rows_of(run.metrics["tasks"])["buy"] == (0, 40)
    assert any(
        line.startswith("warning: buy: all of the labels of the test rows are masked")
        for line in heard.lines
    )


def test_a_validation_split_that_is_all_young_is_refused(config, tmp_path):
    split = {"by": "time", "column": "at"}
    made = config("data.input=stream", "training.monitor=buy.auc", split=split, time=None)
    with pytest.raises(ValueError, match="all validation rows are younger than 7d") as error:
        train_run(made, tmp_path / "run")
    assert "data.time.as_of" in str(error.value)
    assert not (tmp_path / "run").exists()
    late = config("training.epochs=1", split=split, time={"as_of": "2024-02-10"})
    run = train_run(late, tmp_path / "later")
    assert rows_of(run.metrics["tasks"])["buy"] == (120, 0)


def test_wrong_times_are_refused_before_a_folder_is_made(config, log, tmp_path):
    wrong = log.set_column(0, "at", pa.array(["soon"] * ROWS))
    for kind in ("memory", "stream"):
        pq.write_table(wrong, tmp_path / "wrong.parquet")
        made = config(f"data.input={kind}", path=str(tmp_path / "wrong.parquet"))
        with pytest.raises(ValueError, match=r"row 1: column 'at' \(of data.time\) is 'soon'"):
            train_run(made, tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("how", "from_scratch"),
    [(WEIGHTED, True), (["training.monitor=buy.auc"], False)],
    ids=["from scratch, weighted", "warm, by buy"],
)
def test_a_backtest_goes_on_over_days_whose_labels_are_all_young(
    how, from_scratch, config, log, tmp_path
):
    """As the last ones of every log are; days know the newest row of the whole log."""
    days = pa.array(log["day"].to_pylist()).cast(pa.string())
    made = config("training.epochs=1", *how, path=str(tmp_path / "days"))
    for day in (f"2024-01-{number:02d}" for number in range(22, 27)):
        folder = tmp_path / "days" / f"day={day}"
        folder.mkdir(parents=True)
        first = day if day > "2024-01-22" else "2024-01-17"  # enough to learn delays of
        mine = pa.compute.and_(
            pa.compute.greater_equal(days, first), pa.compute.less_equal(days, day)
        )
        rows = log.filter(mine).drop_columns(["day"])
        pq.write_table(rows, folder / "rows.parquet")
    window = 1 if from_scratch else None
    settings = BacktestSettings(column="day", window=window, from_scratch=from_scratch)
    found = backtest(made, tmp_path / "walk", settings)
    assert [day["tasks"]["click"]["rows"] > 0 for day in found["days"]] == [True] * 4
    first = RunDirectory(tmp_path / "walk" / found["days"][0]["run"])
    assert json.loads(first.maturity_file.read_text())["as_of"].startswith("2024-01-26T23")
    assert found["days"][-1]["tasks"]["buy"]["rows"] == 0
    assert found["total"]["click"]["rows"] == sum(
        day["tasks"]["click"]["rows"] for day in found["days"]
    )


@pytest.mark.torchrec
def test_ranks_mask_what_one_process_masks(config, tmp_path):
    made = config("data.input=stream", "training.embedding_backend=torchrec", *WEIGHTED)
    (tmp_path / "config.yaml").write_text(dump_config(made))
    one = train_run(made, tmp_path / "one")
    arguments = ["train", tmp_path / "config.yaml", "--out", tmp_path / "two", "--quiet"]
    ended = launch(arguments, 2, seconds=200)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    two = RunDirectory(tmp_path / "two")
    assert two.maturity_file.read_text() == one.directory.maturity_file.read_text()
    found = two.metrics()["tasks"]["buy"]
    assert rows_of({"buy": found}) == rows_of({"buy": one.metrics["tasks"]["buy"]})
    assert found["auc"] == pytest.approx(one.metrics["tasks"]["buy"]["auc"], abs=1e-3)

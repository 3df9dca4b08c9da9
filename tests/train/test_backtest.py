"""Walking forward over days: what trains, what is tested, totals, resuming, errors."""

import datetime as dt
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import mmoe
from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import SplitConfig, config_from_dict, set_values
from mmoe.datasets.files import fingerprint
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Day, day_splits, days_of, split_table
from mmoe.metrics import auc, task_metrics
from mmoe.run import RunDirectory, locks
from mmoe.run.folder_claim import FolderClaim
from mmoe.run.metrics_table import backtest_table
from mmoe.score import load_predictor
from mmoe.train import Interrupted, evaluate_run, train_run
from mmoe.train import backtest as walk
from mmoe.train.backtest import BacktestSettings, backtest, backtest_steps

DAYS = ["2024-01-30", "2024-01-31", "2024-02-01", "2024-02-03"]


@pytest.fixture(name="folder")
def _folder(funnel_table, tmp_path) -> Path:
    """A partition a day, of 1,000 rows each; 2024-02-02 is not there."""
    for number, day in enumerate(DAYS):
        folder = tmp_path / "log" / f"day={day}"
        folder.mkdir(parents=True)
        part = funnel_table.slice(number * 1000, 1000)
        pq.write_table(part, folder / "part-0.parquet", row_group_size=400)
    return tmp_path / "log"


@pytest.fixture(name="config")
def _config(funnel_config, folder):
    def make(*overrides: str):
        settings = [f"data.path={folder}", "training.epochs=1", *overrides]
        return config_from_dict(set_values(funnel_config, settings))

    return make


def test_every_day_but_the_first_is_tested_by_the_model_of_the_day_before(config, tmp_path):
    result = backtest(config(), tmp_path / "out", BacktestSettings(column="day"))
    days = [(day["train_days"], day["test_day"]) for day in result["days"]]
    assert days == [([DAYS[0]], DAYS[1]), ([DAYS[1]], DAYS[2]), ([DAYS[2]], DAYS[3])]
    assert json.loads((tmp_path / "out" / "backtest.json").read_text()) == result
    begun = [
        json.loads((tmp_path / "out" / f"trained-{day}" / "warm_start.json").read_text())["run"]
        for day in DAYS[1:3]
    ]
    assert [Path(path).name for path in begun] == [f"trained-{day}" for day in DAYS[:2]]
    for day in result["days"]:
        run = RunDirectory.open(tmp_path / "out" / day["run"])
        assert evaluate_run(run)["tasks"] == day["tasks"] == run.metrics()["tasks"]
        assert day["tasks"]["click"]["rows"] == 1000


@pytest.mark.parametrize("hidden", [[8, 6], [8, 6, 4]])
def test_deep_own_towers_go_on_from_day_to_day(hidden, funnel_config, tmp_path, monkeypatch):
    """Later days learn at rates of 1e-12, so that theirs is the first day's model."""
    rng = np.random.default_rng(0)
    columns = {"price": rng.normal(size=900), "scene": [*"abc"] * 300}
    columns["click"] = (rng.random(900) < 1 / (1 + np.exp(-columns["price"]))).astype(int)
    columns["day"] = np.repeat(DAYS[:3], 300)
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")

    def train_slowly(config, *args, warm_start=None, **kwargs):
        if warm_start is not None:
            rates = ("optimizer", "embedding_optimizer")
            slow = [f"training.{name}.learning_rate=1e-12" for name in rates]
            raw = set_values(config.model_dump(mode="json"), slow)
            config = config_from_dict(raw, of_run=True)
        return train_run(config, *args, warm_start=warm_start, **kwargs)

    monkeypatch.setattr(walk, "train_run", train_slowly)
    config = config_from_dict(
        {
            **funnel_config,
            "data": {"path": str(tmp_path / "log.parquet")},
            "features": [{"kind": "numeric", "name": "price", "buckets": 4}],
            "tasks": [{"name": "click", "label": "click"}],
            "model": {
                **funnel_config["model"],
                "domains": {"column": "scene", "towers": "own"},
                "tower": {"hidden": hidden},
            },
        }
    )
    backtest(config, tmp_path / "out", BacktestSettings(column="day"))
    found = [tmp_path / "out" / f"trained-{day}" for day in DAYS[:2]]
    before, after = (CheckpointFolder(run / "checkpoint").model("best") for run in found)
    assert before.keys() == after.keys() and any("own_weights.2" in name for name in before)
    for name, tensor in before.items():
        np.testing.assert_allclose(after[name], tensor, rtol=0, atol=1e-10, err_msg=name)
    rows = pa.table({"price": rng.normal(size=60), "scene": [*"abc"] * 20})
    scores = [mmoe.load(run).predict(rows)["pred_click"].to_pylist() for run in found]
    assert scores[0] == scores[1]
    assert json.loads((found[1] / "warm_start.json").read_text())["not_carried"] == []


def test_the_total_is_of_all_tested_rows_together(config, folder, tmp_path):
    result = backtest(config(), tmp_path / "out", BacktestSettings(column="day"))
    labels, predictions, users = [], [], []
    for day in result["days"]:
        predictor, encoder, run_config = load_predictor(RunDirectory(tmp_path / "out" / day["run"]))
        table = pq.read_table(folder / f"day={day['test_day']}")
        predictions.append(
            predictor.predict(BatchSource.of_table(table, encoder, "log", run_config))[:, 0]
        )
        labels.append(table["click"].to_numpy())
        users.append(table["user"].to_numpy())
    one, two, three = map(np.concatenate, (labels, predictions, users))
    expected, _ = task_metrics("binary", one, two, groups=three)
    total = result["total"]["click"]
    assert total["rows"] == 3000
    for name in ("auc", "gauc", "ne", "calibration"):
        assert total[name] == pytest.approx(expected[name], abs=1e-12), name
    assert total["auc"] == pytest.approx(auc(one, two), abs=1e-12)
    assert total["auc"] != result["days"][0]["tasks"]["click"]["auc"]


def test_groups_go_on_over_days_and_rows_without_one_join_none(config, folder, tmp_path):
    user = pa.array([None if n % 5 == 0 else f"u{n % 30}" for n in range(1000)])
    for day in DAYS:
        file = folder / f"day={day}" / "part-0.parquet"
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.append_column("who", user), file)
    result = backtest(
        config("data.group_column=who"), tmp_path / "out", BacktestSettings(column="day", days=2)
    )
    tables = [
        pq.read_table(tmp_path / "out" / d["run"] / "predictions.parquet") for d in result["days"]
    ]
    together = pa.concat_tables(tables)
    groups = np.array([np.nan if n % 5 == 0 else n % 30 for n in range(1000)] * 2)
    expected, _ = task_metrics(
        "binary",
        together["label_click"].to_numpy(),
        together["pred_click"].to_numpy(),
        groups=groups,
    )
    assert together["group_hash"].null_count == 400
    assert result["total"]["click"]["gauc"] == pytest.approx(expected["gauc"], abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"from_scratch": True}, ["0", "01", "012"]),
        ({"from_scratch": True, "window": 2}, ["0", "01", "12"]),
        ({"window": 2}, ["0", "01", "12"]),
        ({"days": 1}, ["012"]),
        ({"days": 2}, ["01", "2"]),
        ({"days": 2, "window": 1}, ["1", "2"]),
        ({"days": 2, "from_scratch": True}, ["01", "012"]),
    ],
)
def test_which_days_train(config, settings, expected):
    steps = backtest_steps(config(), BacktestSettings(column="day", **settings))
    numbers = ["".join(str(DAYS.index(str(day))) for day in step.train) for step in steps]
    assert numbers == expected
    assert [len(step.files) for step in steps] == [len(days) + 1 for days in expected]
    assert steps[-1].gap and str(steps[-1].test) == DAYS[3]


def test_from_scratch_begins_anew_every_day(config, tmp_path):
    settings = BacktestSettings(column="day", from_scratch=True, days=1)
    backtest(config(), tmp_path / "out", settings)
    [run] = (tmp_path / "out").glob("trained-*")
    assert not (run / "warm_start.json").exists()
    assert RunDirectory(run).metrics()["train"]["rows"] > 2500  # of 3,000: a tenth validates


def test_streamed_as_in_memory(config, tmp_path):
    settings = BacktestSettings(column="day", days=2)
    held, streamed = (
        backtest(config(f"data.input={how}"), tmp_path / how, settings)
        for how in ("memory", "stream")
    )
    assert held == streamed


def _without_a_walk(folder: Path) -> dict[str, dict]:
    return {
        path.parent.name: json.loads(path.read_text())["tasks"]
        for path in sorted(folder.glob("*/metrics.json"))
    }


@pytest.mark.parametrize("after", [0, 4, 8])
def test_a_killed_walk_goes_on_with_the_first_unfinished_day(config, tmp_path, after, dies_after):
    settings = BacktestSettings(column="day")
    whole = backtest(config(), tmp_path / "whole", settings)
    with pytest.raises(KeyboardInterrupt):
        backtest(config(), tmp_path / "broken", settings, reporter=dies_after(after))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("broken/*/predictions.parquet")}
    assert len(done) == after // 3  # three steps a day
    assert backtest(config(), tmp_path / "broken", settings, resume=True) == whole
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    assert _without_a_walk(tmp_path / "broken") == _without_a_walk(tmp_path / "whole")


def test_a_day_that_came_since_is_walked_on_resume(config, folder, funnel_table, tmp_path):
    settings = BacktestSettings(column="day")
    before = backtest(config(), tmp_path / "out", settings)
    new = folder / "day=2024-02-04"
    new.mkdir()
    pq.write_table(funnel_table.slice(0, 500), new / "part-0.parquet")
    after = backtest(config(), tmp_path / "out", settings, resume=True)
    assert after["days"][:3] == before["days"]
    assert [day["test_day"] for day in after["days"][3:]] == ["2024-02-04"]


def test_a_resume_looks_at_each_file_once(config, tmp_path, monkeypatch):
    settings = BacktestSettings(column="day", from_scratch=True)
    backtest(config(), tmp_path / "out", settings)
    seen, look_at = [], fingerprint._look_at
    monkeypatch.setattr(fingerprint, "_look_at", lambda file: seen.append(file) or look_at(file))
    backtest(config(), tmp_path / "out", settings, resume=True)
    assert len(seen) == len(set(seen)) == len(DAYS)


def test_a_day_that_has_changed_since_is_named(config, folder, funnel_table, tmp_path):
    settings, keywords = BacktestSettings(column="day"), {"resume": True}
    before = backtest(config(), tmp_path / "out", settings)
    pq.write_table(funnel_table.slice(0, 500), folder / f"day={DAYS[1]}" / "part-0.parquet")
    with pytest.raises(
        ValueError,
        match=r"out: the data of 2024-01-30 to 2024-01-31 has changed since trained-2024-01-30 was "
        r"begun, in .*log: day=2024-01-31/part-0\.parquet was changed .*--changed-data",
    ):
        backtest(config(), tmp_path / "out", settings, **keywords)
    keywords["changed_data"] = True
    assert backtest(config(), tmp_path / "out", settings, **keywords) == before, "all is finished"


@pytest.mark.parametrize("after", [5, 100])
def test_a_log_in_one_file_takes_in_days(config, folder, tmp_path, after, dies_after):
    """The killed walk goes on, and so does one that had finished; nothing old is done again."""
    log, settings = tmp_path / "log.parquet", BacktestSettings(column="day")
    whole = pq.read_table(folder)
    whole = whole.set_column(whole.column_names.index("day"), "day", whole["day"].cast(pa.string()))
    pq.write_table(whole.slice(0, 3000), log)
    with suppress(KeyboardInterrupt):
        backtest(config(f"data.path={log}"), tmp_path / "out", settings, reporter=dies_after(after))
    pq.write_table(whole, log)
    result = backtest(config(f"data.path={log}"), tmp_path / "out", settings, resume=True)
    assert [day["test_day"] for day in result["days"]] == DAYS[1:]


def test_another_walk_in_the_same_folder_is_refused(config, tmp_path):
    settings = BacktestSettings(column="day", days=1)
    backtest(config(), tmp_path / "out", settings)
    with pytest.raises(ValueError, match=r"out: exists already; continue it with --resume"):
        backtest(config(), tmp_path / "out", settings)
    with pytest.raises(ValueError, match=r"out: was begun otherwise \(config.seed: 3 there, 4 he"):
        backtest(config("seed=4"), tmp_path / "out", settings, resume=True)
    with pytest.raises(
        ValueError, match=r"it tested 2024-02-03 to 2024-02-03, .*fewer.* --days 1\)"
    ):
        backtest(config(), tmp_path / "out", BacktestSettings(column="day"), resume=True)


def test_a_walk_whose_version_knew_fewer_keys_goes_on(config, tmp_path):
    settings = BacktestSettings(column="day", days=1)
    first = backtest(config(), tmp_path / "out", settings)
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    del plan["config"]["model"]["expert"]["output_activation"]
    (tmp_path / "out" / "plan.json").write_text(json.dumps(plan))
    assert backtest(config(), tmp_path / "out", settings, resume=True) == first


def test_resume_says_how_many_days_go_on(config, folder, funnel_table, tmp_path):
    settings = BacktestSettings(column="day", days=2)
    before = backtest(config(), tmp_path / "out", settings)
    new = folder / "day=2024-02-04"
    new.mkdir()
    pq.write_table(funnel_table.slice(0, 500), new / "part-0.parquet")
    with pytest.raises(ValueError, match=r"2024-02-03 to 2024-02-04 is asked .*with --days 3\)"):
        backtest(config(), tmp_path / "out", settings, resume=True)
    longer = BacktestSettings(column="day", days=3)
    after = backtest(config(), tmp_path / "out", longer, resume=True)
    assert after["days"][:2] == before["days"] and len(after["days"]) == 3
    (folder / "day=2024-02-02").mkdir()
    pq.write_table(funnel_table.slice(0, 500), folder / "day=2024-02-02" / "part-0.parquet")
    with pytest.raises(ValueError, match=r"the data now holds other days or trains on others"):
        backtest(config(), tmp_path / "out", longer, resume=True)


def test_resume_takes_no_folder_of_something_else(config, tmp_path):
    settings, out = BacktestSettings(column="day", days=1), tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"out: holds no backtest to continue \(there is no plan"):
        backtest(config(), out, settings, resume=True)
    with pytest.raises(ValueError, match=r"notes.txt: is a file; choose another --out"):
        backtest(config(), out / "notes.txt", settings, resume=True)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_what_a_killed_walk_had_begun_to_write_is_removed(config, tmp_path):
    settings, out = BacktestSettings(column="day", days=1), tmp_path / "out"
    out.mkdir()
    (out / ".plan.json.7.tmp").write_text("{")
    backtest(config(), out, settings, resume=True)
    (out / ".backtest.json.7.tmp").write_text("{")
    backtest(config(), out, settings, resume=True)
    assert not list(out.rglob(".*"))


def test_the_table_fits_into_a_terminal(config, tmp_path):
    result = backtest(config(), tmp_path / "out", BacktestSettings(column="day", days=2))
    console = Console(width=200, record=True, file=(tmp_path / "table.txt").open("w"))
    console.print(backtest_table(result))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [
        "trained", "tested", "task", "AUC", "GAUC", "NE", "calib.", "rows", "positives",
    ]  # fmt: skip
    assert lines[1].split()[:3] == [DAYS[1], DAYS[2], "click"]
    assert lines[3].split()[:3] == [DAYS[2], DAYS[3], "click"]
    assert lines[-2].split()[:2] == ["total", "click"]
    assert len(lines) == 1 + 2 * 3


def test_one_day_is_not_enough(config, folder):
    settings = BacktestSettings(column="day")
    with pytest.raises(ValueError, match=r"column 'day' holds one day \(2024-01-30\), but a backt"):
        backtest_steps(config(f"data.path={folder}/day={DAYS[0]}"), settings)
    with pytest.raises(ValueError, match=r"--days: expected at most 3, as .*log holds 4 days from"):
        backtest_steps(config(), BacktestSettings(column="day", days=4))
    with pytest.raises(ValueError, match=r"--window: expected 1 or more, got 0"):
        backtest_steps(config(), BacktestSettings(column="day", window=0))
    with pytest.raises(ValueError, match=r"no column 'dey', which backtest --column needs \(did y"):
        backtest_steps(config(), BacktestSettings(column="dey"))


def test_the_column_comes_from_a_split_by_time(config, tmp_path):
    by_time = config("data.split.by=time", "data.split.column=day")
    assert len(backtest_steps(by_time, BacktestSettings())) == 3
    with pytest.raises(ValueError, match=r"which column holds the day; give --column NAME"):
        backtest_steps(config(), BacktestSettings())
    with pytest.raises(ValueError, match=r"but data.source is synthetic-funnel; give --set"):
        backtest_steps(config("data.source=synthetic-funnel"), BacktestSettings(column="day"))


def test_a_day_of_one_class_is_named(config, folder, funnel_table, tmp_path):
    zeros = pa.array(np.zeros(1000, np.int64))
    part = funnel_table.slice(0, 1000).set_column(6, "buy", zeros)
    settings = BacktestSettings(column="day")
    file = folder / f"day={DAYS[3]}" / "part-0.parquet"
    pq.write_table(part, file)
    result = backtest(config(), tmp_path / "out", settings)
    last = result["days"][-1]["tasks"]["buy"]
    assert last["auc"] is None and last["positives"] == 0
    assert result["total"]["buy"]["auc"] is not None

    first = folder / f"day={DAYS[0]}" / "part-0.parquet"
    pq.write_table(part, first)
    with pytest.raises(
        ValueError, match=r"backtest, day 2024-01-30 \(tested on 2024-01-31\): .*buy"
    ):
        backtest(config(), tmp_path / "none", settings)
    assert not (tmp_path / "none").exists()


UTC = dt.UTC


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (pa.array([dt.date(2024, 1, 31), dt.date(1969, 12, 31)]), ["2024-01-31", "1969-12-31"]),
        (
            pa.array([dt.datetime(2024, 1, 31, 23, 59, 59), dt.datetime(2024, 2, 1)]),
            ["2024-01-31", "2024-02-01"],
        ),
        (
            pa.array(
                [dt.datetime(2024, 1, 31, 23, 30, tzinfo=UTC)], pa.timestamp("ms", "Asia/Tokyo")
            ),
            ["2024-01-31"],
        ),
        (pa.array(["2024-01-31T10:00:00", "2024-02-01T00:00:00"]), ["2024-01-31", "2024-02-01"]),
        (pa.array([1706659200, 1706659199]), ["2024-01-31", "2024-01-30"]),
        (pa.array([1706659200000, 1706659199999]), ["2024-01-31", "2024-01-30"]),
        (pa.array([20240131, 20240201]), ["20240131", "20240201"]),
        (pa.array(["7", "12"]), ["7", "12"]),
        (pa.array([3.0, 4.0]), ["3", "4"]),
    ],
)
def test_days_of_every_kind_of_column(column, names):
    days_N, dated = days_of(pa.table({"day": column}), "day", "log")
    assert [str(Day(number, dated)) for number in days_N.tolist()] == names
    assert [Day.parse(name) for name in names] == [Day(n, dated) for n in days_N.tolist()]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], r"log: row 2: column 'day' is empty"),
        ([1.5, 2.0], r"column 'day' holds numbers with a fraction, expected days"),
        ([5, 1706659200], r"column 'day' holds 5 as well as 1706659200: days, or moments"),
        (["Monday"], r"column 'day' .*cannot be ordered in time \(such as 'Monday'\)"),
    ],
)
def test_columns_without_days_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        days_of(pa.table({"day": values}), "day", "log")


def test_a_split_by_day_leaves_other_days_out():
    split = SplitConfig(by="day", column="day", train_days=["1", "2"], test_days=["4"])
    table = pa.table({"day": np.repeat(np.arange(6), 50), "row": np.arange(300)})
    train, validation, test = split_table(table, split, 1, "log")
    assert set(test["day"].to_pylist()) == {4}
    assert sorted(train["row"].to_pylist() + validation["row"].to_pylist()) == list(range(50, 150))
    assert 2 <= validation.num_rows <= 20
    split_N = day_splits(table, split, 1, "log")
    pieces = [
        day_splits(table.slice(start, 70), split, 1, "log", start) for start in range(0, 300, 70)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), split_N)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by": "day", "column": "day"}, "split by day needs `train_days`"),
        ({"by": "random", "test_days": ["1"]}, "split by random takes no `test_days`; remove it"),
        (
            {"by": "day", "column": "day", "train_days": [1, 2], "test_days": [2]},
            "2 is among train_days and test_days; choose one",
        ),
    ],
)
def test_days_belong_to_a_split_by_day(funnel_config, split, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict({**funnel_config, "data": {"split": split}})


def test_a_day_without_rows_is_named():
    table = pa.table({"day": [dt.date(2024, 1, 30)] * 30})
    kwargs = {"by": "day", "column": "day", "train_days": ["2024-01-30"]}
    with pytest.raises(ValueError, match=r"the test split is empty, out of 30 rows; column 'day' "
                       r"has no rows, or too few, on 2024-01-31"):  # fmt: skip
        split_table(table, SplitConfig(**kwargs, test_days=["2024-01-31"]), 1, "log")
    with pytest.raises(ValueError, match=r"holds dates, but data\.split names the day 7; write"):
        split_table(table, SplitConfig(**kwargs, test_days=["7"]), 1, "log")
    with pytest.raises(ValueError, match="'yesterday' is no day; write 2024-01-31, or a whole"):
        split_table(table, SplitConfig(**kwargs, test_days=["yesterday"]), 1, "log")


def test_a_walk_that_another_process_makes_is_left_alone(config, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_MOMENT", 0.0)
    settings, out = BacktestSettings(column="day", days=1), tmp_path / "out"
    with FolderClaim("backtest") as live:
        live.create(out)
        for resume, message in ((True, "trains into it already"), (False, "exists already")):
            with pytest.raises(ValueError, match=message):
                backtest(config(), out, settings, resume=resume)
        assert sorted(path.name for path in out.iterdir()) == [
            ".mmoe.lock",
            "mmoe.json",
            "mmoe.lock",
        ]
    backtest(config(), out, settings, resume=True)
    assert not (out / "mmoe.lock").exists()


def test_a_walk_knows_its_folder_when_it_is_interrupted(config, tmp_path, dies_after):
    settings, out = BacktestSettings(column="day", days=1), tmp_path / "out"
    out.mkdir()
    with pytest.raises(Interrupted) as stopped:
        backtest(config(), out, settings, reporter=dies_after(1), numbered=True)
    assert stopped.value.folder == tmp_path / "out-2"
    assert not list(out.iterdir())


def test_a_walk_that_failed_leaves_what_was_there(config, tmp_path):
    settings, out = BacktestSettings(column="day", days=1), tmp_path / "out"
    out.mkdir()
    with pytest.raises(ValueError, match=r"backtest, day .*diverge|backtest, day .*the loss"):
        backtest(config("training.optimizer.learning_rate=1e30"), out, settings)
    assert not list(out.iterdir()), "the folder is not the walk's own"
    for name in ("notes.txt", ".plan.json.mine.tmp"):
        (out / name).write_text("mine")
    with pytest.raises(ValueError, match=r"out: holds no backtest to continue"):
        backtest(config(), out, settings, resume=True)
    assert len(list(out.iterdir())) == 2

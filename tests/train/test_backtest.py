"""Walking forward over days: what trains, what is tested, totals, resuming, errors."""

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from mmoe.config import SplitConfig, config_from_dict, set_values
from mmoe.datasets.files import fingerprint
from mmoe.datasets.rows.splits import Day, day_splits, days_of, split_table
from mmoe.metrics import auc, task_metrics
from mmoe.run import RunDirectory
from mmoe.run.console import backtest_table
from mmoe.train import Interrupted, evaluate_run
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


def test_the_total_is_of_all_rows_together_and_groups_go_on_over_days(config, folder, tmp_path):
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
    label_N, score_N = (together[f"{of}_click"].to_numpy() for of in ("label", "pred"))
    expected, _ = task_metrics("binary", label_N, score_N, groups=groups)
    assert together["group_hash"].null_count == 400
    total = result["total"]["click"]
    assert total["rows"] == 2000
    for name in ("auc", "gauc", "ne", "calibration"):
        assert total[name] == pytest.approx(expected[name], abs=1e-12), name
    assert total["auc"] == pytest.approx(auc(label_N, score_N), abs=1e-12)
    assert total["auc"] != result["days"][0]["tasks"]["click"]["auc"]


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


def test_streamed_as_in_memory_and_printed(config, tmp_path):
    """As a table that fits into a terminal."""
    settings = BacktestSettings(column="day", days=2)
    held, streamed = (
        backtest(config(f"data.input={how}"), tmp_path / how, settings)
        for how in ("memory", "stream")
    )
    assert held == streamed
    console = Console(width=200, record=True, file=(tmp_path / "table.txt").open("w"))
    console.print(backtest_table(held))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [
        "trained", "tested", "task", "AUC", "GAUC", "NE", "calib.", "rows", "positives",
    ]  # fmt: skip
    assert lines[3].split()[:3] == [DAYS[2], DAYS[3], "click"]
    assert lines[-2].split()[:2] == ["total", "click"]
    assert len(lines) == 1 + 2 * 3


def _without_a_walk(folder: Path) -> dict[str, dict]:
    return {
        path.parent.name: json.loads(path.read_text())["tasks"]
        for path in sorted(folder.glob("*/metrics.json"))
    }


def test_a_killed_walk_goes_on_with_the_first_unfinished_day(config, tmp_path, dies_after):
    settings = BacktestSettings(column="day")
    whole = backtest(config(), tmp_path / "whole", settings)
    with pytest.raises(KeyboardInterrupt):
        backtest(config(), tmp_path / "broken", settings, reporter=dies_after(4))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("broken/*/predictions.parquet")}
    assert len(done) == 1  # three steps a day
    assert backtest(config(), tmp_path / "broken", settings, resume=True) == whole
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    assert _without_a_walk(tmp_path / "broken") == _without_a_walk(tmp_path / "whole")


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


def test_a_log_in_one_file_takes_in_days(config, folder, tmp_path, dies_after):
    """The killed walk goes on; nothing old is done again."""
    log, settings = tmp_path / "log.parquet", BacktestSettings(column="day")
    whole = pq.read_table(folder)
    whole = whole.set_column(whole.column_names.index("day"), "day", whole["day"].cast(pa.string()))
    pq.write_table(whole.slice(0, 3000), log)
    with pytest.raises(KeyboardInterrupt):
        backtest(config(f"data.path={log}"), tmp_path / "out", settings, reporter=dies_after(5))
    pq.write_table(whole, log)
    result = backtest(config(f"data.path={log}"), tmp_path / "out", settings, resume=True)
    assert [day["test_day"] for day in result["days"]] == DAYS[1:]


def test_a_walk_goes_on_and_another_one_in_its_folder_is_refused(config, tmp_path, monkeypatch):
    """Each file is looked at once; the version that began it may have known fewer keys."""
    settings = BacktestSettings(column="day", days=1)
    first = backtest(config(), tmp_path / "out", settings)
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    del plan["config"]["model"]["expert"]["output_activation"]
    (tmp_path / "out" / "plan.json").write_text(json.dumps(plan))
    seen, look_at = [], fingerprint._look_at
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_look_at", lambda file: seen.append(file) or look_at(file))
        assert backtest(config(), tmp_path / "out", settings, resume=True) == first
    assert len(seen) == len(set(seen)) > 0
    with pytest.raises(ValueError, match=r"out: exists already; continue it with --resume"):
        backtest(config(), tmp_path / "out", settings)
    with pytest.raises(ValueError, match=r"out: was begun otherwise \(config.seed: 3 there, 4 he"):
        backtest(config("seed=4"), tmp_path / "out", settings, resume=True)
    with pytest.raises(
        ValueError, match=r"it tested 2024-02-03 to 2024-02-03, .*fewer.* --days 1\)"
    ):
        backtest(config(), tmp_path / "out", BacktestSettings(column="day"), resume=True)


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
    with pytest.raises(ValueError, match=r"out: holds no backtest .*there is no mmoe.json"):
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


def test_from_scratch_begins_anew_every_day(config, tmp_path):
    settings = BacktestSettings(column="day", from_scratch=True, days=1)
    backtest(config(), tmp_path / "out", settings)
    [run] = (tmp_path / "out").glob("trained-*")
    assert not (run / "warm_start.json").exists()
    assert RunDirectory(run).metrics()["train"]["rows"] > 2500  # of 3,000: a tenth validates

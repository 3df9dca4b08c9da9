"""Rows of a Spark DataFrame, scored by real Python workers of a local Spark."""

import datetime as dt
import decimal
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.integrations import spark
from mmoe.score import score_files
from mmoe.train import train_run
from tests.mapped_pages import mapped_pages

pytest.importorskip("pyspark", reason="pyspark is not installed")
if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
    pytest.skip("there is no Java", allow_module_level=True)

FUSED = {"value": "click^0.7 * buy * price"}


@pytest.fixture(scope="module", name="cache", autouse=True)
def _cache(tmp_path_factory):
    """Of this module's workers too: they inherit the variable."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMOE_CACHE", str(folder))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # The workers' modules are this process's
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        yield folder


@pytest.fixture(scope="module", name="session")
def _session(cache, tmp_path_factory):
    room = tmp_path_factory.mktemp("spark")
    session = spark.local_session(
        2,
        {
            "spark.sql.warehouse.dir": str(room / "warehouse"),
            "spark.local.dir": str(room / "local"),
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "3",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module", name="run")
def _run(funnel_config, train_funnel):
    return train_funnel(funnel_config)


@pytest.fixture(scope="module", name="log")
def _log(funnel_table, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(funnel_table, path)
    return path


@pytest.fixture(scope="module", name="expected")
def _expected(run, log, tmp_path_factory):
    """What the local engine writes, by the row's number."""
    out = tmp_path_factory.mktemp("scores") / "scores.parquet"
    score_files(run, log, out, keep=["row"], fused=FUSED)
    return pq.read_table(out)


def in_order(scored):
    return scored.toArrow().sort_by("row")


def same_bits(found, expected):
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        mine, theirs = (table[name].to_numpy() for table in (found, expected))
        assert mine.dtype == theirs.dtype, name
        assert mine.tobytes() == theirs.tobytes(), name


@pytest.mark.parametrize(("parts", "batch"), [(1, 10_000), (2, 4_000), (5, 137), (7, 64)])
def test_bits_are_those_of_the_local_engine(session, run, log, expected, parts, batch):
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch))
    rows = session.read.parquet(str(log)).repartition(parts)
    scored = spark.score(rows, run.path, keep=["row"], fused=FUSED)
    assert scored.schema == spark.schema(rows, run.path, keep=["row"], fused=FUSED)
    same_bits(in_order(scored), expected)


def test_workers_are_forked_with_what_scores(session):
    def look(_):
        parent = Path(f"/proc/{os.getppid()}")
        loaded = "libtorch_cpu" in (parent / "maps").read_text()
        yield (parent / "cmdline").read_bytes().split(b"\0")[2].decode(), loaded

    found = session.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert found == [("mmoe.integrations.spark_daemon", True)]


def test_no_python_thread_runs_where_workers_are_forked():
    asks = (
        "import threading; from mmoe.integrations.spark_daemon import import_what_scores; "
        "import_what_scores(); print(threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_all_columns_are_kept_unless_told(session, run, log, expected):
    rows = session.read.parquet(str(log))
    scored = spark.score(rows, run.path, tasks=["buy"])
    assert scored.columns == [*rows.columns, "pred_buy"]
    assert scored.schema == spark.schema(rows, run.path, tasks=["buy"])
    found = in_order(scored)
    assert found["pred_buy"].to_numpy().tobytes() == expected["pred_buy"].to_numpy().tobytes()
    assert found["tags"].to_pylist() == pq.read_table(log)["tags"].to_pylist()


def test_an_order_of_kept_columns_is_kept(session, run, log):
    rows = session.read.parquet(str(log)).limit(3)
    scored = spark.score(rows, run.path, keep=["tags", "row"])
    assert scored.columns == ["tags", "row", "pred_click", "pred_buy"]
    assert len(scored.collect()) == 3


def test_no_rows(session, run, log):
    rows = session.read.parquet(str(log)).where("row < 0")
    scored = spark.score(rows, run.path, keep=["row"])
    assert scored.toArrow().num_rows == 0
    assert scored.columns == ["row", "pred_click", "pred_buy"]


def test_kept_columns_of_any_type_pass_through(session, run, log):
    made = session.read.parquet(str(log)).selectExpr(
        "*",
        "cast(price as decimal(20, 6)) as money",
        "timestamp'2024-01-31 12:30:00.123456' + make_interval(0, 0, 0, 0, 0, 0, row) as at",
        "cast(timestamp'2024-01-31 12:30:00' as timestamp_ntz) as at_ntz",
        "date'2024-01-31' as day",
        "array(row, row + 1) as numbers",
        "struct(row as n, item as `what.it is`, array(struct(price as p)) as inner) as nested",
        "map(item, price) as prices",
        "cast(item as binary) as bytes",
        "if(row % 2 = 0, null, true) as flag",
        "cast(row % 100 as tinyint) as tiny",
        "cast(null as string) as nothing",
        "interval '2' day as span",
        "row as `a.b c`",
    )
    same = [name for name in made.columns if name not in ("click", "buy")]
    scored = spark.score(made, run.path, keep=same)
    quoted = [f"`{name}`" for name in same]
    assert scored.select(quoted).schema == made.select(quoted).schema
    found = {row["row"]: row for row in scored.select(quoted).limit(50).collect()}
    there = {row["row"]: row for row in made.select(quoted).collect()}
    assert len(found) == 50
    assert all(found[n] == there[n] for n in found)
    row = found[3]
    assert isinstance(row["money"], decimal.Decimal)
    assert row["nested"]["what.it is"] == row["item"]
    assert isinstance(row["at"], dt.datetime)


def test_large_types_of_arrow(session, run, log, expected):
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        scored = spark.score(session.read.parquet(str(log)), run.path, keep=["row"], fused=FUSED)
        same_bits(in_order(scored), expected)
    finally:
        session.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_tables_in_fewer_bits(session, run, log, tmp_path, precision):
    score_files(run, log, tmp_path / "s.parquet", keep=["row"], table_precision=precision)
    rows = session.read.parquet(str(log)).repartition(3)
    scored = spark.score(rows, run.path, keep=["row"], table_precision=precision)
    same_bits(in_order(scored), pq.read_table(tmp_path / "s.parquet"))


def test_scores_are_written_and_joined_as_any_dataframe(session, run, log, expected, tmp_path):
    rows = session.read.parquet(str(log))
    scored = spark.score(rows, f"file://{run.path}", keep=["row"])
    scored.write.parquet(str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == expected.num_rows
    assert scored.join(rows, "row").where("pred_click > 0.5 and click = 1").count() > 0


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (["-price"], {}, r"^df: there is no column 'price', which feature 'price' needs"),
        (
            ["-price", "-item"],
            {"keep": ["row", "what"]},
            r"^df: lacks 3 columns that are needed: 'what' \(keep\), 'item' \(.*\), 'price' \(",
        ),
        ([], {"tasks": ["clik"]}, "click"),
        (["row as pred_click"], {}, "pred_click"),
        (["row as row"], {}, "^df: 2 columns are called 'row'; rename"),
        (
            [],
            {"fused": {"value": "click * prise"}},
            "^df: .*'prise', which fused column 'value' needs",
        ),
        ([], {"fused": {"value": "click *"}}, "^fused column 'value': "),
        (["make_interval(1) as period"], {}, "^df: column 'period' is interval, which Spark"),
    ],
)
def test_errors_come_on_the_driver_on_one_line(session, run, log, change, arguments, says):
    rows = session.read.parquet(str(log))
    for what in change:
        rows = rows.drop(what[1:]) if what.startswith("-") else rows.selectExpr("*", what)
    with pytest.raises(ValueError, match=says) as caught:
        spark.score(rows, run.path, **arguments)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=says):
        spark.schema(rows, run.path, **arguments)


def test_a_column_that_is_only_read_may_be_called_as_a_prediction(session, run, log):
    rows = session.read.parquet(str(log)).selectExpr("*", "row as pred_click")
    assert spark.score(rows, run.path, keep=["row"]).columns == ["row", "pred_click", "pred_buy"]


def test_what_is_no_dataframe_of_spark(run, funnel_table):
    with pytest.raises(ValueError, match=r"^df: expected a DataFrame of Spark, got pandas"):
        spark.score(funnel_table.to_pandas(), run.path)
    with pytest.raises(ValueError, match="there is no such run directory"):
        spark.score(_a_dataframe(), run.path / "none")


def _a_dataframe():
    return spark.local_session().range(3)


def test_without_pyspark_or_java(session, run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyspark.sql", None)
        with pytest.raises(ValueError, match=r"^pyspark cannot be imported .*mmoe\[spark\]"):
            spark.score(None, run.path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"^Spark needs Java 17, .*openjdk-17-jre-headless"):
        spark.local_session()


def test_a_value_that_does_not_fit_is_told(session, run, log):
    rows = session.read.parquet(str(log)).withColumn("price", _text("price"))
    with pytest.raises(Exception, match="column 'price'"):
        spark.score(rows, run.path, keep=["row"]).collect()


def _text(name):
    from pyspark.sql import functions

    return functions.concat(functions.lit("x"), functions.col(name))


def test_a_run_that_was_trained_again_is_not_mixed_with_the_old(session, run, log, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    scored = spark.score(session.read.parquet(str(log)), copy, keep=["row"])
    assert len(scored.take(1)) == 1
    with (copy / "config.yaml").open("a") as file:
        file.write("\n# another\n")
    again = spark.score(session.read.parquet(str(log)), copy, keep=["row"])
    assert len(again.take(1)) == 1
    old = spark.score(session.read.parquet(str(log)), copy, keep=["user"])
    with (copy / "config.yaml").open("a") as file:
        file.write("\n# a third\n")
    with pytest.raises(Exception, match="when the job was made; make it again"):
        old.collect()


def test_workers_share_the_pages_of_the_weights(session, big_run, cache):
    """Both of a host map one file, touch all of it, and together have it in memory once."""
    rows = session.range(0, 2, 1, 2)
    job = _touching(str(big_run.path), str(cache / "there"))
    found = rows.mapInArrow(job, "pid long, rss long, pss long, private long, size long").collect()
    assert len({row["pid"] for row in found}) == 2
    size = found[0]["size"]
    assert size > 190 << 20
    for row in found:
        assert row["rss"] > 0.98 * size
        assert row["pss"] < 0.55 * size
        assert row["private"] < 0.02 * size
    print([row.asDict() for row in found])


def _touching(run, there):
    def touch(batches):
        from mmoe.integrations import spark_daemon as inside
        from mmoe.run import open_run

        list(batches)
        model = inside.model_of(open_run(run))
        scorer = inside.load_once(run, model, (), None)
        for table in scorer.predictor.ranker.embeddings.stored().values():
            float(table.sum())
        _wait_for_both(Path(there))
        pages = mapped_pages(os.getpid(), "weights")
        _wait_for_both(Path(f"{there}-measured"))  # nobody unmaps while another looks
        columns = {name: [count] for name, count in pages.items()}
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], **columns})

    return touch


def _wait_for_both(folder):
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 100
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture(scope="module", name="big_run")
def _big_run(tmp_path_factory):
    """A table of 200 MB, of which training touches a few rows."""
    rng = np.random.default_rng(0)
    rows = pa.table({"item": rng.integers(0, 1 << 40, 600), "click": rng.integers(0, 2, 600)})
    raw = {
        "name": "big",
        "features": [
            {
                "kind": "categorical",
                "name": "item",
                "encoding": "hash",
                "hash_size": 781_000,
                "dim": 64,
            }
        ],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": []}},
        "training": {"epochs": 1, "batch_size": 256, "embedding_backend": "plain"},
    }
    splits = Splits(train=rows[:400], validation=rows[400:500], test=rows[500:], origin="log")
    folder = tmp_path_factory.mktemp("big") / "run"
    return train_run(config_from_dict(raw), folder, splits=splits).directory

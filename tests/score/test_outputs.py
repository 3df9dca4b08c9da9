"""What scoring writes: some tasks, fused columns, pieces of files; one pipeline over many files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.run import RunDirectory
from mmoe.score import Top, file_scorer, score_files
from tests.score.listing import WHOLE, parts
from tests.score.listing import names as names_in


@pytest.fixture(scope="module", name="run")
def _run(funnel_config, train_funnel):
    training = {**funnel_config["training"], "epochs": 1}
    fused = {"fused": {"both": "click * buy"}}
    return train_funnel({**funnel_config, "score": fused, "training": training})


@pytest.fixture(scope="module", name="whole")
def _whole(run, funnel_table, tmp_path_factory):
    """All rows scored into one file: what every other way has to give."""
    folder = tmp_path_factory.mktemp("whole")
    pq.write_table(funnel_table, folder / "log.parquet", row_group_size=700)
    score_files(run, folder / "log.parquet", folder / "scores.parquet", keep=["row"])
    return folder / "log.parquet", pq.read_table(folder / "scores.parquet")


def test_columns_of_the_config_and_of_the_command(run, whole, tmp_path):
    log, expected = whole
    assert expected.column_names == ["row", "pred_click", "pred_buy", "both"]
    click, buy = (expected[f"pred_{t}"].to_numpy().astype(np.float64) for t in ("click", "buy"))
    np.testing.assert_array_equal(expected["both"].to_numpy(), click * buy)
    fused = {"value": "click^0.5 * buy + 0.1 * click", "income": "buy * price"}
    score_files(run, log, tmp_path / "s.parquet", tasks=["buy"], fused=fused)
    found = pq.read_table(tmp_path / "s.parquet")
    assert found.column_names == ["pred_buy", "both", "value", "income"]
    assert found["pred_buy"].equals(expected["pred_buy"])
    np.testing.assert_allclose(
        found["value"].to_numpy(), click**0.5 * buy + 0.1 * click, rtol=1e-12
    )
    price = pq.read_table(log)["price"].to_pandas()
    assert not np.isinf(found["income"].to_pandas()).any()
    np.testing.assert_array_equal(found["income"].to_pandas(), buy * price)  # NaN where missing


def test_fused_columns_do_not_depend_on_other_rows(run, whole, funnel_table, tmp_path):
    log, _ = whole
    order = np.random.default_rng(3).permutation(len(funnel_table))
    pq.write_table(funnel_table.take(order), tmp_path / "turned.parquet")
    fused = {"value": "log(click) + exp(buy) ** 0.3 + sqrt(buy)"}
    score_files(run, log, tmp_path / "a.parquet", fused=fused)
    score_files(run, tmp_path / "turned.parquet", tmp_path / "b.parquet", fused=fused)
    a, b = (pq.read_table(tmp_path / f"{name}.parquet")["value"].to_numpy() for name in "ab")
    assert np.array_equal(a[order], b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["clik"]}, r"--tasks clik: the run has no such task \(did you mean 'click'\?"),
        ({"fused": {"v": "click * prise"}}, r"no column 'prise', which fused column 'v' needs"),
        ({"fused": {"v": "click *"}}, r"fused column 'v': 'click \*' is no column"),
        ({"fused": {"pred_buy": "click"}}, r"fused column 'pred_buy': the predictions are called"),
        ({"fused": {"v": "click"}, "keep": ["v"]}, r"no column 'v', which --keep needs"),
        ({"fused": {"row": "click"}, "keep": ["row"]}, r"--keep row: a column that is written be"),
        ({"tasks": []}, "--tasks: expected one at least; there: click, buy"),
        ({"fused": {"v": "__import__('os')"}}, r"fused column 'v', .*: .* is not"),
        ({"rows_per_file": 100}, r"--rows-per-file with --output .*: that is one file; name a fol"),
    ],
    ids=["task", "column", "syntax", "name", "keep", "both", "none", "call", "pieces"],
)
def test_what_cannot_be_written_is_refused(run, whole, tmp_path, options, message):
    log, _ = whole
    with pytest.raises(ValueError, match=message):
        score_files(run, log, tmp_path / "out" / "s.parquet", **options)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("rows_per_file", [1400, 10_000])
def test_pieces_of_a_file_are_the_file(run, whole, tmp_path, monkeypatch, rows_per_file):
    """eval_batch_size is 512; row groups are of 700."""
    monkeypatch.setattr(file_scorer, "ROWS_PER_CHUNK", 300)
    log, expected = whole
    out = tmp_path / "scores"
    assert score_files(run, log, out, keep=["row"], rows_per_file=rows_per_file) == 4000
    height = max(512, rows_per_file // 512 * 512)
    names = [f"00000-log-{n:05d}.parquet" for n in range(-(-4000 // height))]
    assert names_in(out) == [*names, *WHOLE]
    found = [pq.read_table(out / name) for name in names]
    assert {len(part) for part in found[:-1]} <= {height}
    assert pa.concat_tables(found).equals(expected)

    (out / names[-1]).unlink()
    again = {"keep": ["row"], "resume": True}
    assert score_files(run, log, out, rows_per_file=rows_per_file, **again) == len(found[-1])
    with pytest.raises(
        ValueError, match=r"belongs to none of the input files; resume with the same"
    ):
        score_files(run, log, out, **again)
    if len(names) > 2:
        (out / names[-1]).unlink()
        with pytest.raises(
            ValueError, match=r"with the rows .*, and now the rows is|same --rows-per"
        ):
            score_files(run, log, out, rows_per_file=height + 512, **again)


def test_small_chunks_become_large_row_groups(run, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(file_scorer, "ROWS_PER_CHUNK", 300)
    log, expected = whole
    score_files(RunDirectory.open(run.path), log, tmp_path / "s.parquet", keep=["row"])
    assert pq.read_metadata(tmp_path / "s.parquet").num_row_groups == 1
    assert pq.read_table(tmp_path / "s.parquet").equals(expected)


def test_the_best_of_each_user(run, whole, tmp_path):
    log, _ = whole
    score_files(run, log, tmp_path / "all.parquet", keep=["user", "row"])
    score_files(
        run, log, tmp_path / "best.parquet", keep=["row"], top=Top(2, per="user", by="both")
    )
    found = pq.read_table(tmp_path / "best.parquet").to_pandas()
    assert found.columns.tolist() == ["user", "row", "pred_click", "pred_buy", "both", "rank"]
    frame = pq.read_table(tmp_path / "all.parquet").to_pandas()
    best = frame.sort_values("both", ascending=False, kind="stable").groupby("user").head(2)
    assert sorted(found.row) == sorted(best.row)
    assert (found.groupby("user")["rank"].max() <= 2).all()

    with pytest.raises(ValueError, match=r"--by clik: expected one of the columns pred_click, pr"):
        score_files(run, log, tmp_path / "c.parquet", top=Top(2, per="user", by="clik"))
    with pytest.raises(ValueError, match=r"no column 'usr', which --per needs"):
        score_files(run, log, tmp_path / "c.parquet", top=Top(2, per="usr", by="click"))
    with pytest.raises(ValueError, match=r"--top with --output .*: the best of all rows are one"):
        score_files(run, log, tmp_path / "folder", top=Top(2, per="user", by="click"))
    top = Top(2, per="user", by="rank")
    with pytest.raises(ValueError, match=r"--top adds a column 'rank'; give that of --fuse anoth"):
        score_files(run, log, tmp_path / "c.parquet", fused={"rank": "click"}, top=top)
    with pytest.raises(ValueError, match=r"column 'tags' of --per holds .*; name one of single v"):
        score_files(run, log, tmp_path / "c.parquet", top=Top(2, per="tags", by="click"))
    ranked = pq.read_table(log).append_column("rank", pa.nulls(4000))
    pq.write_table(ranked, tmp_path / "log.parquet")
    options = {"keep": ["rank"], "top": Top(2, per="user", by="click")}
    with pytest.raises(ValueError, match=r"--keep rank: a column that is written beside it is"):
        score_files(run, tmp_path / "log.parquet", tmp_path / "c.parquet", **options)


def test_partitions_of_the_input_are_those_of_the_scores(run, whole, funnel_table, tmp_path):
    _, expected = whole
    log, out = tmp_path / "log", tmp_path / "scores"
    for n, folder in enumerate(["day=1/kind=a", "day=1/kind=b", "day=2/kind=a%2F"]):
        (log / folder).mkdir(parents=True)
        pq.write_table(funnel_table[n * 50 : (n + 1) * 50], log / folder / "part.parquet")
    names = ["day=1/kind=a/00000-part.parquet", "day=1/kind=b/00001-part.parquet",
             "day=2/kind=a%2F/00002-part.parquet"]  # fmt: skip
    assert score_files(run, log, out, keep=["row"]) == 150
    found = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.parquet"))
    assert found == names
    rows = pa.concat_tables([pq.ParquetFile(out / name).read() for name in names])
    assert rows.equals(expected[:150])
    assert pq.read_table(out)["day"].to_pylist() == [1] * 100 + [2] * 50
    assert score_files(run, log, tmp_path / "kept", keep=["day", "row", "row"]) == 150
    assert pq.read_table(tmp_path / "kept")["day"].to_pylist() == [1] * 100 + [2] * 50
    (log / "day=1/kind=b/part.parquet").unlink()
    assert score_files(run, log, out, keep=["row"], mode="overwrite") == 100
    assert not (out / names[1]).exists()
    assert (out / "day=2/kind=a%2F/00001-part.parquet").exists()
    assert not (out / names[2]).exists()
    assert not (out / "day=1/kind=b").exists(), "no empty folder stays"


def test_a_day_into_its_own_folder(run, funnel_table, tmp_path):
    day = tmp_path / "log" / "day=1"
    day.mkdir(parents=True)
    pq.write_table(funnel_table[:50], day / "part.parquet")
    score_files(run, day, tmp_path / "scores" / "day=1")
    assert parts(tmp_path / "scores" / "day=1") == ["00000-part.parquet"]
    score_files(run, day, tmp_path / "all")
    assert (tmp_path / "all" / "day=1" / "00000-part.parquet").exists()

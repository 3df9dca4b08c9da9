"""Scoring files: the same numbers as evaluation, whatever the layout; nothing half-written."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.rows.encoded import EncodedData
from mmoe.embeddings import torchrec_problem
from mmoe.run import RunDirectory
from mmoe.run.atomic_files import temporary_beside
from mmoe.score import file_scorer, load_predictor, score_files, scorer
from mmoe.score.provenance import KEY
from mmoe.train import evaluate_run
from tests.runs import Listens
from tests.score.listing import WHOLE, contents, parts
from tests.score.listing import names as names_in

DEAD = 2**22 + 1  # beyond Linux's largest process
TASKS = ["pred_click", "pred_buy"]
RUNS = [("plain", "softmax"), ("torchrec", "top_k")]


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def each(request, funnel_config, train_funnel):
    """A run of either backend, whose gates use all experts or pick some."""
    backend, routing = request.param
    if backend == "torchrec" and torchrec_problem():
        pytest.skip(torchrec_problem())
    training = {**funnel_config["training"], "embedding_backend": backend, "epochs": 1}
    execution = "grouped" if routing == "top_k" else "auto"
    model = {**funnel_config["model"], "gate": {"kind": routing}, "execution": execution}
    return train_funnel({**funnel_config, "training": training, "model": model})


def _predictions(run, table):
    """What evaluation predicts."""
    predictor, encoder, _ = load_predictor(run)
    return predictor.predict(EncodedData(features=encoder.encode(table, "log")))


@pytest.fixture(scope="module", name="expected")
def _expected(each, funnel_table):
    return _predictions(each, funnel_table)


def temporary_of(process: int, name: str) -> str:
    """What a process of this machine calls a file while it writes it."""
    mine = temporary_beside(Path(name)).name
    return mine.replace(f"-{os.getpid()}.tmp", f"-{process}.tmp")


def _scores(path) -> np.ndarray:
    table = pq.read_table(path)
    return np.stack([table[name].to_numpy() for name in TASKS], axis=1)


def test_scores_equal_evaluation_bit_for_bit(each, expected, funnel_table, tmp_path):
    pq.write_table(funnel_table, tmp_path / "log.parquet", row_group_size=700)
    out = tmp_path / "scores.parquet"
    rows = score_files(each, tmp_path / "log.parquet", out, keep=["row", "item"])
    scored = pq.read_table(out)
    assert rows == scored.num_rows == 4000
    assert scored.column_names == ["row", "item", *TASKS]
    assert scored.select(["row", "item"]).equals(funnel_table.select(["row", "item"]))
    assert scored["pred_click"].type == pa.float32()
    assert np.array_equal(_scores(out), expected)
    assert expected.std(axis=0).min() > 0, "scores differ between rows"


def test_a_score_depends_on_no_other_row(each, expected, funnel_table, tmp_path):
    order = np.random.default_rng(1).permutation(4000)
    shuffled = funnel_table.take(order)
    pq.write_table(shuffled, tmp_path / "shuffled.parquet")
    score_files(each, tmp_path / "shuffled.parquet", tmp_path / "a.parquet")
    assert np.array_equal(_scores(tmp_path / "a.parquet"), expected[order])

    pq.write_table(funnel_table[17:18], tmp_path / "one.parquet")
    score_files(each, tmp_path / "one.parquet", tmp_path / "b.parquet")
    assert np.array_equal(_scores(tmp_path / "b.parquet"), expected[17:18])

    (tmp_path / "many").mkdir()
    for part in range(5):
        pq.write_table(
            funnel_table[part * 800 : (part + 1) * 800], tmp_path / "many" / f"p{part}.parquet"
        )
    score_files(each, tmp_path / "many", tmp_path / "c.parquet")
    assert np.array_equal(_scores(tmp_path / "c.parquet"), expected)


@pytest.mark.parametrize("height", [1000, 17])
def test_any_batch_height_keeps_the_bits(each, funnel_table, tmp_path, height):
    folder = tmp_path / "run"
    shutil.copytree(each.path, folder)
    config = folder / "config.yaml"
    config.write_text(
        config.read_text().replace("eval_batch_size: 512", f"eval_batch_size: {height}")
    )
    copied, order = RunDirectory.open(folder), np.random.default_rng(2).permutation(2000)
    whole = _predictions(copied, funnel_table[:2000])
    shuffled = _predictions(copied, funnel_table[:2000].take(order))
    assert np.array_equal(whole[order], shuffled)


def with_prices(table, change):
    prices = table["price"].to_pylist()
    change(prices)
    return table.set_column(3, "price", pa.array(prices))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda t: t,
            {"keep": ["itm"]},
            r"no column 'itm', which --keep needs \(did you mean 'item",
        ),
        (
            lambda t: t.append_column("pred_buy", t["row"]),
            {"keep": ["pred_buy"]},
            "rename the column",
        ),
        (
            lambda t: t.set_column(3, "price", pa.array(["dear"] * len(t))),
            {},
            "column 'price' .* is 'dear', expected a number",
        ),
        (
            lambda t: with_prices(t, lambda prices: prices.__setitem__(3999, np.inf)),
            {},
            r"price.*inf|inf.*price",
        ),
    ],
    ids=["keep", "clash", "text", "a late row"],
)
def test_bad_input_writes_nothing(run, funnel_table, tmp_path, change, options, message):
    pq.write_table(change(funnel_table), tmp_path / "log.parquet")
    for out in ("s.parquet", "folder"):
        with pytest.raises(ValueError, match=message):
            score_files(run, tmp_path / "log.parquet", tmp_path / "out" / out, **options)
    assert not [path for path in tmp_path.glob("out/**/*") if path.is_file()]


def test_kept_integers_are_not_rounded(run, funnel_table, tmp_path):
    (tmp_path / "parts").mkdir()

    def write(part, column):
        table = funnel_table[:20].append_column("extra", column)
        pq.write_table(table, tmp_path / "parts" / f"p{part}.parquet")

    write(0, pa.array(range(-1, 19)))
    write(1, pa.array([2**64 - 20 + n for n in range(20)], pa.uint64()))
    score_files(run, tmp_path / "parts", tmp_path / "s.parquet", keep=["extra"])
    extra = pq.read_table(tmp_path / "s.parquet")["extra"].to_pylist()
    assert extra == [*range(-1, 19), *range(2**64 - 20, 2**64)]
    write(1, pa.array(range(20), pa.uint64()))
    score_files(run, tmp_path / "parts", tmp_path / "u.parquet", keep=["extra"])
    assert pq.read_table(tmp_path / "u.parquet")["extra"].type == pa.int64()
    write(0, pa.array([2**53 + 1] * 20))
    write(1, pa.array([0.5] * 20))
    with pytest.raises(ValueError, match=r"parts: column 'extra', to be kept, .* would round it"):
        score_files(run, tmp_path / "parts", tmp_path / "t.parquet", keep=["extra"])
    assert not list(tmp_path.glob("*t.parquet*"))


def test_evaluate_on_a_file_counts_observed_rows(run, funnel_table, tmp_path):
    pq.write_table(funnel_table[3300:], tmp_path / "test.parquet")
    metrics = evaluate_run(run, tmp_path / "test.parquet")
    stored = run.metrics()
    assert metrics["tasks"] == stored["tasks"]
    clicks = int(np.sum(funnel_table["click"].to_numpy()[3300:]))
    assert metrics["tasks"]["buy"]["rows"] == clicks


def test_an_existing_output_is_left_alone(run, funnel_table, tmp_path):
    pq.write_table(funnel_table[:5], tmp_path / "log.parquet")
    out = tmp_path / "mine.parquet"
    out.write_text("mine")
    with pytest.raises(ValueError, match=r"exists already; remove it, choose another name"):
        score_files(run, tmp_path / "log.parquet", out)
    assert out.read_text() == "mine"
    score_files(run, tmp_path / "log.parquet", out, mode="overwrite")
    assert pq.read_table(out).num_rows == 5
    with pytest.raises(ValueError, match=r"written as Parquet; end the name in .parquet"):
        score_files(run, tmp_path / "log.parquet", tmp_path / "scores.csv")
    with pytest.raises(ValueError, match=r"holds log.parquet, which --input .*log.parquet reads"):
        score_files(run, tmp_path / "log.parquet", tmp_path, mode="overwrite")
    with pytest.raises(ValueError, match=r"written whole or not at all; name a folder"):
        score_files(run, tmp_path / "log.parquet", out, resume=True)


def test_a_folder_gets_a_file_for_each_input_file(run, funnel_table, tmp_path):
    for part in range(3):
        pq.write_table(funnel_table[part * 900 : (part + 1) * 900], tmp_path / f"p{part}.parquet")
    out = tmp_path / "out" / "scores"
    source = str(tmp_path / "*.parquet")
    assert score_files(run, source, out) == 2700
    names = [f"0000{part}-p{part}.parquet" for part in range(3)]
    assert names_in(out) == [*names, *WHOLE]
    assert np.array_equal(_scores(out), _predictions(run, funnel_table[:2700]))

    with pytest.raises(ValueError, match=r"holds scores already; choose another folder, or say"):
        score_files(run, source, out)
    kept = (out / names[0]).stat().st_mtime_ns
    (out / names[1]).unlink()
    (out / temporary_of(DEAD, "00002-p2.parquet")).write_text("half")
    told = Listens()
    assert score_files(run, source, out, resume=True, reporter=told) == 900
    assert told.lines[0] == f"900 rows scored into {out}; 2 of 3 files were there already"
    assert told.lines[1].startswith("unseen ids: ")
    assert score_files(run, source, out, resume=True, reporter=told) == 0
    assert told.lines[2] == f"nothing left to score: 3 of 3 files were in {out} already"
    assert names_in(out) == [*names, *WHOLE]
    assert (out / names[0]).stat().st_mtime_ns == kept
    assert score_files(run, source, out, mode="overwrite") == 2700

    (tmp_path / "p0.parquet").unlink()
    with pytest.raises(ValueError, match=r"holds 00000-p0.parquet, which belongs to none"):
        score_files(run, source, out, resume=True)


def test_a_folder_is_resumed_by_what_began_it_alone(run, funnel_table, tmp_path):
    pq.write_table(funnel_table[:20], tmp_path / "log.parquet")
    out, source = tmp_path / "out", tmp_path / "log.parquet"
    score_files(run, source, out, keep=["user"])
    assert score_files(run, source, out, keep=["user"], resume=True) == 0

    with pytest.raises(ValueError, match=r"scored with --keep user, and now --keep is none"):
        score_files(run, source, out, resume=True)
    with pytest.raises(ValueError, match=r"--table-precision none, and now .* is int8; resume as"):
        score_files(run, source, out, keep=["user"], resume=True, table_precision="int8")
    again = RunDirectory(tmp_path / "again")
    shutil.copytree(run.path, again.path)
    for state in again.checkpoint.glob("step-*/state.json"):
        state.write_text(state.read_text() + " ")  # as if trained once more
    with pytest.raises(ValueError, match=r"scored with the model step-.*, and now the model is"):
        score_files(again, source, out, keep=["user"], resume=True)

    (part,) = parts(out)
    whole = contents(out)
    for damage in (b"", b"not Parquet", whole[part][:-1]):
        (out / part).write_bytes(damage)
        assert score_files(run, source, out, keep=["user"], resume=True) == 20
        assert contents(out) == whole, "the same bits"
    rows = pq.read_table(out / part)
    (out / "_manifest.json").unlink()  # as versions did that wrote none
    for note in ({}, *({KEY: text} for text in (b"[]", b"null", b'"x"', b"{"))):
        pq.write_table(rows.replace_schema_metadata(note), out / part)
        with pytest.raises(ValueError, match=r"holds no note of what scored it; remove it"):
            score_files(run, source, out, keep=["user"], resume=True)
    (out / part).write_bytes(whole[part])
    assert score_files(run, source, out, keep=["user"], resume=True) == 20
    assert contents(out) == whole


def test_a_run_that_changes_while_it_is_read_is_not_scored(
    run, funnel_table, tmp_path, monkeypatch
):
    pq.write_table(funnel_table[:20], tmp_path / "log.parquet")
    again = RunDirectory(tmp_path / "again")
    shutil.copytree(run.path, again.path)
    loaded = scorer.load_predictor

    def load_and_train(*arguments, **named):
        for state in again.checkpoint.glob("step-*/state.json"):
            state.write_text(state.read_text() + " ")
        return loaded(*arguments, **named)

    monkeypatch.setattr(scorer, "load_predictor", load_and_train)
    with pytest.raises(ValueError, match=r"again: was trained while it was read; score again"):
        score_files(again, tmp_path / "log.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Sweeping(Listens):
    """Removes half-written files, as the start of another scoring does."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    @contextmanager
    def track(self, what, total, unit, *, done=0):
        yield self

    def advance(self, amount, note=""):
        for stray in self.folder.rglob(".*.tmp"):
            stray.unlink()


def test_two_scorings_into_one_folder(run, funnel_table, tmp_path, monkeypatch):
    monkeypatch.setattr(file_scorer, "ROWS_PER_CHUNK", 300)
    for part in range(2):
        pq.write_table(funnel_table[part * 900 : (part + 1) * 900], tmp_path / f"p{part}.parquet")
    out = tmp_path / "scores"
    with pytest.raises(ValueError, match=r"was removed while it was written; if another mmoe scor"):
        score_files(run, tmp_path / "*.parquet", out, reporter=Sweeping(out))
    assert parts(out) == []


def test_not_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"there is no such run directory"):
        RunDirectory.open(tmp_path / "none")
    with pytest.raises(
        ValueError, match=r"is not the directory of a trained run, it has no config"
    ):
        RunDirectory.open(tmp_path)


def test_all_columns_that_an_input_lacks_are_listed(run, funnel_table, tmp_path):
    pq.write_table(funnel_table.drop_columns(["price", "item"]), tmp_path / "log.parquet")
    with pytest.raises(
        ValueError,
        match=r"lacks 2 columns that are needed: 'item' \(feature 'item'\), 'price' \(feature",
    ):
        score_files(run, tmp_path / "log.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()

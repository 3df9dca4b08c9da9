"""Whole runs with managed ids: resumed to the bit, scored as evaluated, old ids evicted."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits
from mmoe.embeddings import managed_ids
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import evaluate_run, train_run
from tests.runs import Listens, scores

pytestmark = pytest.mark.torchrec

# 40 users share 25 rows; items and tags share a table that holds them all
MANAGED = (
    "features=[{kind: categorical, name: user, encoding: managed, rows: 25, evict: lru, "
    "evict_every: 1, admit_after: 2}, {kind: categorical, name: item, table: thing}, "
    "{kind: list, name: tags, table: thing}, {kind: numeric, name: price, buckets: 8, dim: 4}]",
    "tables=[{name: thing, encoding: managed, rows: 60, evict_every: 4, dim: 8}]",
    "training.epochs=2",
    "training.batch_size=64",  # not every user is in every window, so that rows change hands
)


@pytest.fixture(name="train")
def _train(funnel_config, log_folder, tmp_path):
    def run(name: str, *overrides: str, resume: bool = False, reporter=None):
        config = config_from_dict(
            set_values(funnel_config, [f"data.path={log_folder}", *MANAGED, *overrides])
        )
        return train_run(config, tmp_path / name, resume=resume, reporter=reporter)

    return run


def _history(folder) -> list[dict]:
    epochs = json.loads((folder / "history.json").read_text())["epochs"]
    return [{k: v for k, v in epoch.items() if "second" not in k} for epoch in epochs]


@pytest.mark.parametrize(
    ("backend", "after", "more"),
    [
        ("plain", 12, ("data.input=stream", "data.streaming.shuffle_buffer_rows=700")),
        ("torchrec", 19, ()),
    ],
)
def test_resume_continues_bit_identically(
    train, log_folder, tmp_path, after, backend, more, assert_same, dies_after
):
    """In the last step of an epoch, in the next one."""
    settings = (f"data.path={log_folder}/part-0.parquet", "training.checkpoint_every_steps=5",
                f"training.embedding_backend={backend}", *more)  # fmt: skip
    whole = train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(after))
    resumed = train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    mine, theirs = (
        CheckpointFolder(tmp_path / name / "checkpoint").training() for name in ("whole", "broken")
    )
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert resumed.metrics["tasks"] == whole.metrics["tasks"]
    assert _history(tmp_path / "whole") == _history(tmp_path / "broken")


def test_streamed_as_in_memory_and_scored_whatever_stands_beside_a_row(
    train, tmp_path, assert_same, funnel_table
):
    streamed = train("stream", "data.input=stream")
    held = train("memory", "data.input=memory")
    assert_same(tmp_path / "stream", tmp_path / "memory")
    assert streamed.metrics["tasks"] == held.metrics["tasks"]
    assert _history(tmp_path / "stream") == _history(tmp_path / "memory")
    assert held.metrics["tasks"]["click"]["auc"] > 0.6, "it learns"
    expected_NP = scores(tmp_path / "memory", funnel_table)
    order = np.random.default_rng(0).permutation(4000)[:1234]
    np.testing.assert_array_equal(
        scores(tmp_path / "memory", funnel_table.take(order)), expected_NP[order]
    )


def test_the_best_weights_come_with_their_own_ids(train, tmp_path):
    """The best epoch is the first: the ids of later ones must not look up its rows."""
    train("run", "training.epochs=4", "training.patience=3", "training.monitor=click.logloss",
          "training.optimizer.learning_rate=0.05")  # fmt: skip
    folder = CheckpointFolder(tmp_path / "run" / "checkpoint")
    best, latest = folder.model("best"), folder.model("latest")
    name = "ids.user._mch_sorted_raw_ids"
    assert not torch.equal(best[name], latest[name]), "users came and went in between"
    predictor, *_ = load_predictor(RunDirectory.open(tmp_path / "run"))
    ids = managed_ids(predictor.ranker.embeddings)
    assert ids is not None
    assert torch.equal(ids.maps()["user._mch_sorted_raw_ids"], best[name])
    assert evaluate_run(RunDirectory.open(tmp_path / "run"))["tasks"] == json.loads(
        (tmp_path / "run" / "metrics.json").read_text()
    )["tasks"]  # fmt: skip


def test_every_epoch_says_how_full_the_tables_are(train, tmp_path):
    listener = Listens()
    train("run", reporter=listener)
    said = [line.strip() for line in listener.lines if line.startswith("  table")]
    first, second = (epoch["ids"] for epoch in _history(tmp_path / "run"))
    assert first["thing"]["in_use"] == 15 + 15, "all items and tags"
    assert first["user"]["in_use"] == second["user"]["in_use"] == 25
    assert second["user"]["evicted"] > first["user"]["evicted"] > 0
    assert second["thing"] == {"rows": 60, "in_use": 30, "evicted": 0, "unseen": 0.0}
    assert said[-1] == "table thing: 30 of 60 rows in use, 0 evicted so far, 0.0% of lookups unseen"
    assert said[0] == (
        f"table user: 25 of 25 rows in use, {first['user']['evicted']} evicted so far, "
        f"{first['user']['unseen']:.1%} of lookups unseen"
    )


def test_ids_that_come_back_never_again_lose_their_rows(funnel_config, funnel_table, tmp_path):
    """A log whose users change half-way, read in order: the first ones are gone at the end."""
    users = funnel_table["user"].to_numpy() + np.repeat([0, 1000], 2000)
    table = funnel_table.set_column(1, "user", pa.array(users))
    splits = Splits(train=table, validation=table[3500:], test=table[3500:], origin="log")
    config = config_from_dict(
        set_values(funnel_config, [*MANAGED, "features.user.rows=45", "training.epochs=1"])
    )

    def in_order(self, seed, epoch, size, first=0, share=None):
        for start in range(first * size, len(self), size):
            yield self.held.batch(slice(start, start + size))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchSource, "epoch_batches", in_order)
        run = train_run(config, tmp_path / "run", splits=splits).directory
    predictor, *_ = load_predictor(run)
    ids = managed_ids(predictor.ranker.embeddings)
    assert ids is not None
    old, new = (torch.arange(40) + start + 2 for start in (0, 1000))
    owned = ids.admissions["user"].rows_of(new)
    assert (owned > 1).all() and len(owned.unique()) == 40
    assert int((ids.admissions["user"].rows_of(old) > 1).sum()) == 5

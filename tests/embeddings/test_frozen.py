"""Frozen tables: no optimizer moves them or keeps anything about them, on either backend."""

from dataclasses import replace

import pytest
import torch

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings import build_embeddings
from mmoe.parallel import ensure_process_group
from mmoe.parallel.sharded_tensors import Shard, put_rows

TABLES = [
    TableSpec(name="item", num_rows=40, dim=8, ids=True, frozen=True),
    TableSpec(name="user", num_rows=30, dim=4, ids=True, learning_rate=0.02),
]
FEATURES = [
    FeatureSpec(name="item", table="item", pooling="sum"),
    FeatureSpec(name="history", table="item", pooling="mean"),
    FeatureSpec(name="user", table="user", pooling="sum"),
]
CASES = [
    ("plain", "rowwise_adagrad", 0.0),
    ("plain", "adam", 0.3),
    ("plain", "sgd", 0.3),
    *(
        pytest.param("torchrec", kind, 0.0, marks=pytest.mark.torchrec)
        for kind in ("rowwise_adagrad", "adagrad", "sgd")
    ),
]


def _build(backend, kind, decay, tables=TABLES):
    if backend == "torchrec":
        ensure_process_group()
    config = EmbeddingOptimizerConfig.model_validate(
        {"kind": kind, "learning_rate": 0.5, "weight_decay": decay}
    )
    return build_embeddings(tables, FEATURES, optimizer=config, backend=backend, seed=1)


def _train(module):
    for step, factor in enumerate((1.0, 0.1, 3.0)):
        generator = torch.Generator().manual_seed(step)
        lengths_CB = torch.randint(0, 4, (len(FEATURES) * 9,), generator=generator).int()
        ids = torch.randint(0, 30, (int(lengths_CB.sum()),), generator=generator)
        module.scale_learning_rates(factor)
        out = module(ids, lengths_CB).x_BD
        (out * torch.randn(out.shape, generator=generator)).sum().backward()
        module.step()
    return out.detach()


@pytest.mark.parametrize(("backend", "kind", "decay"), CASES)
def test_frozen_rows_keep_their_bits_and_others_have_those_they_would_have(backend, kind, decay):
    """Under a schedule that raises the rate, and beside a table with one of its own."""
    alone = _build(backend, kind, decay, [replace(TABLES[0], frozen=False), TABLES[1]])
    module = _build(backend, kind, decay)
    before = {name: table.clone() for name, table in module.table_weights().items()}
    _train(alone), _train(module)
    assert torch.equal(module.table_weights()["item"], before["item"])
    assert not torch.equal(module.table_weights()["user"], before["user"])
    assert torch.equal(module.table_weights()["user"], alone.table_weights()["user"])
    state = module.optimizer_state()
    assert [name for name in alone.optimizer_state() if name not in state] == [
        name for name in alone.optimizer_state() if name.startswith("item/")
    ]
    for name, value in state.items():
        assert torch.equal(value, alone.optimizer_state()[name]), name


def test_where_all_are_frozen_nothing_needs_a_gradient():
    tables = [replace(table, frozen=True, learning_rate=None) for table in TABLES]
    module = _build("plain", "adam", 0.0, tables)
    out = module(torch.tensor([1, 2, 3]), torch.ones(3, dtype=torch.int32)).x_BD
    assert not out.requires_grad
    assert set(module.optimizer_state()) == {"steps"}


@pytest.mark.torchrec
def test_the_plan_counts_no_optimizer_for_them():
    from mmoe.embeddings.sharded.planning import shard_bytes

    adagrad = EmbeddingOptimizerConfig.model_validate({"kind": "adagrad"})
    assert shard_bytes(40, 8, adagrad, "fp32") == 2 * shard_bytes(40, 8, adagrad, "fp32", True)
    (plan, _) = _build("torchrec", "adagrad", 0.0).plan_summary()
    assert plan["table"] == "item" and sum(p["bytes"] for p in plan["pieces"]) == 40 * 8 * 4


def test_rows_are_put_into_the_pieces_that_have_them():
    whole = torch.arange(48.0).view(6, 8)
    pieces = [
        Shard(torch.zeros(2, 8), (6, 8), (0, 0)),
        Shard(torch.zeros(4, 4, dtype=torch.float16), (6, 8), (2, 4)),
    ]
    rows_R = torch.tensor([5, 0, 3])
    put_rows(pieces, rows_R, whole[rows_R])
    kept = torch.zeros(6, 8)
    kept[rows_R] = whole[rows_R]
    for piece in pieces:
        assert torch.equal(piece.tensor.float(), kept[piece.region])

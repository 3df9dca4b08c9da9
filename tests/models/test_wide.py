"""The wide part: pooled as embeddings are, in fp32, and row by row the same bits."""

from dataclasses import replace

import pytest
import torch

from mmoe.config import FeatureSpec, ModelConfig, TableSpec
from mmoe.config.tables import ManagedIds
from mmoe.datasets.rows.batch import Batch
from mmoe.models import Ranker, build_network
from mmoe.models.wide import WidePart

TABLES = [TableSpec(name="user", num_rows=4, dim=4), TableSpec(name="item", num_rows=5, dim=4)]
FEATURES = [
    FeatureSpec(name="user", table="user", pooling="sum"),
    FeatureSpec(name="item", table="item", pooling="sum"),
    FeatureSpec(name="seen", table="item", pooling="mean"),
    FeatureSpec(name="tags", table="user", pooling="sum", weighted=True),
]
# Two rows: user 1, 3; item 2, 0; seen [4, 4, 1], []; tags [2 × 0.5], [3 × 2, 0 × 1]
VALUES = torch.tensor([1, 3, 2, 0, 4, 4, 1, 2, 3, 0])
LENGTHS = torch.tensor([1, 1, 1, 1, 3, 0, 1, 2], dtype=torch.int32)
WEIGHTS = torch.tensor([1, 1, 1, 1, 9, 9, 9, 0.5, 2, 1])
DENSE = torch.tensor([[1.0, 0.5], [-2.0, 3.0]])


def make(tables=TABLES, features=FEATURES, num_dense=2):
    wide = WidePart(tables, features, num_dense, 2)
    torch.manual_seed(0)
    for buffer in (wide.ids_RT, wide.dense_TF, wide.bias_T):
        buffer.normal_()
    return wide.eval()


@pytest.mark.parametrize("training", [True, False])
def test_logits_are_pooled_weights_and_dense_products(training):
    wide = make().train(training)
    user, item = wide.ids_RT[:4], wide.ids_RT[4:]
    ids = torch.stack(
        [
            user[1] + item[2] + (2 * item[4] + item[1]) / 3 + 0.5 * user[2],
            user[3] + item[0] + 2 * user[3] + user[0],
        ]
    )
    expected = ids + DENSE @ wide.dense_TF.T + wide.bias_T
    torch.testing.assert_close(wide(DENSE, VALUES, LENGTHS, WEIGHTS), expected)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = wide(DENSE, VALUES, LENGTHS, WEIGHTS)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, expected)


def test_without_ids_without_numbers_without_rows():
    none = torch.empty(0, dtype=torch.int64)
    dense = make([], [])
    assert torch.equal(dense(DENSE, none, none.int())[0], dense(DENSE[:1], none, none.int())[0])
    ids = make(TABLES, FEATURES[:1], 0)
    logits = ids(torch.empty(2, 0), torch.tensor([1, 3]), torch.ones(2, dtype=torch.int32))
    torch.testing.assert_close(logits, ids.ids_RT[[1, 3]] + ids.bias_T)
    assert make()(DENSE[:0], none, none.int(), torch.empty(0)).shape == (0, 2)


def test_a_row_has_its_bits_wherever_it_stands():
    wide, rows = make(num_dense=3), 300
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(rows, 3, generator=generator)
    ids = torch.randint(0, 4, (4, rows), generator=generator)
    weights = torch.rand(4, rows, generator=generator)

    def logits(order):
        lengths = torch.ones(4 * len(order), dtype=torch.int32)
        return wide(dense[order], ids[:, order].flatten(), lengths, weights[:, order].flatten())

    whole = logits(torch.arange(rows))
    order = torch.randperm(rows, generator=generator)[:77]
    assert torch.equal(logits(order), whole[order])


def test_weights_are_asked_for_and_managed_ids_refused():
    with pytest.raises(ValueError, match="'tags' is weighted"):
        make()(DENSE, VALUES, LENGTHS)
    managed = TableSpec(name="user", num_rows=4, dim=4, managed=ManagedIds(rows=4))
    with pytest.raises(ValueError, match="table 'user' has managed ids"):
        WidePart([managed], FEATURES[:1], 0, 1)


def test_a_ranker_adds_it_and_does_not_train_it():
    network, wide = build_network(ModelConfig(), 2, ["click", "buy"]), make([], [])
    none = torch.empty(0, dtype=torch.int64)
    batch = (DENSE, none, none.int())
    expected = network(DENSE).logits_BT + wide(*batch)
    ranker = Ranker(None, network, 2, wide)
    whole = Batch(dense_BF=DENSE, values=none, lengths_CB=none.int(), num_rows=2)
    assert torch.equal(ranker(whole).logits_BT, expected)
    assert set(ranker.parameters()) == set(network.parameters())
    with pytest.raises(ValueError, match="dense_BF: expected shape"):
        ranker(replace(whole, dense_BF=DENSE[:, :1]))

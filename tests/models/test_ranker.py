"""Ranker: features side by side, precision, errors."""

import pytest
import torch
from torch import nn

from mmoe.config import ModelConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.embeddings import Lookups
from mmoe.models import Ranker, build_network


class Embeddings(nn.Module):
    """Two features with one id each, feature-major."""

    output_dim = 8

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.dtypes = []

    def forward(self, values, lengths):
        x = self.table(values)
        self.dtypes.append((x @ torch.eye(4)).dtype)
        return Lookups(torch.cat(x.chunk(2), dim=1))


def make(num_dense: int = 3):
    torch.manual_seed(0)
    network = build_network(ModelConfig(kind="ple"), 8 + num_dense, ["click", "purchase"])
    return Ranker(Embeddings(), network, num_dense)


def inputs(num_dense: int = 3):
    values = torch.randint(0, 10, (10,))
    lengths = torch.ones(10, dtype=torch.int32)
    dense = torch.randn(5, num_dense)
    return Batch(dense_BF=dense, values=values, lengths_CB=lengths, num_rows=5)


def test_dense_features_come_before_the_embeddings():
    ranker, batch = make(), inputs()
    table, values = ranker.embeddings.table, batch.values
    x = torch.cat([batch.dense_BF, table(values[:5]), table(values[5:])], dim=1)
    output = ranker(batch, return_gates=True)
    assert torch.equal(output.logits_BT, ranker.network(x).logits_BT)
    assert len(output.gates) == 2
    assert ranker(batch).gates == []


def test_without_dense_features():
    ranker, batch = make(0), inputs(0)
    assert ranker(batch).logits_BT.shape == (5, 2)


class NoFeatures(nn.Module):
    output_dim = 0


@pytest.mark.parametrize("embeddings", [None, NoFeatures()])
def test_without_ids(embeddings):
    network = build_network(ModelConfig(), 3, ["click"])
    dense = torch.randn(5, 3)
    ids = torch.empty(0, dtype=torch.int64)
    batch = Batch(dense_BF=dense, values=ids, lengths_CB=ids.int(), num_rows=5)
    ranker = Ranker(embeddings, network, num_dense=3)
    assert torch.equal(ranker(batch).logits_BT, network(dense).logits_BT)


def test_autocast_stops_at_the_embeddings_and_gradients_reach_them():
    ranker, batch = make(), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        logits = ranker(batch).logits_BT
    assert ranker.embeddings.dtypes == [torch.float32]
    assert logits.dtype == torch.float32
    logits.sum().backward()
    assert (ranker.embeddings.table.weight.grad != 0).any()


def test_errors():
    with pytest.raises(ValueError, match=r"dense_BF: expected shape \[rows, 3\], got \[5, 2\]"):
        make()(inputs(2))
    with pytest.raises(ValueError, match="num_dense: expected 0 or more, got -1"):
        Ranker(None, nn.Identity(), -1)

"""Weights of ids: Σ w·e in both backends, with gradients, beside features that have none."""

import pytest
import torch

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings import build_embeddings
from mmoe.parallel import ensure_process_group

TABLES = [TableSpec(name="item", num_rows=100, dim=8), TableSpec(name="city", num_rows=30, dim=16)]
FEATURES = [  # the weighted one shares its table with one that has no weights
    FeatureSpec(name="city", table="city", pooling="mean"),
    FeatureSpec(name="tags", table="item", pooling="sum", weighted=True),
    FeatureSpec(name="item", table="item", pooling="sum"),
]
ROWS = {table.name: table.num_rows for table in TABLES}
ADAGRAD = EmbeddingOptimizerConfig(learning_rate=0.1)
BATCH = 17


def _build(backend, features=FEATURES):
    return build_embeddings(TABLES, features, optimizer=ADAGRAD, backend=backend, seed=1)


def _batch(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (3 * BATCH,), generator=generator).int()
    counts = lengths.view(3, BATCH).sum(dim=1).tolist()
    values, weights = [], []
    for feature, count in zip(FEATURES, counts, strict=True):
        values.append(torch.randint(0, ROWS[feature.table], (count,), generator=generator))
        weight = torch.rand(count, generator=generator) if feature.weighted else torch.ones(count)
        weights.append(weight)
    return torch.cat(values), lengths, torch.cat(weights)


def test_weighted_sums_by_hand(backend):
    module = _build(backend)
    values, lengths, weights = _batch(seed=0)
    tables = {name: table.clone() for name, table in module.table_weights().items()}
    rows, position = [], 0
    for c, feature in enumerate(FEATURES):
        for count in lengths[c * BATCH : (c + 1) * BATCH].tolist():
            ids = values[position : position + count]
            pooled = (weights[position : position + count, None] * tables[feature.table][ids]).sum(
                dim=0
            )
            rows.append(pooled / max(count, 1) if feature.pooling == "mean" else pooled)
            position += count
    expected = [torch.stack(rows[c * BATCH : (c + 1) * BATCH]) for c in range(3)]
    torch.testing.assert_close(module(values, lengths, weights).x_BD, torch.cat(expected, dim=1))


def test_missing_weights_are_asked_for(backend):
    values, lengths, _ = _batch(seed=0)
    with pytest.raises(ValueError, match=r"id_weights: .* as feature 'tags' is weighted, got None"):
        _build(backend)(values, lengths)


def test_an_id_of_weight_zero_teaches_nothing(backend):
    module = _build(backend)
    values, lengths = torch.tensor([1, 5, 6, 7]), torch.tensor([1, 2, 1]).int()
    before = module.table_weights()["item"].clone()
    module(values, lengths, torch.tensor([1.0, 0.0, 2.0, 1.0])).x_BD.sum().backward()
    module.step()
    moved = (module.table_weights()["item"] != before).any(dim=1)
    assert moved.nonzero().flatten().tolist() == [6, 7]


@pytest.mark.torchrec
def test_backends_train_alike():
    ensure_process_group()
    one, two = _build("torchrec"), _build("plain")
    for step in range(3):
        batch = _batch(seed=step)
        direction = torch.randn(
            BATCH, one.output_dim, generator=torch.Generator().manual_seed(step)
        )
        outputs = []
        for module in (one, two):
            outputs.append(module(*batch).x_BD)
            (outputs[-1] * direction).sum().backward()
            module.step()
        torch.testing.assert_close(*outputs)
    for name, table in one.table_weights().items():
        torch.testing.assert_close(table, two.table_weights()[name])

"""Both backends give the same embeddings; their updates are in test_optimizers.py."""

import pytest
import torch

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings import build_embeddings
from mmoe.parallel import ensure_process_group

TABLES = [
    TableSpec(name="item", num_rows=100, dim=8),
    TableSpec(name="user", num_rows=50, dim=4),
    TableSpec(name="city", num_rows=30, dim=16),
]
FEATURES = [  # not in the order of the tables; `item` is shared, once pooled by mean, once by sum
    FeatureSpec(name="city", table="city", pooling="sum"),
    FeatureSpec(name="history", table="item", pooling="mean"),
    FeatureSpec(name="user", table="user", pooling="mean"),
    FeatureSpec(name="item", table="item", pooling="sum"),
]
ROWS = {table.name: table.num_rows for table in TABLES}
ADAGRAD = EmbeddingOptimizerConfig(learning_rate=0.1)


def _batch(batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(FEATURES) * batch,), generator=generator).int()
    values = [
        torch.randint(
            0,
            ROWS[feature.table],
            (int(lengths[c * batch : (c + 1) * batch].sum()),),
            generator=generator,
        )
        for c, feature in enumerate(FEATURES)
    ]
    return torch.cat(values), lengths


def test_any_table_and_feature_name_is_good(backend):
    """Names of methods of torch's containers too."""
    names = ["items", "keys", "values", "pop", "forward", "training", "weight", "table_items"]
    tables = [TableSpec(name=name, num_rows=9, dim=4, learning_rate=0.5 + n)
              for n, name in enumerate(names)]  # fmt: skip
    features = [FeatureSpec(name=name, table=name, pooling="sum") for name in names]
    module = build_embeddings(tables, features, optimizer=ADAGRAD, backend=backend, seed=1)
    weights = module.table_weights()
    before = {name: weight.clone() for name, weight in weights.items()}
    assert sorted(weights) == sorted(names)
    assert sorted(module.optimizer_state()) == sorted(f"{name}/sum" for name in names)
    module.scale_learning_rates(0.1)
    out = module(torch.full((len(names),), 3), torch.ones(len(names), dtype=torch.int32)).x_BD
    torch.testing.assert_close(out[0], torch.cat([before[name][3] for name in names]))
    out.sum().backward()
    module.step()
    for n, name in enumerate(names):  # the first step of Adagrad is the rate
        step = before[name][3] - weights[name][3]
        torch.testing.assert_close(step, torch.full((4,), 0.1 * (0.5 + n)))


def test_state_is_live(backend):
    module = build_embeddings(TABLES, FEATURES, optimizer=ADAGRAD, backend=backend, seed=0)
    values, lengths = _batch(9, seed=4)
    module(values, lengths).x_BD.sum().backward()
    module.step()
    assert float(module.optimizer_state()["user/sum"].sum()) > 0
    module.optimizer_state()["user/sum"].zero_()
    assert float(module.optimizer_state()["user/sum"].sum()) == 0
    module.table_weights()["city"].fill_(2.0)
    out = module(values, lengths).x_BD
    torch.testing.assert_close(out[:, :16], 2.0 * lengths[:9, None].expand(9, 16).float())


def test_reserved_rows_start_at_zero_and_seeds_matter(backend):
    same = [
        build_embeddings(TABLES, FEATURES, optimizer=ADAGRAD, backend=backend, seed=seed)
        for seed in (5, 5, 6)
    ]
    first, again, other = (module.table_weights()["item"] for module in same)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not first[:2].any()
    assert float(first.abs().max()) <= 100**-0.5


def test_empty_batch_and_no_features(backend):
    module = build_embeddings(TABLES, FEATURES, optimizer=ADAGRAD, backend=backend)
    nothing = torch.zeros(0, dtype=torch.int64)
    assert module(nothing, nothing.int()).x_BD.shape == (0, module.output_dim)


def test_unknown_table_is_named():
    stray = FeatureSpec(name="x", table="nowhere", pooling="sum")
    with pytest.raises(ValueError, match="feature 'x' looks up table 'nowhere'; tables:"):
        build_embeddings(TABLES, [stray], optimizer=ADAGRAD, backend="plain")


@pytest.mark.torchrec
def test_tables_that_no_plan_can_place_are_named():
    ensure_process_group()
    tables = [TableSpec(name="item", num_rows=2**31 - 6, dim=64), TABLES[1], TABLES[2]]
    with pytest.raises(
        ValueError, match=r"need 520.0 GiB .* the largest table is 'item' \(520.0 GiB\)"
    ):
        build_embeddings(tables, FEATURES, optimizer=ADAGRAD, backend="torchrec")

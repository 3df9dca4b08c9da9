"""Hidden numbers of two columns of ids: found where they multiply, and only there."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets import infer_config

ROWS = 20_000


def _infer(left, right, logits):
    rng = np.random.default_rng(5)
    click = (rng.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(int)
    table = pa.table(
        {"user": [f"u{u}" for u in left], "item": [f"i{i}" for i in right], "click": click}
    )
    return infer_config(table, ["click"])


@pytest.fixture
def ids():
    rng = np.random.default_rng(4)
    return rng.integers(0, 400, ROWS), rng.integers(0, 200, ROWS)


def test_tastes_get_a_factorization_machine_and_rows_that_decay(ids):
    rng = np.random.default_rng(0)
    tastes, kinds = rng.normal(size=(400, 2)), rng.normal(size=(200, 2))
    config, reasons = _infer(*ids, np.einsum("nk,nk->n", tastes[ids[0]], kinds[ids[1]]))
    assert config.model.interaction.kind == "fm"
    optimizer = config.training.embedding_optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay) == (0.5, 1.3e-4)
    assert "the combination of user with item predicts 'click' (z " in reasons.sizes
    # 20,000 rows hold most of the 80,000 pairs once: none has a rate of its own to learn
    assert [feature.kind for feature in config.features] == ["categorical", "categorical"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sums_get_none(ids, seed):
    rng = np.random.default_rng(seed)
    config, _ = _infer(*ids, rng.normal(size=400)[ids[0]] + rng.normal(size=200)[ids[1]])
    assert config.model.interaction.kind == "none"
    assert config.training.embedding_optimizer.weight_decay == 0

"""How tables are trained: the same on both backends, and as torch's dense optimizers do it."""

from dataclasses import replace

import pytest
import torch

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings import build_embeddings
from mmoe.parallel import ensure_process_group

TABLES = [
    TableSpec(name="item", num_rows=100, dim=8),
    TableSpec(name="user", num_rows=50, dim=4, learning_rate=0.01),
    TableSpec(name="city", num_rows=30, dim=16, learning_rate=0.1),
    TableSpec(name="hour", num_rows=24, dim=4, learning_rate=0.01),
]
FEATURES = [
    FeatureSpec(name=table.name, table=table.name, pooling="sum") for table in reversed(TABLES)
]
FACTORS = (1.0, 0.3, 2.0)


def _config(kind: str, weight_decay: float = 0.0) -> EmbeddingOptimizerConfig:
    return EmbeddingOptimizerConfig.model_validate(
        {"kind": kind, "learning_rate": 0.1, "weight_decay": weight_decay}
    )


def _ids(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Up to three ids a row, many of them twice in a batch, and many rows in none."""
    generator = torch.Generator().manual_seed(step)
    lengths_CB = torch.randint(0, 4, (len(FEATURES), 20), generator=generator).int()
    ids = torch.randint(0, 20, (int(lengths_CB.sum()),), generator=generator)
    return ids, lengths_CB.flatten()


def _train(module, factors=FACTORS, first: int = 0) -> None:
    for step, factor in enumerate(factors, start=first):
        generator = torch.Generator().manual_seed(100 + step)
        module.scale_learning_rates(factor)
        out = module(*_ids(step)).x_BD
        (out * torch.randn(out.shape, generator=generator)).sum().backward()
        module.step()


def _build(kind: str, backend: str, tables=TABLES, weight_decay: float = 0.0):
    if backend == "torchrec":
        ensure_process_group()
    config = _config(kind, weight_decay)
    return build_embeddings(tables, FEATURES, optimizer=config, backend=backend, seed=3)


@pytest.mark.torchrec
@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adagrad", "sgd"])
def test_backends_train_alike(kind):
    """Rates of tables, and their schedule, included."""
    one, two = _build(kind, "torchrec"), _build(kind, "plain")
    _train(one), _train(two)
    for mine, theirs in (
        (one.table_weights(), two.table_weights()),
        (one.optimizer_state(), two.optimizer_state()),
    ):
        assert mine.keys() == theirs.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-6, atol=1e-6)
    assert set(two.optimizer_state()) == (
        set() if kind == "sgd" else {f"{table.name}/sum" for table in TABLES}
    )


@pytest.mark.torchrec
def test_tables_of_one_rate_share_a_kernel_call():
    from mmoe.embeddings.backend import table_of_module
    from mmoe.embeddings.sharded.backend import _kernel_optimizers

    def kernels(tables):
        module = _build("rowwise_adagrad", "torchrec", tables)
        found = _kernel_optimizers(module.sharded.fused_optimizer)
        return [
            sorted(table_of_module(name.split(".")[1]) for name in kernel.params)
            for kernel in found
        ]

    assert kernels(TABLES) == [["city", "item"], ["hour", "user"]]
    assert kernels([replace(table, learning_rate=None) for table in TABLES]) == [
        ["city", "hour", "item", "user"]
    ]


@pytest.mark.parametrize(
    ("kind", "dense"),
    [
        ("sgd", torch.optim.SGD),
        ("adagrad", lambda weights, lr: torch.optim.Adagrad(weights, lr, eps=1e-8)),
        ("adam", torch.optim.Adam),
    ],
)
def test_where_every_row_is_looked_up_it_is_the_dense_optimizer(kind, dense):
    table = TableSpec(name="item", num_rows=6, dim=4)
    feature = FeatureSpec(name="item", table="item", pooling="sum")
    module = build_embeddings([table], [feature], optimizer=_config(kind), backend="plain", seed=1)
    weight = torch.nn.Parameter(module.table_weights()["item"].clone())
    optimizer = dense([weight], lr=0.1)
    ids = torch.tensor([0, 1, 2, 3, 4, 5, 5, 0])
    for step in range(4):
        direction = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        (module(ids, torch.ones(8).int()).x_BD * direction).sum().backward()
        module.step()
        (weight[ids] * direction).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(module.table_weights()["item"], weight.data, rtol=1e-5, atol=1e-6)


def test_adam_moves_looked_up_rows_alone_and_counts_all_steps():
    table = TableSpec(name="item", num_rows=4, dim=4)
    feature = FeatureSpec(name="item", table="item", pooling="sum")
    module = build_embeddings([table], [feature], optimizer=_config("adam"), backend="plain")
    weight, state = module.table_weights()["item"], module.optimizer_state()
    weight.fill_(1.0)
    for ids in ([1], [1], [2]):
        module(torch.tensor(ids), torch.tensor([1]).int()).x_BD.sum().backward()
        module.step()
    # Row 1: a gradient of 1 moves it by the rate, twice; the third step leaves it alone
    torch.testing.assert_close(weight[1], torch.full((4,), 0.8))
    assert torch.equal(weight[3], torch.ones(4)) and not state["item/exp_avg"][3].any()
    # Row 2: its first gradient, at step 3: m̂ = 0.1 / (1 − 0.9³), v̂ = 0.001 / (1 − 0.999³)
    mean, square = 0.1 / (1 - 0.9**3), 0.001 / (1 - 0.999**3)
    torch.testing.assert_close(weight[2], torch.full((4,), 1 - 0.1 * mean / square**0.5))
    assert state["steps"].tolist() == [3]


def test_row_wise_adagrad_by_hand():
    table = TableSpec(name="item", num_rows=4, dim=4)
    feature = FeatureSpec(name="item", table="item", pooling="sum")
    module = build_embeddings(
        [table], [feature], optimizer=_config("rowwise_adagrad"), backend="plain"
    )
    weight = module.table_weights()["item"].fill_(1.0)
    out = module(torch.tensor([2, 0, 2]), torch.ones(3).int()).x_BD
    (out * torch.tensor([[1.0, 1, 0, 0], [3.0, 1, 0, 0], [0.0, 1, 0, 0]])).sum().backward()
    module.step()
    # row 2: g = (1, 2, 0, 0), s = 5/4; row 0: g = (3, 1, 0, 0), s = 10/4
    expected = torch.ones(4, 4)
    expected[2, :2] -= 0.1 * torch.tensor([1.0, 2.0]) / 1.25**0.5
    expected[0, :2] -= 0.1 * torch.tensor([3.0, 1.0]) / 2.5**0.5
    torch.testing.assert_close(weight, expected)


OF_IDS = [replace(table, ids=table.name != "hour") for table in TABLES]


def test_a_row_makes_up_for_the_steps_since_it_was_moved():
    table = TableSpec(name="item", num_rows=3, dim=4, ids=True)
    feature = FeatureSpec(name="item", table="item", pooling="sum")
    module = build_embeddings([table], [feature], optimizer=_config("sgd", 0.5), backend="plain")
    weight = module.table_weights()["item"].fill_(1.0)
    expected = torch.ones(3)
    for ids, row, steps in (([1], 1, 1), ([2], 2, 2), ([2], 2, 1), ([1], 1, 3)):
        module(torch.tensor(ids), torch.tensor([1]).int()).x_BD.sum().backward()
        module.step()
        expected[row] = (expected[row] - 0.1) / (1 + steps * 0.5 * 0.1)
    torch.testing.assert_close(weight, expected[:, None].expand(3, 4))
    state = module.optimizer_state()
    assert state["item/last_step"].tolist() == [0, 4, 3] and state["steps"].tolist() == [4]


@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adagrad", "sgd", "adam"])
def test_only_tables_of_ids_decay(kind):
    plain, decayed = _build(kind, "plain", OF_IDS), _build(kind, "auto", OF_IDS, 0.5)
    _train(plain), _train(decayed)
    one, two = plain.table_weights(), decayed.table_weights()
    assert torch.equal(one["hour"], two["hour"])
    for name in ("item", "user", "city"):
        assert two[name].norm() < one[name].norm(), name


@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adagrad", "sgd", "adam"])
def test_a_row_with_a_gradient_of_zeros_does_not_decay(kind):
    """As in the first step of a model that begins as its wide part: the towers' weights are 0."""
    module = _build(kind, "plain", OF_IDS, 0.5)
    before = {name: weight.clone() for name, weight in module.table_weights().items()}
    (module(*_ids(0)).x_BD * 0).sum().backward()
    module.step()
    for name, weight in module.table_weights().items():
        assert torch.equal(weight, before[name]), name
    assert not module.optimizer_state()["item/last_step"].any()


@pytest.mark.torchrec
def test_fused_kernels_of_one_process_refuse_a_decay_and_adam():
    with pytest.raises(ValueError, match=r"no embedding_optimizer.weight_decay on one process"):
        _build("sgd", "torchrec", OF_IDS, 0.5)
    with pytest.raises(ValueError, match=r"no embedding_optimizer.kind adam; .* another kind"):
        _build("adam", "torchrec", OF_IDS)


@pytest.mark.parametrize(
    ("kind", "backend", "weight_decay"),
    [
        (kind, backend, 0.0)
        for kind in ("rowwise_adagrad", "adagrad", "sgd", "adam")
        for backend in ("plain", pytest.param("torchrec", marks=pytest.mark.torchrec))
        if kind != "adam" or backend == "plain"
    ]
    + [("rowwise_adagrad", "plain", 0.5)],
)
def test_state_is_all_that_a_resumed_run_needs(kind, backend, weight_decay):
    whole, first, second = (_build(kind, backend, OF_IDS, weight_decay) for _ in range(3))
    _train(whole)
    _train(first, FACTORS[:2])
    for mine, theirs in (
        (second.table_weights(), first.table_weights()),
        (second.optimizer_state(), first.optimizer_state()),
    ):
        for name in mine:
            mine[name].copy_(theirs[name])
    _train(second, FACTORS[2:], first=2)
    for name, weight in whole.table_weights().items():
        assert torch.equal(weight, second.table_weights()[name]), name


def test_adam_goes_to_the_plain_backend():
    assert type(_build("adam", "auto")).__name__ == "PlainEmbeddings"

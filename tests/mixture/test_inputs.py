"""Mixtures of rows of requests: those of whole rows, outputs and all gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mmoe.mixture import (
    CosineGate,
    Execution,
    ExpertPool,
    GShardGate,
    MixedExperts,
    MLPExperts,
    MultiGateMixture,
    NoisyTopKGate,
    Pool,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    SwitchGate,
    TopKGate,
    Work,
    choose_execution,
)
from mmoe.mixture.inputs import REQUEST_TILE, Inputs, RequestColumns
from mmoe.ops.row_sums import Owners
from tests.needs_kernels import needs_kernels

D, G, E = 7, 2, 4
COLUMNS = RequestColumns([5, 0, 3], D)
OWNERS = torch.tensor([2, 0, 0, 3, 2, 2, 0, 3, 3, 3])  # nothing of request 1
Q, B = 5, len(OWNERS)

GATES: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: SoftmaxGate(D, G, E),
    "hidden": lambda: SoftmaxGate(D, G, E, hidden=[6]),
    "losses": lambda: SoftmaxGate(D, G, E, z_loss=0.1, balance_loss=0.1),
    "top_k": lambda: TopKGate(D, G, E, k=2),
    "joint": lambda: TopKGate(D, G, E, k=2, selection=Selection(shared_k=1, private_k=1)),
    "budget": lambda: TopKGate(D, G, E, k=2, selection=Selection(private_k=2, budget=3)),
    "noisy": lambda: NoisyTopKGate(D, G, E, k=2),
    "gshard": lambda: GShardGate(D, G, E),
    "sigmoid": lambda: SigmoidGate(D, G, E, k=2),
    "switch": lambda: SwitchGate(D, G, E),
    "cosine": lambda: CosineGate(D, G, E, k=2),
}


def both(*pools: MLPExperts) -> Pool:
    return MixedExperts(pools, requests=COLUMNS)


POOLS: dict[str, Callable[[], Pool]] = {
    "rows": lambda: MLPExperts(E, D, [6, 3]),
    "silu": lambda: MLPExperts(E, D, [6, 3], activation="silu"),
    "swiglu": lambda: MLPExperts(E, D, [6, 3], activation="swiglu"),
    "norm": lambda: MLPExperts(E, D, [6, 3], norm="layer", activation="gelu"),
    "batch": lambda: MLPExperts(E, D, [6, 3], norm="batch"),
    "one layer": lambda: MLPExperts(E, D, [3], output_activation=None),
    "no layer": lambda: MLPExperts(E, D, []),
    "modules": lambda: ExpertPool([nn.Linear(D, 3) for _ in range(E)]),
    "both": lambda: both(MLPExperts(1, 3, [6, 3]), MLPExperts(3, D, [6, 3])),
    "both, batch": lambda: both(
        MLPExperts(1, 3, [6, 3], norm="batch"), MLPExperts(3, D, [6, 3], norm="batch")
    ),
    "both, modules": lambda: both(MLPExperts(2, 3, [3]), MLPExperts(2, D, [3], activation="gelu")),
}


def draw(dtype: torch.dtype = torch.float64, **keys: bool) -> Inputs:
    torch.manual_seed(1)
    x_QP, x_BR = torch.randn(Q, 3, dtype=dtype), torch.randn(B, D - 3, dtype=dtype)
    return Inputs(
        x_QP=x_QP.requires_grad_(),
        x_BR=x_BR.requires_grad_(),
        owners=Owners(OWNERS, Q),
        columns=COLUMNS,
        **keys,
    )


def mixture(pool: str, gate: str = "softmax", execution: Execution = "auto") -> MultiGateMixture:
    torch.manual_seed(2)
    made = MultiGateMixture(D, G, POOLS[pool](), gate=GATES[gate](), execution=execution)
    return made.double()


def gradients(layer: MultiGateMixture, rows: Inputs, *, whole: bool) -> tuple[Tensor, list[Tensor]]:
    """The mixes, and the gradients of the inputs and of every parameter."""
    torch.manual_seed(3)
    output = layer(rows.whole if whole else rows)
    weight = torch.randn(output.out_BGO.shape, dtype=torch.float64)
    loss = (output.out_BGO.double() * weight).sum()
    loss = sum(output.auxiliary_losses.values(), start=loss)
    wanted = [rows.x_QP, rows.x_BR, *layer.parameters()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return output.out_BGO, list(found)


def compare(layer: MultiGateMixture, **keys: bool) -> None:
    shared, found = gradients(layer, draw(**keys), whole=False)
    flat, expected = gradients(layer, draw(**keys), whole=True)
    torch.testing.assert_close(shared, flat)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_mixes_and_gradients_are_those_of_whole_rows(pool: str, training: bool) -> None:
    for exact in (False, True):
        compare(mixture(pool).train(training), exact=exact)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("pool", ["rows", "both"])
@pytest.mark.parametrize("execution", ["auto", "dense", "grouped"])
def test_every_gate_decides_as_of_whole_rows(pool: str, gate: str, execution: Execution) -> None:
    compare(mixture(pool, gate, execution=execution))


def test_request_experts_are_run_once_a_request() -> None:
    layer, seen = mixture("both"), []
    pool = layer.experts.pools[0]
    dense = pool.dense
    pool.dense = lambda inputs: seen.append(len(inputs[0])) or dense(inputs)
    layer(draw())
    assert seen == [Q]


@needs_kernels
@pytest.mark.parametrize("pool", ["rows", "both", "both, modules", "norm"])
def test_exact_rows_have_the_bits_of_whole_rows(pool: str) -> None:
    layer = mixture(pool).float()
    for training in (True, False):
        rows = draw(torch.float32, exact=True)
        assert torch.equal(layer.train(training)(rows).out_BGO, layer(rows.whole).out_BGO), training


@needs_kernels
@pytest.mark.parametrize("pool", ["rows", "both", "silu", "norm"])
@pytest.mark.parametrize("gate", ["softmax", "hidden", "top_k"])
@pytest.mark.parametrize("exact", [True, False])
@torch.no_grad()
def test_a_rows_bits_do_not_depend_on_its_batch(pool: str, gate: str, exact: bool) -> None:
    layer, rows = mixture(pool, gate).float().eval(), draw(torch.float32, exact=exact)
    whole = layer(rows).out_BGO
    for places in ([4], [1, 2, 6], [9, 3, 1, 0, 7], [*range(B)][::-1]):
        requests, owners = OWNERS[places].unique(return_inverse=True)
        part = Inputs(
            x_QP=rows.x_QP[requests],
            x_BR=rows.x_BR[places],
            owners=Owners(owners, len(requests)),
            columns=COLUMNS,
            exact=exact,
        )
        assert torch.equal(layer(part).out_BGO, whole[places]), places


@torch.no_grad()
def test_tiles_have_one_height_and_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, heights = mixture("both").eval(), set()
    pool = layer.experts.pools[0]
    dense = pool.dense
    monkeypatch.setattr(pool, "dense", lambda inputs: heights.add(len(inputs[0])) or dense(inputs))
    torch.testing.assert_close(layer(draw(in_tiles=True)).out_BGO, layer(draw().whole).out_BGO)
    assert heights == {REQUEST_TILE, B}


@pytest.mark.parametrize("gate", ["softmax", "top_k"])
def test_under_autocast(gate: str) -> None:
    layer, rows = mixture("both", gate).float(), draw(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        shared, flat = layer(rows).out_BGO, layer(rows.whole).out_BGO
    assert shared.dtype == torch.bfloat16
    torch.testing.assert_close(shared, flat, rtol=0.05, atol=0.02)


def test_parts_that_do_not_fit_are_refused() -> None:
    rows = draw()
    with pytest.raises(ValueError, match=r"x_QP: expected shape \[5, 3\]"):
        Inputs(x_QP=rows.x_BR[:5], x_BR=rows.x_BR, owners=rows.owners, columns=COLUMNS)
    with pytest.raises(ValueError, match="of_request: expected some of the columns 0 to 3"):
        RequestColumns([0, 4], 4)
    layer = MultiGateMixture(D + 1, G, MLPExperts(2, D + 1, [3]))
    with pytest.raises(
        ValueError, match="x: expected rows of 8 columns, got rows of requests of 7"
    ):
        layer(rows)


def test_grouped_experts_of_requests_run_once_a_request_too() -> None:
    layer, heights = mixture("both", "top_k", execution="grouped"), []
    pool = layer.experts.pools[0]
    for name in ("dense", "grouped"):
        run = getattr(pool, name)

        def seen(rows: object, *more: object, run: Callable[..., object] = run) -> object:
            heights.append(len(rows[0]) if isinstance(rows, list) else len(rows))
            return run(rows, *more)

        setattr(pool, name, seen)
    layer(draw())
    assert heights == [Q, 0]  # none of the rows that gates picked


def test_what_rows_share_makes_dense_execution_cheaper() -> None:
    work = Work(
        rows=4096,
        num_experts=8,
        picks=8,
        num_gates=2,
        pairs=20_000,
        parameters=120_000,
        input_dim=330,
        output_dim=128,
    )
    assert choose_execution(work) == "grouped"
    assert choose_execution(work._replace(shared_parameters=60_000)) == "dense"

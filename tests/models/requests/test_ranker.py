"""Rankers of batches with requests: those of every row by itself, outputs and all gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmoe.datasets.rows.batch import Batch
from mmoe.models.ranker import Ranker
from tests.models.requests.world import REQUESTS, draw, run
from tests.needs_kernels import needs_kernels

KINDS: dict[str, dict[str, Any]] = {
    "mmoe": {"kind": "mmoe", "num_experts": 3},
    "mmoe, split": {"kind": "mmoe", "num_experts": {"request": 2, "row": 2}},
    "omoe, split": {"kind": "omoe", "num_experts": {"request": 1, "row": 3}},
    "esmm, split": {"kind": "esmm", "num_experts": {"request": 2, "row": 1}},
    "shared_bottom": {"kind": "shared_bottom"},
    "single_task": {"kind": "single_task"},
    "cgc": {"kind": "cgc", "shared_experts": 1, "task_experts": 2},
    "ple": {"kind": "ple", "shared_experts": 1, "task_experts": 2},
}
SPLIT = KINDS["mmoe, split"]
OPTIONS: dict[str, dict[str, Any]] = {
    "fm": {"interaction": "fm"},
    "deepfm": {"interaction": "deepfm"},
    "masknet": {"interaction": "masknet"},
    "autoint": {"interaction": "autoint"},
    "dcn_v2": {"num_experts": 3, "interaction": "dcn_v2"},
    "wide": {"wide": True},
    "bias": {"bias": {"features": ["position"]}},
    "bias, kept": {"bias": {"features": ["position"], "scoring": "fixed", "at": {"position": 1}}},
    "other experts": {"expert": {"kind": "fm", "output": 5}},
    "top_k": {"gate": {"kind": "top_k", "k": 2}},
    "grouped": {"gate": {"kind": "top_k", "k": 2}, "execution": "grouped"},
    "joint": {"gate": {"kind": "top_k", "select": "joint", "shared_k": 1, "private_k": 1}},
    "budget": {"gate": {"kind": "top_k", "k": 2, "select": "budget", "budget": 3}},
    "cosine": {"gate": {"kind": "cosine", "k": 2}},
    "two layers": {"expert": {"hidden": [6, 5], "norm": "layer", "activation": "silu"}},
}


def gradients(ranker: Ranker, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and what is learnt of them."""
    ranker.zero_grad()
    output = run(ranker, batch)
    torch.manual_seed(1)
    weight = torch.randn(output.logits_BT.shape, dtype=output.logits_BT.dtype)
    loss = (output.logits_BT * weight).sum()
    sum(output.auxiliary_losses.values(), start=loss).backward()
    found = {}
    for name, parameter in ranker.named_parameters():
        grad = parameter.grad
        if grad is not None:
            found[name] = grad.to_dense() if grad.is_sparse else grad
    return output.logits_BT.detach(), found


@pytest.mark.parametrize(("training", "exact"), [(True, False), (False, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_that_of_every_row_by_itself(kind: str, training: bool, exact: bool) -> None:
    ranker, batch, flat = draw(KINDS[kind], exact=exact)
    assert batch.requests_B is not None and len(batch.request_dense_QF) == REQUESTS
    ranker.train(training)
    logits, found = gradients(ranker, batch)
    expected, wanted = gradients(ranker, flat)
    torch.testing.assert_close(logits, expected)
    assert found.keys() == wanted.keys()
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_that_of_every_row_by_itself(name: str) -> None:
    ranker, batch, flat = draw({**SPLIT, **OPTIONS[name]})
    if ranker.wide is not None:
        for buffer in (ranker.wide.ids_RT, ranker.wide.dense_TF):
            torch.nn.init.normal_(buffer)
    ranker.eval()
    logits, found = gradients(ranker, batch)
    expected, wanted = gradients(ranker, flat)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(found, wanted)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_exact_logits_have_the_bits_of_every_row_by_itself(kind: str) -> None:
    ranker, batch, flat = draw(KINDS[kind], exact=True, dtype=torch.float32)
    assert torch.equal(run(ranker.eval(), batch).logits_BT, run(ranker, flat).logits_BT)


@pytest.mark.parametrize("scoring", ["drop", "fixed"])
@torch.no_grad()
def test_scores_with_and_without_the_display(scoring: str) -> None:
    bias = {"features": ["position"], "scoring": scoring}
    bias |= {"at": {"position": 1}} if scoring == "fixed" else {}
    ranker, batch, flat = draw({**SPLIT, "bias": bias})
    for parameter in ranker.network.bias_tower.parameters():
        torch.nn.init.normal_(parameter)
    shared, alone = (run(ranker.eval(), one, with_bias=True) for one in (batch, flat))
    torch.testing.assert_close(shared.logits_BT, alone.logits_BT)
    torch.testing.assert_close(shared.with_bias_BT, alone.with_bias_BT)
    assert not torch.allclose(shared.with_bias_BT, shared.logits_BT)


@pytest.mark.parametrize(
    "options", [{}, {"interaction": "fm"}, {"bias": {"features": ["position"]}}]
)
@torch.no_grad()
def test_what_stands_beside_the_mixture_leaves_it_both_parts(options: dict[str, Any]) -> None:
    ranker, batch, _ = draw({**SPLIT, **options})
    seen = []
    mixture = ranker.eval().network.levels[0].mixture
    mixture.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0]))
    run(ranker, batch)
    (rows,) = seen
    assert len(rows.x_QP) == REQUESTS and len(rows) == len(batch)
    assert options or "whole" not in vars(rows), "nothing read whole rows"


@torch.no_grad()
def test_elsewhere_requests_have_a_fixed_height(monkeypatch: pytest.MonkeyPatch) -> None:
    ranker, batch, flat = draw(SPLIT)
    monkeypatch.setattr("mmoe.models.requests.HAS_KERNELS", False)
    seen = []
    mixture = ranker.eval().network.levels[0].mixture
    mixture.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0]))
    torch.testing.assert_close(run(ranker, batch).logits_BT, run(ranker, flat).logits_BT)
    assert seen[0].in_tiles and len(seen[0].x_QP) == len(batch)

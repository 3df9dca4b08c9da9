"""Rankers of batches with requests: those of every row by itself, outputs and all gradients."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.models.build import build_ranker
from mmoe.models.ranker import Ranker
from tests.needs_kernels import needs_kernels

# A small log of requests with every kind of feature on both levels, and a model of it

ROWS, REQUESTS = 40, 7
FEATURES: list[dict[str, Any]] = [
    {"kind": "categorical", "name": "item", "dim": 4},
    {"kind": "categorical", "name": "user", "dim": 8, "level": "request"},
    {"kind": "numeric", "name": "age", "level": "request", "pieces": 3, "buckets": 3},
    {"kind": "numeric", "name": "price", "pieces": 4},
    {"kind": "numeric", "name": "position"},
    {"kind": "list", "name": "likes", "level": "request"},
    {"kind": "list", "name": "tags"},
    {"kind": "vector", "name": "taste", "dim": 2, "level": "request"},
    {"kind": "vector", "name": "title", "dim": 2},
    {"kind": "cross", "name": "pair", "columns": ["user", "item"]},
    {
        "kind": "sequence",
        "name": "seen",
        "columns": ["seen"],
        "target": ["item"],
        "encoder": {"kind": "din", "hidden": [4]},
        "level": "request",
    },
    {
        "kind": "sequence",
        "name": "opened",
        "columns": ["opened"],
        "encoder": "mean",
        "unpooled": 1,
        "level": "request",
    },
]


def log() -> pa.Table:
    """Rows of requests, those of one not side by side."""
    rows, requests = ROWS, REQUESTS
    rng = np.random.default_rng(0)
    of = rng.integers(requests, size=rows)
    of[:requests] = np.arange(requests)

    def shared(values: Any) -> list[Any]:
        return [values[request] for request in of]

    def lists(count: int, most: int) -> list[list[str]]:
        return [[f"i{n}" for n in rng.integers(9, size=rng.integers(most))] for _ in range(count)]

    return pa.table(
        {
            "request": [f"r{request}" for request in of],
            "item": [f"i{n}" for n in rng.integers(9, size=rows)],
            "user": shared([f"u{n}" for n in rng.integers(4, size=requests)]),
            "age": shared(rng.normal(size=requests)),
            "price": rng.lognormal(size=rows),
            "position": rng.integers(1, 6, size=rows).astype(float),
            "likes": shared(lists(requests, 4)),
            "tags": lists(rows, 3),
            "taste": shared([list(rng.normal(size=3)) for _ in range(requests)]),
            "title": [list(rng.normal(size=3)) for _ in range(rows)],
            "seen": shared(lists(requests, 5)),
            "opened": shared(lists(requests, 3)),
            "click": (rng.random(rows) < 0.4).astype(int),
            "buy": (rng.random(rows) < 0.3).astype(int),
        }
    )


def raw_config(model: Mapping[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """A run of that log."""
    return {
        "data": {"requests": {"column": "request", "exact": exact}},
        "features": FEATURES,
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "buy", "label": "buy", "observed_when": "click"},
        ],
        "model": {
            "embedding_dim": 4,
            "expert": {"hidden": [6, 5]},
            "tower": {"hidden": [4]},
            **model,
        },
        "training": {"embedding_backend": "plain", "batch_size": 16, "eval_batch_size": 64},
    }


def draw(
    model: Mapping[str, Any], *, exact: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[Ranker, Batch, Batch]:
    """A model, and one batch with requests and without."""
    config = config_from_dict(raw_config(model, exact=exact))
    table = log()
    encoder = FeatureEncoder.fit(config, table, "log")
    torch.manual_seed(0)
    ranker = build_ranker(config, encoder).to(dtype)
    if ranker.wide is not None:
        ranker.wide.float()
    for table_weights in ranker.tables.table_weights().values():
        torch.nn.init.normal_(table_weights)
    return ranker, *batches(encoder, table, dtype)


def batches(encoder: FeatureEncoder, table: pa.Table, dtype: torch.dtype) -> tuple[Batch, Batch]:
    """One batch of all rows, with requests and without."""
    features = encoder.encode(table, "log")
    found = []
    for encoded in (features, features.flat()):
        data = EncodedData(features=encoded, labels=None)
        found.append(_as(data.batch(slice(0, len(data))), dtype))
    return found[0], found[1]


def _as(batch: Batch, dtype: torch.dtype) -> Batch:
    shared = batch.request_dense_QF
    return replace(
        batch,
        dense_BF=batch.dense_BF.to(dtype),
        request_dense_QF=None if shared is None else shared.to(dtype),
    )


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
    output = ranker(batch)
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
    assert torch.equal(ranker.eval()(batch).logits_BT, ranker(flat).logits_BT)


@pytest.mark.parametrize("scoring", ["drop", "fixed"])
@torch.no_grad()
def test_scores_with_and_without_the_display(scoring: str) -> None:
    bias = {"features": ["position"], "scoring": scoring}
    bias |= {"at": {"position": 1}} if scoring == "fixed" else {}
    ranker, batch, flat = draw({**SPLIT, "bias": bias})
    for parameter in ranker.network.bias_tower.parameters():
        torch.nn.init.normal_(parameter)
    shared, alone = (ranker.eval()(one, with_bias=True) for one in (batch, flat))
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
    ranker(batch)
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
    torch.testing.assert_close(ranker(batch).logits_BT, ranker(flat).logits_BT)
    assert seen[0].in_tiles and len(seen[0].x_QP) == len(batch)

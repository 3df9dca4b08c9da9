"""Leaves of every rank and dtype: gathered, mixed, split and joined like rows of a matrix."""

import pytest
import torch

from mmoe.mixture.dispatcher import plan_routes
from mmoe.mixture.pytrees import (
    cast_for_autocast,
    gather_rows,
    join_rows,
    mix_dense,
    mix_grouped,
    split_rows,
    stack_sources,
)

B, G, K, E = 7, 2, 2, 3


def make_tree(dtype=torch.float32):
    torch.manual_seed(0)
    return {
        "vector": torch.randn(B).to(dtype),
        "rows": (torch.randn(B, 4).to(dtype), [torch.randn(B, 2, 3).to(dtype)]),
        "ids": torch.randint(0, 9, (B, 2)),
        "flags": torch.rand(B) < 0.5,
    }


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def make_plan():
    torch.manual_seed(1)
    return plan_routes(torch.rand(B, G, E).argsort(-1)[..., :K].to(torch.int32), E)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gathered_rows_of_every_leaf(dtype):
    tree, plan = make_tree(dtype), make_plan()
    gap = torch.tensor([-1], dtype=torch.int32)
    plan = plan._replace(rows_P=torch.cat([plan.rows_P, gap]))
    gathered = gather_rows(tree, plan)
    assert list(gathered) == list(tree) and isinstance(gathered["rows"][1], list)
    for leaf, rows in zip(leaves(tree), leaves(gathered), strict=True):
        assert torch.equal(rows[:-1], leaf[plan.rows_P[:-1].long()])
        assert (rows[-1] == 0).all()


def test_mixes_of_every_leaf_and_their_gradient():
    torch.manual_seed(0)
    plan, weights = make_plan(), torch.rand(B, G, K, dtype=torch.float64)
    pairs = len(plan.rows_P)
    shapes = [(pairs,), (pairs, 4), (pairs, 2, 3)]
    y = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    out = mix_grouped(y, plan.slots_BGK, weights)
    for leaf, mixed in zip(y, out, strict=True):
        picked = leaf[plan.slots_BGK.long()]
        wide = weights.view(B, G, K, *[1] * (leaf.dim() - 1))
        torch.testing.assert_close(mixed, (wide * picked).sum(2))
        grads = [
            torch.autograd.grad(z.square().sum(), leaf)[0] for z in (mixed, (wide * picked).sum(2))
        ]
        torch.testing.assert_close(*grads)


def test_dense_mixes_of_every_leaf():
    torch.manual_seed(0)
    weights = torch.rand(B, G, E)
    y = [{"a": torch.randn(B), "b": torch.randn(B, 2, 3)} for _ in range(E)]
    out = mix_dense(y, weights)
    for name in ("a", "b"):
        together = torch.stack([part[name] for part in y], 1)
        torch.testing.assert_close(out[name], torch.einsum("bge,be...->bg...", weights, together))


def test_half_precision_outputs_are_mixed_in_float32():
    plan, weights = make_plan(), torch.rand(B, G, K)
    out = mix_grouped(torch.randn(len(plan.rows_P), 4).half(), plan.slots_BGK, weights)
    assert out.dtype == torch.float32


def test_split_and_join_are_inverse():
    tree = make_tree()
    parts = split_rows(tree, [3, 0, 4])
    assert [len(part["vector"]) for part in parts] == [3, 0, 4]
    for before, after in zip(leaves(tree), leaves(join_rows(parts)), strict=True):
        assert torch.equal(before, after)


def test_stacked_sources_hold_a_row_of_each_source_for_each_sample():
    first, second = make_tree(), make_tree(torch.float64)
    stacked = stack_sources([first["rows"], first["rows"]])
    assert torch.equal(stacked[0][0::2], first["rows"][0])
    assert torch.equal(stacked[0][1::2], first["rows"][0])
    assert stack_sources([second]) is second


def test_autocast_narrows_only_float32():
    tree = make_tree() | {"double": torch.zeros(B, dtype=torch.float64)}
    assert cast_for_autocast(tree)["vector"] is tree["vector"]
    with torch.autocast("cpu", torch.bfloat16):
        narrow = cast_for_autocast(tree)
    assert narrow["vector"].dtype == torch.bfloat16
    assert narrow["double"].dtype == torch.float64
    assert narrow["ids"] is tree["ids"]

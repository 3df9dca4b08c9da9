"""Batches that are one tensor, or tuples and dicts of tensors: every leaf is treated alike."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mmoe import ops
from mmoe.ops import permute
from mmoe.ops._checks import for_autocast

# A tensor, or tuples, lists and dicts of tensors to any depth, with the same leading dimension.
Tree = Any


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Applies a function to every leaf; returns the same structure."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    return pytree.tree_map(function, tree, *others)


def leaves_of(name: str, tree: Tree) -> list[Tensor]:
    """Lists the tensors of a tree; refuses other leaves, and tensors that differ in height."""
    leaves = [tree] if isinstance(tree, Tensor) else pytree.tree_leaves(tree)
    if not leaves:
        raise ValueError(f"{name}: expected at least one tensor, got an empty structure")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"{name}: expected tensors, or tuples and dicts of them, got a "
                f"{type(leaf).__name__} in it"
            )
        if not leaf.dim() or leaf.shape[0] != leaves[0].shape[0]:
            raise ValueError(
                f"{name}: expected tensors of one height ({list(leaves[0].shape)[:1]}), got shape "
                f"{list(leaf.shape)}"
            )
    return leaves


def split_rows(tree: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Cuts every leaf into blocks of these heights: one tree for each block."""
    # split, not slices: the gradient of split is one concatenation, that of every slice is a
    # full-size buffer of zeros.
    if isinstance(tree, Tensor):
        return list(tree.split(list(sizes)))
    leaves, structure = pytree.tree_flatten(tree)
    blocks = zip(*(leaf.split(list(sizes)) for leaf in leaves), strict=True)
    return [pytree.tree_unflatten(list(block), structure) for block in blocks]


def join_rows(trees: Sequence[Tree]) -> Tree:
    """Puts trees of one structure on top of each other, leaf by leaf."""
    return map_leaves(lambda *leaves: torch.cat(leaves), *trees)


def stack_sources(sources: Sequence[Tree]) -> Tree:
    """Stacks S sources into one: row b · S + s is row b of source s."""
    if len(sources) == 1:
        return sources[0]
    return map_leaves(lambda *leaves: torch.stack(leaves, 1).flatten(0, 1), *sources)


def gather_rows(tree: Tree, plan: ops.RoutePlan) -> Tree:
    """Gathers the rows of a plan from every leaf; zeros where the plan has row −1."""

    def gather(leaf: Tensor) -> Tensor:
        if leaf.dtype not in ops.FLOAT_DTYPES:
            # Numbers that carry no gradient (ids, masks), and what the operators do not know.
            rows = leaf.index_select(0, plan.rows_P.clamp(min=0))
            missing = (plan.rows_P < 0).view(-1, *[1] * (leaf.dim() - 1))
            return rows.masked_fill(missing, 0)
        rows = permute(_flat(leaf), plan)
        return rows if leaf.dim() == 2 else rows.view(rows.shape[0], *leaf.shape[1:])

    return map_leaves(gather, tree)


def mix_grouped(y: Tree, slots_BGK: Tensor, weights_BGK: Tensor) -> Tree:
    """Applies `gated_combine` to every leaf `[rows, …]`: `[B, G, …]`."""

    def mix(leaf: Tensor) -> Tensor:
        leaf = _in_operator_dtype(leaf)
        out_BGO = ops.gated_combine(_flat(leaf), slots_BGK, weights_BGK)
        return out_BGO if leaf.dim() == 2 else out_BGO.view(*out_BGO.shape[:2], *leaf.shape[1:])

    return map_leaves(mix, y)


def mix_dense(y: Sequence[Tree], weights_BGE: Tensor) -> Tree:
    """Applies `dense_combine` to every leaf of E trees `[B, …]`: `[B, G, …]`."""

    def mix(*leaves: Tensor) -> Tensor:
        out_BGO = ops.dense_combine(
            [_flat(_in_operator_dtype(leaf)) for leaf in leaves], weights_BGE
        )
        shape = leaves[0].shape[1:]
        return out_BGO if len(shape) == 1 else out_BGO.view(*out_BGO.shape[:2], *shape)

    return map_leaves(mix, *y)


def cast_for_autocast(tree: Tree) -> Tree:
    """Casts every leaf once, where autocast would do so for each expert."""
    return map_leaves(for_autocast, tree)


def _in_operator_dtype(leaf: Tensor) -> Tensor:
    # The operators take bfloat16, float32 and float64
    return leaf.float() if leaf.dtype == torch.float16 else leaf


def _flat(leaf: Tensor) -> Tensor:
    return leaf if leaf.dim() == 2 else leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:]))

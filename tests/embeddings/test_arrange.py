"""Order and means of pooled embeddings, against slices, divisions and cat."""

import pytest
import torch

from mmoe.config import FeatureSpec
from mmoe.embeddings.lookups import arrange, arrangement, divide_by_length

DIMS = {"a": 4, "b": 8, "c": 4, "d": 4}


def features(names: str, means: str) -> list[FeatureSpec]:
    return [FeatureSpec(name=n, table=n, pooling="mean" if n in means else "sum") for n in names]


def by_slices(sums_BD, lengths_CB, specs, keys):
    parts = dict(zip(keys, sums_BD.split([DIMS[key] for key in keys], dim=1), strict=True))
    rows = len(sums_BD)
    columns = []
    for c, spec in enumerate(specs):
        lengths_B = lengths_CB[c * rows : (c + 1) * rows]
        part = parts[spec.name]
        columns.append(divide_by_length(part, lengths_B) if spec.pooling == "mean" else part)
    return torch.cat(columns, dim=1)


@pytest.mark.parametrize("keys", ["abcd", "dcba", "cdab"])
@pytest.mark.parametrize("means", ["", "b", "ad", "abcd"])
def test_equals_slices_to_the_bit(keys, means):
    generator = torch.Generator().manual_seed(0)
    specs = features("abcd", means)
    sums_BD = torch.randn(5, 20, generator=generator).requires_grad_()
    lengths_CB = torch.randint(0, 4, (20,), generator=generator, dtype=torch.int32)
    blocks = arrangement(specs, [DIMS[s.name] for s in specs], list(keys))
    got, wanted = (
        arrange(sums_BD, lengths_CB, blocks),
        by_slices(sums_BD, lengths_CB, specs, list(keys)),
    )
    assert torch.equal(got, wanted)
    weights = torch.randn(got.shape, generator=generator)
    gradients = [torch.autograd.grad((x * weights).sum(), sums_BD)[0] for x in (got, wanted)]
    assert torch.equal(*gradients)


def test_neighbours_move_together_and_nothing_moves_without_need():
    specs = features("abcd", "")
    blocks = arrangement(specs, [4, 8, 4, 4], ["c", "d", "a", "b"])
    assert [(b.source, b.target, b.width) for b in blocks] == [(8, 0, 12), (0, 12, 8)]
    sums_BD = torch.ones(2, 20)
    same = arrangement(specs, [4, 8, 4, 4], list("abcd"))
    assert arrange(sums_BD, torch.ones(8, dtype=torch.int32), same) is sums_BD

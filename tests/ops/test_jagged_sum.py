"""Sums of each sample's rows: against a loop, gradients, nothing at all."""

import pytest
import torch

from mmoe.ops.row_sums import jagged_sum, sample_of_rows

LENGTHS = [[2, 0, 3], [0, 0], [], [1], [0, 4, 0], [300, 1]]


def _case(lengths, dtype=torch.float32, dim=5):
    generator = torch.Generator().manual_seed(sum(lengths))
    e_VD = torch.randn(sum(lengths), dim, generator=generator, dtype=dtype)
    weights_V = torch.randn(sum(lengths), generator=generator, dtype=dtype)
    return e_VD, torch.tensor(lengths, dtype=torch.int32), weights_V


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_it_is_the_loop(lengths, weighted):
    e_VD, lengths_B, weights_V = _case(lengths)
    found = jagged_sum(e_VD, lengths_B, weights_V if weighted else None)
    scaled_VD = e_VD * weights_V[:, None] if weighted else e_VD
    expected = torch.zeros(len(lengths), 5)
    for row, own_ND in enumerate(scaled_VD.split(lengths)):
        expected[row] = own_ND.sum(0)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [1]], ids=str)
def test_gradients(lengths):
    e_VD, lengths_B, weights_V = _case(lengths, torch.float64, 3)
    e_VD.requires_grad_()
    assert torch.autograd.gradcheck(lambda e: jagged_sum(e, lengths_B), (e_VD,))
    weights_V.requires_grad_()
    given = (e_VD, weights_V)
    assert torch.autograd.gradcheck(lambda e, w: jagged_sum(e, lengths_B, w), given)


def test_a_sample_is_added_up_as_if_it_were_alone():
    e_VD, lengths_B, weights_V = _case([7, 0, 29, 3], dim=24)
    whole = jagged_sum(e_VD, lengths_B, weights_V)
    alone = jagged_sum(e_VD[7:36], torch.tensor([29]), weights_V[7:36])
    assert torch.equal(whole[2:3], alone)


def test_rows_know_their_sample():
    assert sample_of_rows(torch.tensor([0, 2, 0, 1]), 3).tolist() == [1, 1, 3]

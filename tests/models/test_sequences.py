"""Encoders of sequences: against equations written out, rows apart, gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mmoe.config import SEQUENCE_ENCODERS
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.models.sequences import (
    DINEncoder,
    Events,
    SequenceInputs,
    TransformerEncoder,
    attend_target,
)

D = 8
ENCODERS = {
    "mean": {},
    "din": {"hidden": [6, 5]},
    "din, softmax": {"softmax": True},
    "transformer": {"heads": 2},
    "transformer, two layers": {"heads": 2, "layers": 2},
    "gru": {"output": 5},
}


def _encoder(name, dtype=torch.float32):
    torch.manual_seed(0)
    config = SEQUENCE_ENCODERS.validate({"kind": name.split(",")[0], **ENCODERS[name]})
    made = SEQUENCE_ENCODERS.implementation(config)(D, 40, **config.keywords())
    return made.to(dtype)


def _events(lengths, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return Events(
        torch.randn(sum(lengths), D, generator=generator, dtype=dtype),
        torch.tensor(lengths, dtype=torch.int32),
        torch.randn(len(lengths), D, generator=generator, dtype=dtype),
    )


def _row(events, row):
    start = int(events.starts_B[row])
    length = int(events.lengths_B[row])
    own = events.e_VD[start : start + length]
    return Events(own, events.lengths_B[row : row + 1], events.target_BD[row : row + 1])


@pytest.mark.parametrize("name", ENCODERS)
def test_a_row_is_encoded_as_if_it_were_alone(name):
    encoder, events = _encoder(name), _events([3, 0, 17, 1, 3, 0, 40])
    whole = encoder(events)
    assert whole.shape == (7, encoder.output_dim)
    for row in range(7):
        torch.testing.assert_close(encoder(_row(events, row))[0], whole[row])
    scored = encoder.eval()(events)
    torch.testing.assert_close(scored, whole)
    if HAS_KERNELS:
        assert all(torch.equal(encoder(_row(events, row))[0], scored[row]) for row in range(7))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("lengths", [[], [0, 0], [1]], ids=str)
def test_batches_without_events(name, lengths):
    events = _events(lengths)
    for encoder in (_encoder(name), _encoder(name).eval()):
        assert encoder(events).shape == (len(lengths), encoder.output_dim)
        assert encoder(events).isfinite().all()


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients(name):
    encoder, events = _encoder(name, torch.float64), _events([2, 0, 3], torch.float64)

    def encode(e_VD, target_BD):
        return encoder(Events(e_VD, events.lengths_B, target_BD))

    inputs = (events.e_VD.requires_grad_(), events.target_BD.requires_grad_())
    assert torch.autograd.gradcheck(encode, inputs)


@pytest.mark.parametrize("name", ENCODERS)
def test_bfloat16_is_near(name):
    encoder, events = _encoder(name), _events([3, 0, 17, 1])
    with torch.autocast("cpu", torch.bfloat16):
        narrow = encoder(events)
    torch.testing.assert_close(narrow.float(), encoder(events), atol=0.1, rtol=0.1)


def test_din_is_the_equation():
    encoder, events = _encoder("din"), _events([3, 0, 2])
    e_VD, q_VD = events.e_VD, events.target_BD[[0, 0, 0, 2, 2]]
    whole_VD = e_VD
    e_VD, q_VD = (x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() for x in (e_VD, q_VD))
    of_event, of_product = encoder.of_event.weight.chunk(2, dim=1)
    # Any share of e − q is part of the weights of e and of q
    whole = torch.cat([of_event, encoder.of_target.weight, 0 * of_event, of_product], dim=1)
    x_VX = torch.cat([e_VD, q_VD, e_VD - q_VD, e_VD * q_VD], dim=1)
    h_VH = encoder.rest(F.relu(x_VX @ whole.T + encoder.of_target.bias))
    a_V1 = h_VH @ encoder.weight.weight.T + encoder.weight.bias
    expected = torch.stack([(a_V1[:3] * whole_VD[:3]).sum(0), torch.zeros(D),
                            (a_V1[3:] * whole_VD[3:]).sum(0)])  # fmt: skip
    torch.testing.assert_close(encoder(events), expected)
    torch.testing.assert_close(encoder.weights(events), a_V1[:, 0])


def test_din_with_softmax_has_weights_that_sum_to_one():
    encoder = DINEncoder(D, 10, softmax=True)
    events = Events(torch.ones(5, D), torch.tensor([3, 2]), torch.randn(2, D))
    torch.testing.assert_close(encoder(events), torch.ones(2, D))
    of_rows = encoder.weights(events).split([3, 2])
    torch.testing.assert_close(torch.stack([own.sum() for own in of_rows]), torch.ones(2))


def test_the_gru_is_torchs():
    encoder, events = _encoder("gru"), _events([3, 7])
    theirs = torch.nn.GRU(D, 5, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(encoder.of_event.weight)
        theirs.weight_hh_l0.copy_(encoder.of_state.weight)
        encoder.of_event.bias.normal_()
        theirs.bias_ih_l0.copy_(encoder.of_event.bias)
        theirs.bias_hh_l0.copy_(encoder.of_state.bias)
    for row, own in enumerate(events.e_VD.split([3, 7])):
        torch.testing.assert_close(encoder(events)[row], theirs(own[None])[1][0, 0])


class _Written(TorchDispatchMode):
    """The most numbers that an operation returns."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            is_view = out.untyped_storage().nbytes() < out.numel() * out.element_size()
            self.most = max(self.most, 0 if is_view else out.numel())
        return out


def test_scoring_a_long_sequence_takes_no_memory_of_its_square_times_its_width():
    torch.manual_seed(0)
    encoder, events = TransformerEncoder(D, 800, layers=2).eval(), _events([800, 3, 0])
    with torch.no_grad(), _Written() as mode:
        scored = encoder(events)
    assert mode.most <= 1 << 22
    torch.testing.assert_close(scored, encoder.train()(events))
    if HAS_KERNELS:
        encoder.eval()
        assert all(torch.equal(encoder(_row(events, row))[0], scored[row]) for row in range(3))


@pytest.mark.parametrize("layers", [1, 2])
def test_the_transformer_is_torchs(layers):
    torch.manual_seed(0)
    encoder, events = TransformerEncoder(D, 10, layers=layers, heads=2), _events([3, 0, 10])
    for row in range(3):
        own = _row(events, row)
        places = encoder.places[: len(own.e_VD)].flip(0)
        x_LD = torch.cat([own.e_VD + places, own.target_BD + encoder.places[-1]])
        for block in encoder.blocks:
            x_LD = _torchs_layer(block)(x_LD[None])[0]
        torch.testing.assert_close(encoder(events)[row], x_LD[-1], atol=1e-5, rtol=1e-5)


def _torchs_layer(block):
    layer = torch.nn.TransformerEncoderLayer(
        D, 2, 4 * D, dropout=0.0, batch_first=True, norm_first=True
    )
    attention, both = layer.self_attn, [block.query, block.key, block.value]
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([one.weight for one in both]))
        attention.in_proj_bias.copy_(torch.cat([one.bias for one in both]))
    pairs = ((attention.out_proj, block.out), (layer.linear1, block.wide),
             (layer.linear2, block.narrow), (layer.norm1, block.norm),
             (layer.norm2, block.mlp_norm))  # fmt: skip
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    return layer.train()


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match=r"heads is 3, which does not divide the width .*, 8"):
        TransformerEncoder(D, 10, heads=3)


def test_the_latest_events_stand_side_by_side():
    events = Events(torch.arange(6.0).view(3, 2), torch.tensor([1, 0, 2]))
    assert events.latest(2).tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [4, 5, 2, 3]]
    assert events.from_end_V.tolist() == [0, 1, 0]


def test_no_sequences_take_no_columns():
    assert SequenceInputs([], [], {}).output_dim == 0


def test_weights_of_many_events_are_not_rounded_away_in_bfloat16():
    lengths = torch.tensor([50, 200, 333])
    events = Events(torch.zeros(int(lengths.sum()), 2), lengths)
    of_events, own = (torch.zeros(n, 2, dtype=torch.bfloat16) for n in (len(events.e_VD), 3))
    # Equal scores, and a value of 1 of the target alone: what comes back is the target's weight
    found = attend_target(own, (of_events, own), (of_events, own + 1), events, heads=1)
    torch.testing.assert_close(found.float()[:, 0], 1 / (lengths + 1.0), rtol=0.005, atol=0)

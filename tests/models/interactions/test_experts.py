"""Every kind of expert: its formula written out, gradients, sizes, and a row's independence."""

import math

import pytest
import torch
import torch.nn.functional as F

from mmoe.mixture import ExpertPool
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.models.interactions.autoint import AutoIntExpert, FieldAttention
from mmoe.models.interactions.cross_network import CrossNetwork
from mmoe.models.interactions.factorization_machine import DeepFMExpert, FactorizationExpert
from mmoe.models.interactions.masknet import MaskNet

EXPERTS = {
    "dcn_v2": lambda d, o: CrossNetwork(d, o, layers=3),
    "fm": lambda d, o: FactorizationExpert(d, o, factors=5),
    "deepfm": lambda d, o: DeepFMExpert(d, o, factors=5, hidden=[7]),
    "masknet": lambda d, o: MaskNet(d, o, blocks=3, dim=7, mask_hidden=9),
    "masknet, serial": lambda d, o: MaskNet(d, o, arrangement="serial", dim=7, mask_hidden=9),
    "autoint": lambda d, o: AutoIntExpert(d, o, fields=3, field_dim=5, head_dim=4),
}
kinds = pytest.mark.parametrize("make", EXPERTS.values(), ids=EXPERTS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_the_factorization_machine_is_the_sum_over_all_pairs():
    expert, x_BD = FactorizationExpert(6, 4, factors=3), torch.randn(5, 6)
    torch.nn.init.normal_(expert.linear.bias)
    v_KD, expected_BO = expert.factors_KD, expert.linear(x_BD)
    for i in range(6):
        for j in range(i + 1, 6):
            pair_BK = x_BD[:, i, None] * x_BD[:, j, None] * v_KD[:, i] * v_KD[:, j]
            expected_BO = expected_BO + pair_BK @ expert.pairs.weight.T
    torch.testing.assert_close(expert(x_BD), expected_BO)


def test_deepfm_is_a_factorization_machine_and_an_mlp():
    expert, x_BD = DeepFMExpert(6, 4, hidden=[5, 3], activation="silu"), torch.randn(5, 6)
    h_BH = x_BD
    for layer in expert.deep.layers:
        h_BH = F.silu(h_BH @ layer.weight.T + layer.bias)
    expected_BO = expert.machine(x_BD) + h_BH @ expert.project.weight.T
    torch.testing.assert_close(expert(x_BD), expected_BO)


@pytest.mark.parametrize("arrangement", ["parallel", "serial"])
def test_a_masknet_is_its_blocks(arrangement):
    fields = [(1, 3), (4, 2), (6, 3)]
    net = MaskNet(9, 4, blocks=3, arrangement=arrangement, dim=5, mask_hidden=7, fields=fields)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    x_BD = torch.randn(6, 9)
    normed_BD = x_BD.clone()
    for start, width in fields:
        e = x_BD[:, start : start + width]
        deviation = e.var(1, unbiased=False, keepdim=True).add(1e-5).sqrt()
        normed_BD[:, start : start + width] = (e - e.mean(1, keepdim=True)) / deviation
    outputs, read = [], normed_BD
    for block in range(3):
        h = F.relu(x_BD @ net.aggregates[block].weight.T + net.aggregates[block].bias)
        mask = 1 + h @ net.masks[block].weight.T + net.masks[block].bias
        z = (mask * read) @ net.hidden[block].weight.T
        z = (z - z.mean(1, keepdim=True)) / z.var(1, unbiased=False, keepdim=True).add(1e-5).sqrt()
        outputs.append(F.relu(z * net.norms[block].weight + net.norms[block].bias))
        read = outputs[-1] if arrangement == "serial" else normed_BD
    together = outputs[-1] if arrangement == "serial" else torch.cat(outputs, 1)
    expected_BO = together @ net.project.weight.T + net.project.bias
    torch.testing.assert_close(net(x_BD), expected_BO)


@pytest.mark.parametrize("training", [True, False])
def test_attention_is_its_sums(training):
    attention = FieldAttention(4, layers=2, heads=2, head_dim=3).train(training)
    e_BFD = torch.randn(5, 3, 4)
    found = attention(e_BFD)
    for layer in attention.layers:
        query, key, value, rest = layer.weight.split(6)
        after = torch.zeros(5, 3, 6)
        for b in range(5):
            for h in (slice(0, 3), slice(3, 6)):
                for f in range(3):
                    logits = [
                        (query[h] @ e_BFD[b, f]) @ (key[h] @ e_BFD[b, g]) / math.sqrt(3)
                        for g in range(3)
                    ]
                    weights = torch.stack(logits).softmax(0)
                    mix = sum(weights[g] * (value[h] @ e_BFD[b, g]) for g in range(3))
                    after[b, f, h] = F.relu(mix + rest[h] @ e_BFD[b, f])
        e_BFD = after
    torch.testing.assert_close(found, e_BFD)


def test_the_expert_of_attention_makes_its_fields():
    expert, x_BD = AutoIntExpert(6, 4, fields=3, field_dim=5), torch.randn(7, 6)
    fields = [x_BD @ part.T for part in expert.spread.weight.split(5)]
    e_BFD = expert.attention(torch.stack(fields, 1))
    torch.testing.assert_close(expert(x_BD), expert.project(e_BFD.flatten(1)))


@kinds
@pytest.mark.parametrize("training", [True, False])
def test_gradients(make, training):
    expert = make(4, 3).double().train(training)
    x_BD = torch.randn(3, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(expert, (x_BD,))
    names, weights = zip(*expert.named_parameters(), strict=True)
    weights = tuple(weight.detach().requires_grad_() for weight in weights)

    def of_weights(*values):
        tensors = dict(zip(names, values, strict=True))
        return torch.func.functional_call(expert, tensors, (x_BD.detach(),))

    assert torch.autograd.gradcheck(of_weights, weights)


@kinds
@pytest.mark.parametrize("dim", [8, 200])
def test_fresh_outputs_are_about_as_large_as_inputs(make, dim):
    with torch.no_grad():
        sizes = [float(make(dim, 32)(torch.randn(300, dim)).square().mean()) for _ in range(8)]
    assert 0.3 < sum(sizes) / 8 < 3


@kinds
def test_a_row_is_computed_alone(make):
    expert, x_BD = make(11, 5).eval(), torch.randn(321, 11)
    with torch.no_grad():
        whole = expert(x_BD)
        torch.testing.assert_close(whole, expert.train()(x_BD))
        expert.eval()
        parts = torch.cat([expert(part) for part in x_BD.split([1, 2, 7, 64, 100, 147])])
        turned = expert(x_BD.flip(0)).flip(0)
    if HAS_KERNELS:
        assert torch.equal(whole, parts) and torch.equal(whole, turned)


@kinds
def test_no_rows_and_bf16(make):
    pool = ExpertPool([make(6, 5), make(6, 5)], stacked=True)
    y = pool.grouped(torch.zeros(0, 6), torch.zeros(3, dtype=torch.int32))
    assert y.shape == (0, 5)
    y.sum().backward()
    assert all(not p.grad.any() for p in pool.parameters() if p.grad is not None)
    with torch.autocast("cpu", torch.bfloat16):
        for training in (True, False):
            for y in pool.train(training).dense([torch.randn(4, 6)]):
                assert y.shape == (4, 5) and y.isfinite().all()


@kinds
def test_it_says_which_dimensions_are_inputs(make):
    narrow, wide = make(4, 3), make(6, 3)
    old, new = narrow.state_dict(), wide.state_dict()
    read = {n: list(dims) for n, dims in wide.axes().items() if n in new}
    assert all(set(dims.values()) == {"inputs"} for dims in wide.axes().values())
    for name, dims in read.items():
        assert [new[name].shape[dim] for dim in dims] == [6] * len(dims)
    grown = {name for name in new if new[name].shape != old[name].shape}
    assert grown == set(read)
    with torch.no_grad():
        for name, tensor in new.items():
            if name in grown:
                tensor.zero_()
            tensor[tuple(slice(size) for size in old[name].shape)] = old[name]
    x_BD = torch.randn(5, 6)
    torch.testing.assert_close(wide(x_BD), narrow(x_BD[:, :4]))
    loss = wide(x_BD).square().sum()
    loss.backward()
    read = {name: wide.get_parameter(name).grad.movedim(dims[-1], 0)[4:].abs().sum()
            for name, dims in read.items()}  # fmt: skip
    assert any(total > 0 for total in read.values()), "weights of zero would stay zero"

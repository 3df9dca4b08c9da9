"""What holds for every gate: the contract, state, precision, independence of rows."""

import copy

import pytest
import torch

from mmoe.mixture import DSelectKGate, FixedGate, MultiGateMixture, SoftmaxGate, StaticGate

RANDOM_IN_TRAINING = ["noisy_top_k", "budget", "switch", "gshard"]
BLIND = ["static", "static_k", "dselect_k_static", "fixed"]
READ_THEIR_INPUT = ["softmax", "softmax_mlp", "top_k", "top_k_before", *RANDOM_IN_TRAINING]
READ_THEIR_INPUT += ["joint", "joint_before", "joint_budget", "cosine", "sigmoid", "dselect_k"]
READ_THEIR_INPUT += ["always", "always_joint"]


def parts(output) -> list[torch.Tensor]:
    losses = [output.auxiliary_losses[name] for name in sorted(output.auxiliary_losses)]
    return [output.weights, *([] if output.experts is None else [output.experts]), *losses]


def assert_same(first, second):
    assert first.auxiliary_losses.keys() == second.auxiliary_losses.keys()
    for a, b in zip(parts(first), parts(second), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("training", [True, False])
def test_contract(gate, rows, visibility, training):
    output = gate.module.train(training)(rows(50), visibility)
    num_gates, num_experts = visibility.shape
    weights, experts = output.weights, output.experts
    assert weights.dtype == torch.float32
    assert weights.shape[:2] == (50, num_gates)
    assert (weights >= 0).all()
    assert weights.isfinite().all()
    if experts is None:
        assert weights.shape[2] == num_experts
        assert (weights[:, ~visibility] == 0).all()
    else:
        assert experts.dtype == torch.int32
        assert experts.shape == weights.shape
        assert (weights[experts < 0] == 0).all()
        for g in range(num_gates):
            picked = experts[:, g].long()
            assert visibility[g][picked[picked >= 0]].all()
            counts = torch.stack([(picked == e).sum(1) for e in range(num_experts)])
            assert counts.max() == 1, "an expert is picked at most once"
    assert all(loss.shape == () for loss in output.auxiliary_losses.values())


def test_print_shows_the_options(gate):
    options = "temperature=1.5, dropout=0.3, z_loss=0.1, balance_loss=0.2"
    assert gate.name == "fixed" or options in repr(gate.module)


def test_losses_come_in_training_only_and_reach_the_parameters(gate, rows, visibility):
    losses = gate.module.train()(rows(50), visibility).auxiliary_losses
    assert gate.module.eval()(rows(50), visibility).auxiliary_losses == {}
    if gate.name == "fixed":
        assert losses == {}
        return
    assert {"z_loss", "balance_loss"} <= losses.keys()
    for name, loss in losses.items():
        gradients = torch.autograd.grad(
            loss, list(gate.module.parameters()), allow_unused=True, retain_graph=True
        )
        reached = [gradient for gradient in gradients if gradient is not None]
        assert any((gradient != 0).any() for gradient in reached), name


def test_losses_that_were_not_asked_for_are_absent(gate, rows, visibility):
    own = {
        "noisy_top_k": {"importance_loss", "load_loss"},
        "budget": {"importance_loss", "load_loss"},
        "switch": {"balance_loss"},
        "gshard": {"balance_loss"},
        "dselect_k": {"entropy_loss", "code_loss"},
        "dselect_k_static": {"entropy_loss", "code_loss"},
    }
    losses = gate.make()(rows(5), visibility).auxiliary_losses
    assert losses.keys() == own.get(gate.name, set())


def test_every_parameter_gets_a_gradient(gate, rows, visibility):
    output = gate.module.train()(rows(200), visibility)
    total = output.weights.square().sum() + sum(output.auxiliary_losses.values())
    if gate.name != "fixed":
        total.backward()
    for name, parameter in gate.module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_no_rows(gate, rows, visibility):
    output = gate.module.train()(rows(0), visibility)
    assert output.weights.shape[0] == 0
    for name, loss in output.auxiliary_losses.items():
        assert float(loss.detach()) == 0, name
    if output.auxiliary_losses:
        (output.weights.sum() + sum(output.auxiliary_losses.values())).backward()
    for parameter in gate.module.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_a_row_does_not_depend_on_its_batch(gate, rows, visibility):
    """Bit for bit, in any order, at any height: kernels treat the last rows in another way."""
    module = gate.module.eval()
    with torch.no_grad():
        for n in range(1, 60):
            x_BD = 3 * rows(n, seed=n)[0]
            order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
            here, there, alone = (
                module([x] * len(visibility), visibility) for x in (x_BD, x_BD[order], x_BD[-1:])
            )
            for a, b, c in zip(parts(here), parts(there), parts(alone), strict=True):
                assert torch.equal(a[order], b), n
                assert torch.equal(a[-1:], c), n


def test_training_repeats_with_the_generator(gate, rows, visibility):
    module = gate.make()
    outputs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        outputs.append(module(rows(200), visibility))
    assert_same(outputs[0], outputs[1])
    same = all(torch.equal(a, b) for a, b in zip(parts(outputs[0]), parts(outputs[2]), strict=True))
    assert same == (gate.name not in RANDOM_IN_TRAINING)


def test_copies_and_state(gate, rows, visibility):
    module = gate.module.eval()
    expected = module(rows(30), visibility)
    assert_same(module(rows(30), visibility), expected)
    assert_same(copy.deepcopy(module)(rows(30), visibility), expected)
    torch.manual_seed(9)
    other = gate.make(temperature=1.5).eval()
    other.load_state_dict(module.state_dict())
    assert_same(other(rows(30), visibility), expected)
    with torch.no_grad():
        assert_same(module(rows(30), visibility), expected)
    with torch.inference_mode():
        assert_same(module(rows(30), visibility), expected)
        module.train()(rows(30), visibility)


def test_router_arithmetic_is_in_fp32(gate, rows, visibility):
    """A bf16 module under autocast decides as an fp32 one with the same numbers."""
    narrow = gate.make().eval().bfloat16()
    wide = copy.deepcopy(narrow).float()
    inputs = [rows(40)[0].bfloat16()] * len(visibility)
    with torch.autocast("cpu", torch.bfloat16):
        got = narrow(inputs, visibility)
    assert_same(got, wide([inputs[0].float()] * len(inputs), visibility))
    assert got.weights.dtype == torch.float32


def test_fp64_goes_through_in_fp64(gate, rows, visibility):
    inputs = [rows(40)[0].double()] * len(visibility)
    output = gate.make().eval().double()(inputs, visibility)
    assert output.weights.dtype == torch.float64
    exact = output.weights.sum(-1)
    if gate.name not in (
        "always",
        "always_joint",
        "top_k_before",
        "joint_before",
        "switch",
        "dselect_k",
        "dselect_k_static",
        "fixed",
    ):
        torch.testing.assert_close(exact, torch.ones_like(exact), rtol=1e-14, atol=0)


def test_inputs_of_their_own(gate, visibility):
    """A gate reads its own input: the gates together decide as each would alone."""
    if gate.name in ("joint", "joint_before", "budget", "joint_budget", "always_joint"):
        pytest.skip("their decision is of all inputs")
    module = gate.make().eval()
    inputs = [torch.randn(20, 13) for _ in visibility]
    together = module(inputs, visibility)
    for g, x in enumerate(inputs):
        alone = module([x] * len(inputs), visibility)
        torch.testing.assert_close(together.weights[:, g], alone.weights[:, g])
        if together.experts is not None:
            assert torch.equal(together.experts[:, g], alone.experts[:, g])


def test_in_a_mixture_both_ways_of_running_it_agree(gate, visibility):
    experts = [torch.nn.Linear(13, 4) for _ in range(visibility.shape[1])]
    x = torch.randn(40, 13)
    results = []
    for execution in ("dense", "grouped"):
        layer = MultiGateMixture(
            13, 3, experts, gate=gate.module, visibility=visibility, execution=execution
        )
        torch.manual_seed(2)
        output = layer(x, return_gates=True)
        layer.zero_grad()
        (output.out_BGO.square().sum() + sum(output.auxiliary_losses.values())).backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        results.append([output.out_BGO, output.gate_weights_BGE, *gradients])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


SMOOTH = ["softmax_mlp", "top_k", "top_k_before", "cosine", "sigmoid", "static"]
SMOOTH += ["joint", "joint_before", "joint_budget"]


@pytest.mark.parametrize("gate", SMOOTH, indirect=True)
def test_gradcheck_of_weights_and_losses_where_picks_do_not_change(gate, visibility):
    torch.manual_seed(0)
    module = gate.make(z_loss=0.1, balance_loss=0.1).double()

    def outputs(x, *_):
        output = module([x] * len(visibility), visibility)
        return output.weights, *output.auxiliary_losses.values()

    x = torch.randn(4, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (x, *module.parameters()), fast_mode=True)


@pytest.mark.parametrize("gate", BLIND, indirect=True)
def test_a_gate_that_reads_no_input_takes_any(gate, visibility):
    inputs = [{"ids": torch.zeros(20, dtype=torch.int64), "dense": torch.zeros(20, 3)}] * 3
    tensors = [torch.zeros(20, 1)] * 3
    module = gate.module.eval()
    assert_same(module(inputs, visibility), module(tensors, visibility))


@pytest.mark.parametrize("gate", READ_THEIR_INPUT, indirect=True)
def test_nan_is_refused_and_located(gate, rows, visibility):
    inputs = [x.clone() for x in rows(30)]
    inputs[2][4:21] = torch.nan
    with pytest.raises(ValueError, match="gate 2: 17 rows have NaN logits; look for NaN") as caught:
        gate.module(inputs, visibility)
    assert "\n" not in str(caught.value)


def test_a_mixture_of_other_sizes_is_refused(gate, rows, visibility):
    """Broadcast, a gate of one row or column would pass for any number of them."""
    inputs = rows(4)
    for seen, name, got in (
        (visibility[:1], "num_gates: expected a gate built for 1", "3"),
        (visibility[:, :1], "num_experts: expected a gate built for 1", "6"),
        (torch.cat([visibility] * 2, 1), "num_experts: expected a gate built for 12", "6"),
    ):
        with pytest.raises(
            ValueError, match=rf"{name}, as visibility_GE .*, got one built for {got}"
        ):
            gate.module(inputs[: len(seen)], seen)
    with pytest.raises(ValueError, match="inputs: expected 3 tensors, one per gate, got 2"):
        gate.module(inputs[:2], visibility)
    with pytest.raises(
        ValueError, match=r"visibility_GE: expected bool \[gates, experts\], got torch"
    ):
        gate.module(inputs, visibility.int())


@pytest.mark.parametrize(
    "narrow",
    [
        lambda: FixedGate(torch.ones(1, 1)),
        lambda: StaticGate(1, 4),
        lambda: SoftmaxGate(8, 2, 1),
        lambda: DSelectKGate(None, 1, 1, k=1),
        lambda: DSelectKGate(8, 2, 3, k=1),
    ],
)
def test_narrow_gates_are_not_broadcast_in_a_mixture(narrow):
    experts = [torch.nn.Linear(8, 5) for _ in range(4)]
    with pytest.raises(ValueError, match=r"num_(gates|experts): expected a gate built for"):
        MultiGateMixture(8, 2, experts, gate=narrow())(torch.zeros(3, 8))

"""`init="copy"`: the converted network gives the dense one's outputs, however it is run."""

import warnings

import pytest
import torch
from torch import nn

from mmoe.integrations.convert import ConvertedMoE, convert
from mmoe.integrations.convert.layer import FeedForwardExpert
from tests.integrations.convert.networks import NETWORKS, TOLERANCE, D, difference, encoder, make

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
ALL = pytest.mark.parametrize("name", list(NETWORKS))
# What another network has as well and more besides is left to make test-all
ALIKE = ("encoder", "encoder, batch first", "encoder, tanh", "encoder, no bias", "decoder",
         "sequential", "sequential, dropouts", "gated, bias", "gated, gelu")  # fmt: skip
TRACED = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in NETWORKS],
)


def mixtures(model):
    return [module for module in model.modules() if isinstance(module, ConvertedMoE)]


def zero(model):
    """Makes the mixtures give nothing: whoever still runs dense layers gives it away."""
    for mixture in mixtures(model):
        for weight in mixture.mixture.experts.parameters():
            nn.init.zeros_(weight)


@pytest.mark.whole
@DTYPES
@ALL
def test_outputs_and_gradients_are_the_dense_networks(name, dtype):
    dense, x = make(name, dtype)
    model = convert(dense, num_experts=4)
    assert len(mixtures(model)) == NETWORKS[name][2]
    for training in (True, False):
        dense.train(training)
        model.train(training)
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                assert difference(model(x), dense(x)) <= TOLERANCE[dtype], (training, mode)
        mine, its = x.clone().requires_grad_(), x.clone().requires_grad_()
        model(mine).pow(3).sum().backward()
        dense(its).pow(3).sum().backward()
        assert difference(mine.grad, its.grad) <= 10 * TOLERANCE[dtype]
    zero(model)
    for training in (True, False):
        with torch.no_grad():
            assert difference(model.train(training)(x), dense.train(training)(x)) > 1e-2


@pytest.mark.whole
@pytest.mark.parametrize(
    "training", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["train", "eval"]
)
@TRACED
def test_compiled(name, training):
    torch._dynamo.reset()
    dense, x = make(name, torch.float64)
    model = convert(dense, num_experts=3).train(training)
    compiled = torch.compile(model, backend="eager")
    expected = dense.train(training)(x)
    assert difference(compiled(x), expected) <= 1e-10
    with torch.no_grad():
        assert difference(compiled(x), expected) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@ALL
def test_compiled_whole(name, backend):
    torch._dynamo.reset()
    dense, x = make(name)
    compiled = torch.compile(convert(dense, num_experts=3), backend=backend)
    assert difference(compiled(x), dense(x)) <= 1e-5


def test_one_is_compiled_by_inductor_always():
    torch._dynamo.reset()
    dense, x = make("gated")
    assert difference(torch.compile(convert(dense))(x), dense(x)) <= 1e-5


@DTYPES
@TRACED
def test_exported(name, dtype):
    dense, x = make(name, dtype)
    model = convert(dense, num_experts=3).eval()
    expected = dense.eval()(x)
    batch = 1 if name.startswith(("encoder", "decoder")) and "first" not in name else 0
    shapes = ({batch: torch.export.Dim("rows", min=2)},)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes).module()
    assert difference(program(x), expected) <= TOLERANCE[dtype]
    twice = torch.cat([x, x], batch)
    assert difference(program(twice), dense(twice)) <= TOLERANCE[dtype]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("masked", "targets", "mode"),
    [(True, None, torch.no_grad), (False, ["layers.1"], torch.inference_mode)],
)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_fast_path_is_never_taken(masked, norm_first, batch_first, targets, mode):
    """Where rows are padded, its outputs there are 0 and nobody's; the others are compared."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        D, 2, 12, 0.0, batch_first=batch_first, norm_first=norm_first
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dense = nn.TransformerEncoder(layer, 2).eval()
    model = convert(dense, num_experts=4, target_modules=targets)
    x = torch.randn(3, 5, D) if batch_first else torch.randn(5, 3, D)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2]]) if masked else None
    kept = slice(None) if padding is None else ~(padding if batch_first else padding.T)
    with mode():
        expected = dense(x, src_key_padding_mask=padding)[kept]
        assert difference(model(x, src_key_padding_mask=padding)[kept], expected) <= 1e-5
        zero(model)
        assert difference(model(x, src_key_padding_mask=padding)[kept], expected) > 1e-2


def test_a_single_layer_and_an_encoder_made_of_it():
    layer = nn.TransformerEncoderLayer(D, 2, 12, 0.0, batch_first=True).eval()
    model = convert(layer, 4)
    x = torch.randn(2, 3, D)
    with torch.no_grad():
        assert difference(model(x), layer(x)) <= 1e-5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stacked = nn.TransformerEncoder(model, 2)
        assert difference(stacked(x), layer(layer(x))) <= 1e-5


def test_a_whole_transformer():
    torch.manual_seed(0)
    dense = nn.Transformer(D, 2, 2, 2, 12, dropout=0.0, batch_first=True).double()
    model = convert(dense, 4)
    assert len(mixtures(model)) == 4
    source, target = torch.randn(2, 2, 5, D, dtype=torch.float64).unbind(0)
    for training in (True, False):
        expected = dense.train(training)(source, target)
        assert difference(model.train(training)(source, target), expected) <= 1e-10
        with torch.no_grad():
            assert difference(model(source, target), expected) <= 1e-10


@pytest.mark.parametrize("name", ["encoder, tanh", "sequential, PReLU", "gated, gelu"])
def test_other_activations_run_as_modules(name):
    model = convert(make(name)[0], 3)
    experts = mixtures(model)[0].mixture.experts
    assert [type(expert) for expert in experts] == [FeedForwardExpert] * 3


def test_the_heads_and_position_tables_of_a_network_stay_dense():
    model = convert(make("SwinV2-like")[0], 4)
    assert isinstance(model[0].cpb_mlp[0], nn.Linear)
    assert isinstance(model[0].mlp.fc1, ConvertedMoE)
    named = convert(make("SwinV2-like")[0], 4, target_modules=["cpb_mlp"])
    assert isinstance(named[0].cpb_mlp[0], ConvertedMoE)
    head = nn.Sequential(nn.Linear(D, 12), nn.ReLU(), nn.Linear(12, 3))
    assert isinstance(convert(head, 4)[0], ConvertedMoE)


@pytest.mark.parametrize(
    "gate",
    [
        "softmax",
        "top_k",
        "noisy_top_k",
        "sigmoid",
        "static",
        {"kind": "top_k", "k": 3, "balance_loss": 0.1, "dropout": 0.2},
        {"kind": "softmax", "hidden": [5], "temperature": 2.0},
    ],
    ids=str,
)
def test_gates_whose_weights_add_up_to_1(gate):
    dense, x = make("encoder", torch.float64)
    model = convert(dense, 4, gate=gate)
    for training in (True, False):
        assert difference(model.train(training)(x), dense.train(training)(x)) <= 1e-10


def test_dropout_falls_on_hidden_units_while_training():
    torch.manual_seed(0)
    dense = nn.TransformerEncoderLayer(D, 2, 512, dropout=0.5, batch_first=True)
    dense.dropout1.p = dense.dropout2.p = dense.self_attn.dropout = 0.0
    model = convert(dense, 4, k=1)  # two of them would even their draws out
    x = torch.randn(1, 3, D)
    draws = torch.stack([model(x) for _ in range(300)])
    its = torch.stack([dense(x) for _ in range(300)])
    assert draws.std(0).mean() > 0.05
    torch.testing.assert_close(draws.mean(0), its.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(draws.std(0).mean(), its.std(0).mean(), atol=0.03, rtol=0)
    assert torch.equal(model.eval()(x), model(x))


def test_bfloat16_and_autocast():
    dense, x = make("encoder, batch first")
    model = convert(dense, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = model(x), dense(x)
    assert found.dtype == expected.dtype and difference(found.float(), expected.float()) < 0.03
    low = convert(dense.bfloat16(), 4)
    assert {weight.dtype for weight in low.parameters()} == {torch.bfloat16}
    x = x.bfloat16()
    assert low(x).dtype == torch.bfloat16
    assert difference(low(x).float(), dense(x).float()) < 0.05


def test_on_the_meta_device():
    with torch.device("meta"):
        dense = encoder()
    model = convert(dense, 4)
    assert all(weight.is_meta for weight in model.parameters())
    assert len(mixtures(model)) == 2

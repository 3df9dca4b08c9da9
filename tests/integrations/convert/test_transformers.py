"""Networks of the `transformers` library, built from configs: no weights, no downloads."""

import pytest
import torch

from mmoe.integrations.convert import ConvertedMoE, convert
from tests.integrations.convert.networks import difference

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = {"vocab_size": 20, "max_position_embeddings": 16, "intermediate_size": 24}


def bert(**more):
    config = transformers.BertConfig(**SIZES, **TEXT, **NO_DROPOUT, **more)
    return transformers.BertModel(config)


def llama(**more):
    config = transformers.LlamaConfig(**SIZES, **TEXT, use_cache=False, **more)
    return transformers.LlamaModel(config)


def vit():
    config = transformers.ViTConfig(
        **SIZES, **NO_DROPOUT, intermediate_size=24, image_size=8, patch_size=4
    )
    return transformers.ViTModel(config)


def swinv2():
    config = transformers.Swinv2Config(
        image_size=16,
        patch_size=2,
        embed_dim=8,
        depths=[2, 1],
        num_heads=[2, 2],
        window_size=4,
        drop_path_rate=0.0,
        **NO_DROPOUT,
    )
    return transformers.Swinv2Model(config)


TOKENS = {"input_ids": torch.arange(10).view(2, 5)}
NETWORKS = {
    "BERT": (bert, TOKENS, 2),
    "BERT, chunked, gelu_new": (
        lambda: bert(chunk_size_feed_forward=1, hidden_act="gelu_new"),
        TOKENS,
        2,
    ),
    "Llama": (llama, TOKENS, 2),
    "Llama, bias": (lambda: llama(mlp_bias=True), TOKENS, 2),
    "ViT": (vit, {"pixel_values": torch.linspace(-1, 1, 384).view(2, 3, 8, 8)}, 2),
    "Swinv2": (swinv2, {"pixel_values": torch.linspace(-1, 1, 1536).view(2, 3, 16, 16)}, 3),
}
ALL = pytest.mark.parametrize("name", list(NETWORKS))
# What another network has as well and more besides is left to make test-all
TRACED = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("BERT", "Llama", "ViT") else [])
        for name in NETWORKS
    ],
)


def make(name):
    torch.manual_seed(0)
    network, inputs, parts = NETWORKS[name]
    dense = network().double()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    model = convert(dense, num_experts=4)
    assert sum(isinstance(m, ConvertedMoE) for m in model.modules()) == parts
    return dense, model, inputs


@ALL
def test_equal_at_the_start(name):
    dense, model, inputs = make(name)
    for training in (True, False):
        expected = dense.train(training)(**inputs).last_hidden_state
        model.train(training)
        for mode in (torch.enable_grad, torch.no_grad):
            with mode():
                found = model(**inputs).last_hidden_state
            assert difference(found, expected) <= 1e-10


@TRACED
def test_exported(name):
    dense, model, inputs = make(name)
    program = torch.export.export(model.eval(), (), inputs).module()
    expected = dense.eval()(**inputs).last_hidden_state
    assert difference(program(**inputs).last_hidden_state, expected) <= 1e-10


@TRACED
def test_compiled(name):
    torch._dynamo.reset()
    dense, model, inputs = make(name)
    found = torch.compile(model, backend="eager")(**inputs).last_hidden_state
    assert difference(found, dense(**inputs).last_hidden_state) <= 1e-10


@pytest.mark.parametrize(
    ("name", "targets", "found"),
    [
        (
            "BERT",
            ["intermediate"],
            ["encoder.layer.0.intermediate", "encoder.layer.1.intermediate"],
        ),
        ("BERT", r"encoder\.layer\.1", ["encoder.layer.1.intermediate"]),
        ("Llama", ["down_proj"], ["layers.0.mlp", "layers.1.mlp"]),
        ("Llama", ["layers.1.mlp"], ["layers.1.mlp"]),
        ("ViT", ["fc1"], ["layers.0.mlp.fc1", "layers.1.mlp.fc1"]),
    ],
)
def test_by_the_names_that_these_networks_have(name, targets, found):
    dense = NETWORKS[name][0]()
    model = convert(dense, 4, target_modules=targets)
    named = [n for n, module in model.named_modules() if isinstance(module, ConvertedMoE)]
    assert [n.removeprefix("encoder.layer") for n in named] == [
        n.removeprefix("encoder.layer") for n in found
    ]

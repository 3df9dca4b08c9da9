"""What `convert` refuses, in one line that names the setting and the mend."""

from functools import partial

import pytest
from torch import nn

from mmoe.integrations.convert import convert
from mmoe.mixture import MLPExperts, MoE, TopKGate
from tests.integrations.convert.networks import D, Gated, H, Mlp, encoder


def unfit_layer():
    layer = nn.TransformerEncoderLayer(D, 2, H)
    layer.linear2 = nn.Linear(H + 4, D)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def unfit_gate():
    gated = Gated()
    gated.gate_proj = nn.Linear(D, H + 1)
    return nn.Sequential(gated)


def mixed_types():
    mlp = Mlp()
    mlp.fc2.double()
    return mlp


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (
            lambda: nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(2, 2)),
            {},
            r"module: found no feed-forward part among 3 modules of the types Sequential, Conv1d, "
            r"Linear \(as 0, 1\); known forms are .*fc1, act, fc2.*register$",
        ),
        (lambda: nn.Linear(2, 2), {}, r"\(as the module itself\)"),
        (
            unfit_layer,
            {},
            r"^layers\.0: expected a second product that reads the 12 units of the first, got one "
            "that reads 16; give both the same width",
        ),
        (unfit_gate, {}, r"^0: expected a gate of 8 to 12 units .*, got 8 to 13; give both"),
        (mixed_types, {}, r"expected weights of one type of .*, got torch.float32, torch.float64"),
        (lambda: Mlp().half(), {}, r"^module: .*got torch.float16; cast the module first"),
        (
            lambda: convert(encoder(), 4),
            {},
            r"module: it has been converted already: layers\.0\.linear1, layers\.1\.linear1 are",
        ),
        (lambda: convert(Gated(), 4), {}, "module: it has been converted already"),
        (
            lambda: convert(encoder(), 4, target_modules=["layers.0"]),
            {"target_modules": ["layers.0.linear1"]},
            r"target_modules: layers\.0\.linear1 has been converted already; leave it out",
        ),
        (Mlp, {"k": 5}, r"k: expected 1 to 4, the number of experts, got 5; lower k, or raise num"),
        (Mlp, {"k": 0}, "k: expected a whole number of 1 or more, got 0"),
        (Mlp, {"num_experts": 0}, "num_experts: expected a whole number of 1 or more, got 0"),
        (Mlp, {"init": "copies"}, "init: expected one of copy, split, fresh, got 'copies'"),
        (Mlp, {"gate": "topk"}, r"gate: did you mean 'top_k'\? expected one of softmax, top_k"),
        (Mlp, {"gate": {"kind": "top_k", "z_los": 1}}, "gate: z_los: "),
        (Mlp, {"gate": TopKGate(D, 1, 4, k=2)}, "gate: expected a kind as 'top_k', a section"),
        (Mlp, {"gate": partial(TopKGate, k=2), "k": 3}, "k: expected none beside a gate of your"),
        (Mlp, {"gate": {"kind": "top_k", "k": 1}, "k": 3}, "k: expected 1, as in gate, got 3"),
        (Mlp, {"gate": "softmax", "k": 3}, "k: a softmax gate weighs all experts, got 3; leave k"),
        (Mlp, {"gate": "switch"}, r"gate: init='copy' needs weights that add up to 1.* SwitchGate"),
        (Mlp, {"gate": "gshard"}, "gate: init='copy' needs weights that add up to 1"),
        (
            Mlp,
            {"gate": {"kind": "top_k", "softmax": "before"}},
            "gate: init='copy' needs weights that add up to 1",
        ),
        (
            Mlp,
            {"gate": {"kind": "sigmoid", "normalize": False}},
            "gate: init='copy' needs weights that add up to 1",
        ),
        (Mlp, {"capacity": 1.25}, r"capacity: expected None or a Capacity, as Capacity\(1.25\)"),
        (Mlp, {"hidden": 6}, "hidden: init='copy' keeps the dense width, got 6; leave it out"),
        (Mlp, {"hidden": 0, "init": "fresh"}, "hidden: expected a whole number of 1 or more"),
        (
            Mlp,
            {"init": "split", "num_experts": 8},
            r"num_experts: expected a divisor of the 12 hidden units of module, .* got 8; take 6",
        ),
        (Mlp, {"init": "split", "hidden": 5}, "hidden: expected a width that cuts the 12 hidden"),
        (Mlp, {"init": "split", "hidden": 4}, r"divides num_experts \(4\), got 4"),
        (
            lambda: nn.Sequential(Gated())[0],
            {"inplace": True},
            r"inplace: the module itself is .*use what convert\(module, inplace=False\) returns",
        ),
        (
            encoder,
            {"target_modules": ["linear_1"]},
            "target_modules: 'linear_1' matches no module; nearest are linear1",
        ),
        (
            encoder,
            {"target_modules": ["linear1", "nothing.at.all"]},
            "target_modules: 'nothing.at.all' matches no module; ",
        ),
        (encoder, {"target_modules": r"layer\d"}, "matches no module; nearest are layers"),
        (encoder, {"target_modules": "("}, r"target_modules: expected a regular expression"),
        (encoder, {"target_modules": []}, r"target_modules: expected names as \['linear1'\]"),
        (encoder, {"target_modules": [1]}, r"target_modules: expected names as \['linear1'\]"),
        (
            encoder,
            {"target_modules": lambda module, name: False},
            "target_modules: the function matches no module; there are layers",
        ),
        (
            encoder,
            {"target_modules": ["linear1", "self_attn"]},
            r"target_modules: layers\.0\.self_attn \(MultiheadAttention\) is no feed-forward part",
        ),
        (
            encoder,
            {"target_modules": lambda module, name: "norm" in name},
            r"target_modules: layers\.0\.norm1 \(LayerNorm\) is no feed-forward part that a recog",
        ),
    ],
)
def test_errors(make, settings, message):
    module = make()
    with pytest.raises(ValueError, match=message) as caught:
        convert(module, **{"num_experts": 4} | settings)
    assert "\n" not in str(caught.value)


def test_experts_of_a_mixture_are_no_parts():
    moe = nn.ModuleList([MoE(D, MLPExperts(4, D, [D]))])
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(moe, 4)

"""Arguments that hypothesis thinks up, most of them wrong: a ValueError or the right result.

What an operator takes is written down here once more, as a table. Arguments that fit it are made,
then damaged, and the table alone decides whether they still fit. If so, the operator must give what
the reference gives for plain copies of them; if not, it must refuse on one line that begins with an
argument's name. Both roads are taken: the public function, and the operator itself, in C++.
"""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe import ops
from mmoe.ops import extension_status, reference
from mmoe.ops.gating import row_softmax
from tests.ops.damage import ACTIVATIONS, FLOATS, SIZES, Damage, flat, plain
from tests.thinning import examples

pytestmark = pytest.mark.skipif(
    not extension_status().built, reason="plain PyTorch looks at fewer values"
)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float64: 1e-10, torch.int32: 0}


@dataclass(frozen=True)
class Spec:
    """What one argument must be.

    Attributes:
        letters: Its dimensions; a letter has one size in all arguments.
        kind: rows (of the call's dtype), sums (of the dtype that sums are taken in), weight (either
            of them), bool, index, offsets, bounds (offsets up to the last row); or a scalar: size
            (of the letter), k, activation, flag.
        limit: The letter that an index stays below.
        count: It is a list of tensors: E of them; 1E: E or one; E+: E, or one with a dimension E.
    """

    letters: str = ""
    kind: str = "rows"
    limit: str = ""
    count: str = ""


PICKS, SLOTS = Spec("BGK", "index", limit="E"), Spec("BGK", "index", limit="P")
LOGITS = {"logits_BGE": Spec("BGE"), "visibility_GE": Spec("GE", "bool")}
AFTER, ACTIVATION = {"softmax_after": Spec(kind="flag")}, {"activation": Spec(kind="activation")}
WEIGHT, BIAS = {"weight_EDH": Spec("EDH", "weight")}, {"bias_EH": Spec("EH", "weight")}
LAYER = {"x_PD": Spec("PD"), "offsets_E1": Spec("F", "offsets"), **WEIGHT}
NEEDS = {name: Spec(kind="flag") for name in ("need_x", "need_weight", "need_bias")}
GATED = {"y_PO": Spec("PO"), "slots_BGK": SLOTS, "weights_BGK": Spec("BGK", "sums")}
DENSE = {"y": Spec("BO", count="E+"), "weights_BGE": Spec("BGE", "sums")}
GATE = {"x_BD": Spec("BD"), "weight_DN": Spec("DN", "sums")}
ROWS, OUT, OUTS = Spec("BD", count="1E"), Spec("PH"), Spec("BH", count="E")
EVENTS = {
    "e_VD": Spec("VD"), "offsets_B1": Spec("R", "bounds"), "q_BD": Spec("BD"),
    "weight_2DH": Spec("TH", "sums"), "bias_BH": Spec("BH", "sums"),
    "deep_weights": Spec("HH", "sums", count="E"), "deep_biases": Spec("H", "sums", count="E"),
    "score_N": Spec("H", "sums"),
}  # fmt: skip
ATTENTION = ("target_attention", "target_attention_backward")
OF_EVENTS, SOFTMAX = Spec("V", "sums"), {"softmax": Spec(kind="flag")}
OPERATORS = {
    "route_plan": {"experts_BGK": PICKS, "num_experts": Spec("E", "size")},
    "topk_gate": {**LOGITS, "k": Spec(kind="k"), **AFTER},
    "topk_gate_backward": {
        "grad_BGK": Spec("BGK", "sums"), **LOGITS, "experts_BGK": PICKS, **AFTER
    },
    "permute": {
        "x_BD": Spec("BD"),
        "rows_P": Spec("P", "index", limit="B"),
        "slots_BGK": Spec("BGK", "index"),
    },
    "unpermute": {"y_PD": Spec("PD"), "rows_P": Spec("P", "index"), "slots_BGK": SLOTS},
    "gated_combine": GATED,
    "gated_combine_backward": {"grad_BGO": Spec("BGO"), **GATED},
    "dense_combine": DENSE,
    "dense_combine_backward": {"grad_BGO": Spec("BGO"), **DENSE},
    "grouped_mm": {**LAYER, **BIAS, **ACTIVATION},
    "grouped_mm_backward": {
        "grad_PH": OUT, **LAYER, "y_PH": OUT, "z_PH": OUT, **ACTIVATION, **NEEDS
    },
    "dense_mm": {"x": ROWS, **WEIGHT, **BIAS, **ACTIVATION},
    "dense_mm_backward": {
        "grad": OUTS, "x": ROWS, **WEIGHT, "y": OUTS, "z": OUTS, **ACTIVATION, **NEEDS
    },
    "mixed_towers": {
        **DENSE, "weight_GOH": Spec("GOH", "weight"), "bias_GH": Spec("GH", "weight"),
        "head_GH": Spec("GH", "sums"), "head_bias_G": Spec("G", "sums"), **ACTIVATION,
        "keep": Spec(kind="flag"),
    },
    "gate_mm": {**GATE, "bias_N": Spec("N", "sums")},
    "gate_mm_backward": {"grad_BN": Spec("BN", "sums"), **GATE, **NEEDS},
    "row_softmax": {"x_RN": Spec("BE")},
    "row_softmax_backward": {"grad_RN": Spec("BE"), "p_RN": Spec("BE")},
    "target_attention": {**EVENTS, "score_bias_1": Spec("1", "sums"), **SOFTMAX},
    "target_attention_backward": {
        "grad_BD": Spec("BD"), "grad_weights_V": OF_EVENTS, **EVENTS, "weights_V": OF_EVENTS,
        **SOFTMAX,
    },
}  # fmt: skip


def either_form(y):
    """A list's one tensor of all experts, as the public functions take it."""
    return y[0] if len(y) == 1 and y[0].dim() == 3 else y


PUBLIC = {
    "route_plan": ops.route_plan,
    "topk_gate": lambda logits, visibility, k, after: ops.topk_gate(
        logits, visibility, k, softmax="after" if after else "before"
    ),
    "permute": lambda x, rows, slots: ops.permute(x, ops.RoutePlan(rows, rows, slots)),
    "unpermute": lambda y, rows, slots: ops.unpermute(y, ops.RoutePlan(rows, rows, slots)),
    "gated_combine": ops.gated_combine,
    "dense_combine": lambda y, weights: ops.dense_combine(either_form(y), weights),
    "grouped_mm": ops.grouped_mm,
    "dense_mm": ops.dense_mm,
    "mixed_towers": lambda y, *others: ops.mixed_towers(either_form(y), *others[:-1]),
    "gate_mm": ops.gate_mm,
    "row_softmax": row_softmax,
}


class Maker:
    """Draws arguments that fit."""

    def __init__(self, data, name):
        self.draw, self.name = data.draw, name
        self.sizes = {letter: self.draw(st.sampled_from(SIZES)) for letter in "BDGHKNOPV"}
        self.sizes["E"] = self.draw(st.sampled_from([1, 2, 3, 5]))
        if not self.sizes["B"] and name in ATTENTION:
            self.sizes["V"] = 0
        self.sizes |= {"F": self.sizes["E"] + 1, "R": self.sizes["B"] + 1, "1": 1}
        self.sizes["T"] = 2 * self.sizes["D"]
        self.dtype = self.draw(st.sampled_from(FLOATS))
        self.weight_dtype = self.draw(st.sampled_from([self.dtype, sum_dtype(self.dtype)]))
        self.generator = torch.Generator().manual_seed(self.draw(st.integers(0, 10**6)))

    def arguments(self):
        return {name: self.argument(name, spec) for name, spec in OPERATORS[self.name].items()}

    def argument(self, name, spec):
        if spec.kind == "size":
            return self.sizes[spec.letters]
        scalars = {"k": st.integers(1, 12), "flag": st.booleans()}
        scalars["activation"] = st.sampled_from(ACTIVATIONS)
        if spec.kind in scalars:
            return self.draw(scalars[spec.kind])
        if name in ("bias_EH", "bias_N") and self.draw(st.booleans()):
            return None
        if not spec.count:
            return self.tensor(spec)
        tensors = [self.tensor(spec) for _ in range(self.sizes["E"])]
        if spec.count == "E" or self.draw(st.booleans()):
            return tensors
        return tensors[:1] if spec.count == "1E" else [torch.stack(tensors)]

    def tensor(self, spec):
        shape = [self.sizes[letter] for letter in spec.letters]
        if spec.kind == "offsets":
            bounds = torch.randint(0, self.sizes["P"] + 1, shape, generator=self.generator)
            return bounds.sub(bounds[0]).clamp(min=0).sort().values.int()
        if spec.kind == "bounds":
            bounds = torch.randint(0, self.sizes["V"] + 1, shape, generator=self.generator)
            bounds[0], bounds[-1] = 0, self.sizes["V"]
            return bounds.sort().values.int()
        if spec.kind == "bool":
            return torch.rand(shape, generator=self.generator) < 0.7
        if spec.kind == "index":
            return self.indices(spec, shape)
        dtypes = {"rows": self.dtype, "sums": sum_dtype(self.dtype), "weight": self.weight_dtype}
        return torch.randn(shape, generator=self.generator).to(dtypes[spec.kind])

    def indices(self, spec, shape):
        B, P = self.sizes["B"], self.sizes["P"]
        owner_P = torch.arange(P) % B if B else torch.full((P,), -1)
        if self.name == "unpermute" and spec.letters == "P":
            return owner_P.int()
        limit = self.sizes.get(spec.limit, 7)
        drawn = torch.randint(-1, max(limit, 1), shape, generator=self.generator)
        # One time in eight pairs of all samples, which some operators refuse.
        if spec.limit == "P" and B and P and self.draw(st.integers(0, 7)):
            drawn = torch.where(owner_P[drawn] == torch.arange(B).view(-1, 1, 1), drawn, -1)
        return drawn.clamp(max=limit - 1).int()


def make(data, name):
    """Arguments of an operator, up to three of them damaged."""
    arguments = Maker(data, name).arguments()
    for _ in range(data.draw(st.integers(0, 3))):
        argument = data.draw(st.sampled_from(list(arguments)))
        arguments[argument] = Damage(data).argument(arguments[argument])
    return arguments


def sum_dtype(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def fits(name, arguments, public):
    """What the table says about arguments."""
    specs = OPERATORS[name]
    if arguments.get("activation") in ("none", "relu"):  # then z is not looked at
        specs = {argument: spec for argument, spec in specs.items() if argument[0] != "z"}
    # Sizes that follow from others
    sizes = {"1": 1}
    if name in ATTENTION:
        q_BD = arguments["q_BD"]
        sizes |= (
            dict(zip("RT", (len(q_BD) + 1, 2 * q_BD.shape[1]), strict=True))
            if q_BD.dim() == 2
            else {}
        )
    return (
        all(t.device.type == "cpu" for t in flat(list(arguments.values())))
        and all(shapes_fit(spec, arguments[argument], sizes) for argument, spec in specs.items())
        and dtypes_fit(specs, arguments, public)
        and all(values_fit(spec, arguments[argument], sizes) for argument, spec in specs.items())
        and (name in ATTENTION or 1 <= sizes.get("E", 1) < 2**31)
        and call_fits(name, arguments, sizes, public)
    )


def shapes_fit(spec, value, sizes):
    """Whether dimensions have the sizes of their letters, which the first argument sets."""
    if spec.kind == "size":
        return sizes.setdefault(spec.letters, value) == value
    letters = spec.letters
    if spec.count == "E+" and len(value) == 1 and value[0].dim() == 3:
        letters = "E" + letters
    elif spec.count in ("E", "E+") and sizes.setdefault("E", len(value)) != len(value):
        return False
    return all(
        t.dim() == len(letters)
        and all(sizes.setdefault(a, n) == n for a, n in zip(letters, t.shape, strict=True))
        for t in flat(value)
    )


def dtypes_fit(specs, arguments, public):
    found = {}
    for argument, spec in specs.items():
        found.setdefault(spec.kind, set()).update(t.dtype for t in flat(arguments[argument]))
    main, *others = found.get("rows", {torch.float32}) or {None}
    weight = found.get("weight", set())
    return (
        main in FLOATS
        and not others
        and len(weight) < 2
        and weight <= {main, sum_dtype(main)}
        and found.get("sums", set()) <= (set(FLOATS) if public else {sum_dtype(main)})
        and found.get("bool", set()) <= {torch.bool}
        and all(found.get(kind, set()) <= {torch.int32} for kind in ("index", "offsets", "bounds"))
    )


def values_fit(spec, value, sizes):
    match spec.kind:
        case "activation":
            return value in ACTIVATIONS
        case "k":
            return value >= 1
        case "index" if spec.limit and value.numel():
            return value.min() >= -1 and value.max() < sizes[spec.limit]
        case "offsets":
            bounds = value.tolist()
            rising = all(low <= high for low, high in pairwise(bounds))
            return (
                len(bounds) == sizes["E"] + 1
                and rising
                and bounds[0] == 0 <= bounds[-1] <= sizes["P"]
            )
        case "bounds":
            bounds = value.tolist()
            rising = all(low <= high for low, high in pairwise(bounds))
            return rising and bounds[0] == 0 and bounds[-1] == sizes["V"]
    return spec.count != "1E" or len(value) in (1, sizes["E"])


def call_fits(name, arguments, sizes, public):
    """What several arguments together must keep to."""
    if name == "route_plan":
        return not public or (sizes["G"] > 0 and sizes["K"] > 0)
    if name in ("row_softmax", "row_softmax_backward"):
        return sizes["E"] <= 16 and flat(list(arguments.values()))[0].dtype != torch.bfloat16
    if name == "mixed_towers":
        return sizes["G"] > 0
    if name == "topk_gate":
        if (arguments["visibility_GE"].sum(1) < arguments["k"]).any():
            return False
        return not (arguments["logits_BGE"].isnan() & arguments["visibility_GE"]).any()
    if name not in ("unpermute", "gated_combine_backward"):
        return True
    # A pair is one sample's: the one in rows_P, or whichever comes first.
    owner = dict(enumerate(arguments["rows_P"].tolist())) if name == "unpermute" else {}
    samples = enumerate(arguments["slots_BGK"].flatten(1).tolist())
    return all(owner.setdefault(p, b) == b for b, slots in samples for p in slots if p >= 0)


def check(name, arguments, function, public):
    if all(t.device.type == "meta" for t in flat(list(arguments.values()))):
        return  # a proper question, about shapes alone
    if not fits(name, arguments, public):
        names = "|".join(arguments)
        with pytest.raises(ValueError, match=rf"^({names})(\[\d+\])?: [^\n]+\Z"):
            function(*arguments.values())
        return
    copies = {argument: plain(value) for argument, value in arguments.items()}
    dtype = flat(list(arguments.values()))[0].dtype
    for argument, spec in OPERATORS[name].items():
        if (
            spec.kind == "sums" and public and copies[argument] is not None
        ):  # the function widens or narrows them
            copies[argument] = copies[argument].to(sum_dtype(dtype))
    expected = flat(getattr(reference, name)(*copies.values()))
    actual = flat(function(*arguments.values()))
    # The public products keep what only their gradient needs.
    products = ("grouped_mm", "dense_mm", "mixed_towers")
    wanted = expected[: len(actual)] if name in products and public else expected
    assert len(actual) == len(wanted)
    for result, value in zip(actual, wanted, strict=True):
        if name == "topk_gate_backward":
            # NaN from picks without a share: the reference multiplies it by 0, the kernel skips it.
            value = torch.where(value.isnan(), result, value)
        step = TOLERANCE[value.dtype]
        # An event of one number has hardly a gradient: it is the difference of two large ones.
        # A logit may be the difference of large ones, too.
        most = largest_of(wanted) if name in (*ATTENTION, "mixed_towers") else 1.0
        torch.testing.assert_close(result, value, rtol=step, atol=step * most, equal_nan=True)


def largest_of(tensors):
    finite = torch.cat([tensor[tensor.isfinite()].double().abs() for tensor in tensors])
    return max(1.0, float(finite.max())) if finite.numel() else 1.0


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(data=st.data())
def test_the_operator_itself(name, data):
    check(name, make(data, name), getattr(torch.ops.mmoe, name), public=False)


@pytest.mark.parametrize("name", PUBLIC)
@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(data=st.data())
def test_the_public_function(name, data):
    check(name, make(data, name), PUBLIC[name], public=True)

"""Gates of domains: what a separate gate for each domain computes, row by row the same bits."""

import copy

import pytest
import torch

from mmoe.mixture import (
    CosineGate,
    DSelectKGate,
    FixedGate,
    GShardGate,
    MLPExperts,
    MultiGateMixture,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    StaticGate,
    SwitchGate,
    TopKGate,
)
from mmoe.mixture.gates.contract import decide
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.traits import GateTraits, traits_of

D, G, E, M = 6, 3, 4, 3
JOINT = Selection(shared_k=1, private_k=1)
GATES = {
    "softmax": lambda **more: SoftmaxGate(D, G, E, **more),
    "top_k": lambda **more: TopKGate(D, G, E, k=2, **more),
    "joint": lambda **more: TopKGate(D, G, E, k=2, selection=JOINT, **more),
    "noisy_top_k": lambda **more: NoisyTopKGate(D, G, E, k=2, **more),
    "sigmoid": lambda **more: SigmoidGate(D, G, E, k=2, **more),
    "cosine": lambda **more: CosineGate(D, G, E, k=2, projection_dim=7, **more),
    "joint cosine": lambda **more: CosineGate(
        D, G, E, k=2, projection_dim=5, selection=JOINT, **more
    ),
    "switch": lambda **more: SwitchGate(D, G, E, **more),
    "gshard": lambda **more: GShardGate(D, G, E, **more),
    "dselect_k": lambda **more: DSelectKGate(D, G, E, k=2, gamma=4.0, **more),
    "dselect_k per task": lambda **more: DSelectKGate(None, G, E, k=2, gamma=4.0, **more),
    "static": lambda **more: StaticGate(G, E, **more),
    "static top_k": lambda **more: StaticGate(G, E, k=2, **more),
}
BLIND = ("dselect_k per task", "static", "static top_k")
SEES = torch.ones(G, E, dtype=torch.bool)
# What domains have of their own, and beside which shared tensor
OWN = {
    "logits.own_GMED": "logits.weights.{last}",
    "logits.own_bias_GME": "logits.biases.{last}",
    "own_directions_GMEP": "directions_GEP",
    "own_log_scale_GM": "log_scale_G",
    "own_logits_GME": "logits_GE",
    "own_codes_GMKB": "codes_GKM",
    "own_choice_GMK": "choice_GK",
}


def pairs_of(gate):
    """Names of what domains have of their own, each with that of what they share."""
    last = len(gate.logits.weights) - 1 if getattr(gate, "logits", None) is not None else 0
    own = [name for name, _ in gate.named_parameters() if name in OWN]
    assert own
    return [(name, OWN[name].format(last=last)) for name in own]


def with_domains(gate):
    """The gate with domains that differ, and a gate without for each of them."""
    separate = [copy.deepcopy(gate) for _ in range(M)]
    gate.add_domains(M)
    with torch.no_grad():
        for name, shared in pairs_of(gate):
            own = gate.get_parameter(name).normal_()
            for m, one in enumerate(separate):
                one.get_parameter(shared).add_(own[:, m])
    return gate, separate


def rows_of(*codes, asked_BG=None):
    """Rows of domains, by what gates are told beside what they read."""
    rows = Inputs(x_BR=torch.zeros(len(codes), D), asked_BG=asked_BG)
    return rows.in_domains(torch.tensor(codes, dtype=torch.int32), M)


@pytest.fixture(name="kind", params=GATES)
def _kind(request):
    torch.manual_seed(3)
    return GATES[request.param]


@pytest.mark.parametrize("alike", [True, False], ids=["one input", "own inputs"])
@pytest.mark.parametrize(
    ("name", "hidden"),
    [(name, hidden) for name in GATES for hidden in ([], [5]) if not hidden or name not in BLIND],
    ids=str,
)
def test_each_row_gets_what_its_domains_gate_gives(name, hidden, alike):
    torch.manual_seed(3)
    gate, separate = with_domains(GATES[name](hidden=hidden).double().eval())
    codes = torch.randint(M, (40,))
    x_BD = torch.randn(40, D, dtype=torch.float64)
    inputs = [x_BD] * G if alike else [x_BD + g for g in range(G)]
    given = gate(inputs, SEES, rows_of(*codes.tolist())).as_weights(E)
    for m, one in enumerate(separate):
        mine = codes == m
        expected = one([x[mine] for x in inputs], SEES).as_weights(E)
        torch.testing.assert_close(given[mine], expected)


def test_gradcheck(kind):
    """Of weights and losses, in float64, rows of no domain and gates that are not asked too."""
    gate, _ = with_domains(kind(z_loss=0.1, balance_loss=0.1).double())
    gate.train()
    rows = rows_of(0, 2, 1, 3, 2, asked_BG=torch.rand(5, G) < 0.8)
    x_BD = torch.randn(5, D, dtype=torch.float64, requires_grad=True)

    def outputs(x_BD, *_):
        torch.manual_seed(0)  # what gates draw is the same every time
        output = decide(gate, [x_BD] * G, SEES, rows)
        return output.weights, *output.auxiliary_losses.values()

    assert torch.autograd.gradcheck(outputs, (x_BD, *gate.parameters()), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("name", ["cosine", "static", "dselect_k", "switch", "gshard", "hidden"])
def test_rows_of_no_domain_get_the_mean_of_what_gates_decide_by(name):
    """Of a cosine gate of the logits too, though its directions are normalised."""
    torch.manual_seed(3)
    made = SoftmaxGate(D, G, E, hidden=[5]) if name == "hidden" else GATES[name]()
    gate, separate = with_domains(made.double().eval())
    x_BD = torch.randn(7, D, dtype=torch.float64)

    def decides_by(one, rows=None):
        if name == "cosine":
            return one.scores([x_BD] * G, rows)
        if name == "static":
            return one([x_BD] * G, SEES, rows).weights.log().diff()
        return one.logits([x_BD] * G, rows)

    each = torch.stack([decides_by(one) for one in separate])
    torch.testing.assert_close(decides_by(gate, rows_of(*[M] * 7)), each.mean(0))


def test_domains_begin_as_the_gate_that_they_share(kind):
    gate = kind().eval()
    x_BD = torch.randn(9, D)
    before = gate([x_BD] * G, SEES).as_weights(E)
    gate.add_domains(M)
    after = gate([x_BD] * G, SEES, rows_of(*[0, 1, 2, 3, 0, 1, 2, 3, 1]))
    torch.testing.assert_close(after.as_weights(E), before)


def test_a_row_feels_no_other_row(kind):
    gate, _ = with_domains(kind().eval())
    x_BD, codes = torch.randn(200, D), torch.randint(M + 1, (200,)).int()
    whole = gate([x_BD] * G, SEES, rows_of(*codes.tolist())).as_weights(E)
    order = torch.randperm(200)[:77]
    some = gate([x_BD[order]] * G, SEES, rows_of(*codes[order].tolist())).as_weights(E)
    assert torch.equal(some, whole[order])


def test_no_row_and_domains_without_rows_are_fine(kind):
    gate, _ = with_domains(kind())
    output = gate([torch.zeros(0, D)] * G, SEES, rows_of())
    assert output.weights.shape[0] == 0
    alone = gate([torch.zeros(2, D)] * G, SEES, rows_of(1, 1))
    alone.weights.square().sum().backward()
    for name, _ in pairs_of(gate):
        assert not gate.get_parameter(name).grad[:, [0, 2]].any()


def test_gates_without_domains_refuse_them_and_the_other_way(kind):
    gate = kind()
    with pytest.raises(ValueError, match="domains: expected no domains"):
        gate([torch.zeros(1, D)] * G, SEES, rows_of(0))
    gate.add_domains(M)
    with pytest.raises(ValueError, match="domains: expected some domains"):
        gate([torch.zeros(1, D)] * G, SEES)
    constant = FixedGate(torch.ones(G, E))
    with pytest.raises(ValueError, match="one that domains can have of their own"):
        decide(constant, [torch.zeros(1, D)] * G, SEES, rows_of(0))


@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_gates_that_rows_do_not_ask_weigh_nothing_and_change_nothing(kind, execution):
    gate = kind()
    layer = MultiGateMixture(
        D, G, experts=MLPExperts(E, D, [5]), gate=gate, execution=execution
    ).eval()
    x_BD, asked_BG = torch.randn(30, D), torch.rand(30, G) < 0.6
    output = layer(Inputs(x_BR=x_BD, asked_BG=asked_BG), return_gates=True)
    weights_BGE = output.gate_weights_BGE
    assert not weights_BGE[~asked_BG].any()
    assert not output.out_BGO[~asked_BG].any()
    if traits_of(gate, GateTraits).most_pairs is None:  # each decides alone
        whole = layer(x_BD, return_gates=True)
        torch.testing.assert_close(weights_BGE[asked_BG], whole.gate_weights_BGE[asked_BG])
        torch.testing.assert_close(output.out_BGO[asked_BG], whole.out_BGO[asked_BG])


def test_gates_that_are_not_asked_have_no_vote():
    gate = GATES["joint"]().eval()
    x_BD = torch.randn(50, D)
    others = [x_BD, torch.randn(50, D), torch.randn(50, D)]
    asked_BG = torch.tensor([[True, False, False]]).expand(50, -1)
    rows = Inputs(x_BR=x_BD, asked_BG=asked_BG)
    one = gate([x_BD] * G, SEES, rows).experts[:, 0]
    assert torch.equal(one, gate(others, SEES, rows).experts[:, 0])


def test_losses_are_those_of_the_rows_that_ask(kind):
    options = {"z_loss": 0.1, "balance_loss": 0.1}
    gate = kind(**options)
    gate.train()
    x_BD = torch.randn(20, D)
    asked_BG = torch.ones(20, G, dtype=torch.bool)
    asked_BG[12:] = False
    rows = Inputs(x_BR=x_BD, asked_BG=asked_BG)
    some = decide(gate, [x_BD] * G, SEES, rows).auxiliary_losses
    alone = decide(gate, [x_BD[:12]] * G, SEES).auxiliary_losses
    assert some.keys() == alone.keys()
    for name, loss in alone.items():
        if not isinstance(gate, NoisyTopKGate) or name == "z_loss":  # whose picks are drawn
            torch.testing.assert_close(some[name], loss)


@pytest.mark.parametrize("name", ["top_k", "joint cosine", "dselect_k per task", "static top_k"])
def test_it_compiles_to_one_graph(name):
    gate, _ = with_domains(GATES[name]().eval())
    layer = MultiGateMixture(D, G, experts=MLPExperts(E, D, [5]), gate=gate, execution="grouped")
    layer.eval()
    x_BD, codes_B = torch.randn(30, D), torch.randint(M + 1, (30,)).int()
    asked_BG = torch.rand(30, G) < 0.6

    def run(x_BD, codes_B, asked_BG):
        return layer(Inputs(x_BR=x_BD, asked_BG=asked_BG).in_domains(codes_B, M)).out_BGO

    torch._dynamo.reset()  # each kind compiles anew
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x_BD, codes_B, asked_BG), run(x_BD, codes_B, asked_BG))

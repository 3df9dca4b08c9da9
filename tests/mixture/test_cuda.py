"""The mixture on a GPU: the CPU's numbers, nothing that waits, one graph for every routing."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from mmoe.mixture import (
    Capacity,
    CosineGate,
    DSelectKGate,
    ExpertPool,
    FixedGate,
    GShardGate,
    MixedExperts,
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

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

B, D, G, E, O = 200, 21, 3, 6, 17  # noqa: E741
JOINT, BUDGET = Selection(shared_k=1, private_k=1), Selection(private_k=2, budget=3)
GATES = {
    "softmax": lambda: SoftmaxGate(D, G, E),
    "top-k": lambda: TopKGate(D, G, E, k=2),
    "top-k, softmax before": lambda: TopKGate(D, G, E, k=2, softmax="before"),
    "joint": lambda: TopKGate(D, G, E, k=2, selection=JOINT),
    "budget": lambda: SigmoidGate(D, G, E, k=2, selection=BUDGET),
    "noisy top-k": lambda: NoisyTopKGate(D, G, E, k=2),
    "cosine": lambda: CosineGate(D, G, E, k=2),
    "switch": lambda: SwitchGate(D, G, E),
    "gshard": lambda: GShardGate(D, G, E),
    "sigmoid": lambda: SigmoidGate(D, G, E, k=2),
    "dselect-k": lambda: DSelectKGate(D, G, E, k=2),
    "static": lambda: StaticGate(G, E),
    "static, k": lambda: StaticGate(G, E, k=2),
    "fixed": lambda: FixedGate(torch.rand(G, E)),
}
DRAWN = ("noisy top-k", "gshard")  # while training, each device in its own way
WAYS = [
    ("softmax", "dense", {}),
    ("softmax", "dense", {"activation": "silu"}),
    ("softmax", "grouped", {}),
    ("top-k", "dense", {"activation": "gelu"}),
    ("top-k", "grouped", {"activation": "gelu"}),
    ("top-k", "grouped", {"activation": "swiglu"}),
    ("top-k", "grouped", {"norm": "layer"}),
    ("top-k", "grouped", {"norm": "batch"}),
    ("cosine", "grouped", {"activation": "silu"}),
    ("top-k", "padded", {}),
    ("switch", "grouped", {}),
]


def modules(number):
    own = [nn.Sequential(nn.Linear(D, 9), nn.SiLU(), nn.Linear(9, O)) for _ in range(number)]
    return ExpertPool(own, O)


POOLS = {
    "mlp": lambda: MLPExperts(E, D, [40, O], activation="gelu"),
    "modules": lambda: modules(E),
    "stacked": lambda: ExpertPool(list(modules(E)), stacked=True),
    "mixed": lambda: MixedExperts([MLPExperts(4, D, [O]), modules(2)]),
}


def mixture(gate: str, execution, experts) -> MultiGateMixture:
    capacity = Capacity(1.25) if execution == "padded" else None
    settings = {"gate": GATES[gate](), "execution": execution, "capacity": capacity}
    return MultiGateMixture(D, G, experts, **settings)


@pytest.fixture(params=WAYS, ids=lambda way: "-".join([*way[:2], *way[2].values()]))
def layer(request) -> MultiGateMixture:
    gate, execution, settings = request.param
    torch.manual_seed(0)
    return mixture(gate, execution, MLPExperts(E, D, [40, O], **settings))


def rows(seed: int = 1) -> Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(seed))


def step(layer: MultiGateMixture, x_BD: Tensor) -> list[Tensor]:
    """The output and all gradients of a training step."""
    x_BD = x_BD.detach().requires_grad_()
    result = layer(x_BD)
    loss = result.out_BGO.float().square().mean() + sum(result.auxiliary_losses.values())
    leaves = [x_BD, *layer.parameters()]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [result.out_BGO.detach(), *(g for g in grads if g is not None)]


def near(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        atol = tolerance * max(1e-3, float(theirs.abs().max()))
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
@pytest.mark.parametrize("gate", GATES)
def test_every_kind_equals_cpu(gate, execution, pool):
    torch.manual_seed(0)
    layer = mixture(gate, execution, POOLS[pool]())
    layer.train(gate not in DRAWN)
    on_gpu = copy.deepcopy(layer).cuda()

    near(step(on_gpu, rows().cuda()), step(layer, rows()), 1e-5)
    dropped = [one(rows().to(device)).dropped for one, device in ((on_gpu, "cuda"), (layer, "cpu"))]
    assert (dropped[0] is None) == (dropped[1] is None)
    assert dropped[1] is None or int(dropped[0]) == int(dropped[1])


def test_equals_cpu(layer):
    on_gpu = copy.deepcopy(layer).cuda()

    near(step(on_gpu, rows().cuda()), step(layer, rows()), 1e-4)
    layer.eval()
    on_gpu.eval()
    near([on_gpu(rows().cuda()).out_BGO.detach()], [layer(rows()).out_BGO.detach()], 1e-4)


def test_equals_cpu_under_autocast(layer):
    if layer.experts.activation == "relu":
        pytest.skip("a sum that rounds to the other side of 0 changes a gradient by all of it")
    on_gpu = copy.deepcopy(layer).cuda()

    with torch.autocast("cuda", torch.bfloat16):
        actual = step(on_gpu, rows().cuda())

    with torch.autocast("cpu", torch.bfloat16):
        expected = step(layer, rows())
    near(actual, expected, 5e-2)


def test_same_bits_in_every_run(layer):
    layer.cuda()
    first = step(layer, rows().cuda())

    again = step(layer, rows().cuda())

    assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.real_gpu
def test_nothing_waits_for_the_device(layer):
    layer.cuda()
    x_BD = rows().cuda()
    step(layer, x_BD)  # the first call may set libraries up
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(layer, x_BD)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.real_gpu
def test_one_graph_serves_every_routing(layer):
    layer.cuda()
    x_BD = rows().cuda()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            step(layer, x_BD)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(layer, x_BD)

    for seed in (2, 3):
        x_BD.copy_(rows(seed))
        graph.replay()
        expected = step(layer, x_BD)
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


class Mixed(torch.nn.Module):
    """What is captured takes tensors and returns tensors."""

    def __init__(self, layer: MultiGateMixture) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_BD: Tensor) -> tuple[Tensor, ...]:
        result = self.layer(x_BD)
        return result.out_BGO, *result.auxiliary_losses.values()


@pytest.mark.real_gpu
@pytest.mark.parametrize("narrow", [False, True], ids=["fp32", "bf16"])
def test_graphed_it_trains_to_the_same_weights(layer, narrow):
    layer.cuda()
    twin = copy.deepcopy(layer)
    autocast = functools.partial(
        torch.autocast, "cuda", torch.bfloat16, enabled=narrow, cache_enabled=False
    )
    before = copy.deepcopy(twin.state_dict())
    with autocast():
        sample = (torch.zeros(B, D, device="cuda", requires_grad=True),)
        graphed = torch.cuda.make_graphed_callables(Mixed(twin), sample)
    twin.load_state_dict(before)  # warming up moves the statistics of batch norms

    def train(model: torch.nn.Module) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for seed in range(3):
            with autocast():
                out_BGO, *auxiliary = model(rows(seed).cuda())
            loss = out_BGO.float().square().mean() + sum(auxiliary)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    found, expected = train(graphed), train(Mixed(layer))

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    for name, value in layer.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value), name

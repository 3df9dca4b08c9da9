"""The cases every operator is tested on, as fixtures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.ops.thin_layers import THIN_LAYERS


@dataclass(frozen=True)
class Case:
    """One shape and one way to pick experts."""

    name: str
    B: int
    G: int
    K: int
    E: int
    O: int  # noqa: E741
    pick: Callable[["Case", torch.Generator], Tensor]

    def experts_BGK(self) -> Tensor:
        generator = torch.Generator().manual_seed(len(self.name) + self.B)
        return self.pick(self, generator).to(torch.int32)

    def random(self, *shape: int, seed: int = 0) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distinct(case: Case, generator: torch.Generator) -> Tensor:
    """Each gate's K experts differ."""
    scores = torch.rand(case.B, case.G, case.E, generator=generator)
    return scores.topk(case.K, dim=-1).indices


def anything(case: Case, generator: torch.Generator) -> Tensor:
    """A gate may name an expert twice."""
    return torch.randint(0, case.E, (case.B, case.G, case.K), generator=generator)


def with_unused(case: Case, generator: torch.Generator) -> Tensor:
    unused = torch.rand(case.B, case.G, case.K, generator=generator) < 0.4
    return distinct(case, generator).masked_fill(unused, -1)


def same_for_all_gates(case: Case, generator: torch.Generator) -> Tensor:
    return distinct(case, generator)[:, :1].expand(-1, case.G, -1)


def only_even(case: Case, generator: torch.Generator) -> Tensor:
    return anything(case, generator) // 2 * 2


def only_last(case: Case, generator: torch.Generator) -> Tensor:
    return torch.full((case.B, case.G, case.K), case.E - 1)


def nothing(case: Case, generator: torch.Generator) -> Tensor:
    return torch.full((case.B, case.G, case.K), -1)


CASES = [
    Case("usual", 37, 3, 2, 5, 24, distinct),
    Case("zero rows", 0, 3, 2, 5, 8, distinct),
    Case("one row", 1, 2, 2, 4, 16, distinct),
    Case("one gate", 20, 1, 2, 6, 32, distinct),
    Case("five gates", 20, 5, 2, 6, 40, distinct),
    Case("eleven gates", 9, 11, 1, 3, 17, anything),
    Case("one expert", 19, 2, 1, 1, 16, anything),
    Case("every expert picked", 18, 2, 4, 4, 12, distinct),
    Case("empty experts", 25, 2, 2, 7, 16, only_even),
    Case("all rows on one expert", 25, 2, 1, 6, 16, only_last),
    Case("an expert named twice", 30, 2, 3, 4, 16, anything),
    Case("gates agree", 30, 4, 2, 8, 16, same_for_all_gates),
    Case("unused picks", 33, 3, 3, 6, 20, with_unused),
    Case("only unused picks", 8, 2, 2, 4, 16, nothing),
    Case("width 1", 21, 2, 2, 5, 1, distinct),
    Case("odd width", 21, 2, 2, 5, 67, distinct),
    Case("no width", 5, 2, 2, 5, 0, distinct),
    Case("many experts", 40, 2, 2, 150, 16, distinct),
    Case("large", 3001, 4, 2, 64, 128, with_unused),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name.replace(" ", "-"))
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float64], ids=["fp32", "bf16", "fp64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


LAYER_TYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "bf16-rows": (torch.bfloat16, torch.float32),
    "fp64": (torch.float64, torch.float64),
}


@pytest.fixture(params=LAYER_TYPES.values(), ids=list(LAYER_TYPES))
def layer_types(request: pytest.FixtureRequest) -> tuple[torch.dtype, torch.dtype]:
    """Types of a product's rows and of its weights."""
    return request.param


@pytest.fixture
def usual() -> Case:
    return CASES[0]


@pytest.fixture
def large() -> Case:
    return CASES[-1]


@pytest.fixture(params=THIN_LAYERS, ids=lambda name: name.replace(" ", "-"))
def thin_layer(request: pytest.FixtureRequest) -> list[Tensor]:
    """x_PD, offsets_E1, weight_EDH, bias_EH, grad_PH with dimensions of size 1."""
    sizes, D, H = THIN_LAYERS[request.param]
    generator = torch.Generator().manual_seed(len(sizes) + D)
    shapes = ((sum(sizes), D), (len(sizes), D, H), (len(sizes), H), (sum(sizes), H))
    x_PD, weight_EDH, bias_EH, grad_PH = (torch.randn(s, generator=generator) for s in shapes)
    return [x_PD, torch.tensor([0, *sizes]).cumsum(0).int(), weight_EDH, bias_EH, grad_PH]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def close() -> Callable[[Tensor, Tensor], None]:
    """Equal within the rounding of the narrower dtype's last place and a sum's order."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}

    def check(actual: Tensor, expected: Tensor) -> None:
        step = tolerance[expected.dtype]
        torch.testing.assert_close(actual, expected, rtol=step, atol=step)

    return check


@pytest.fixture(autouse=True)
def _gpu_or_skip(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")

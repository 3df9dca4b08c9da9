"""`Check`: one call of an emulated kernel, and what is to come of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.gpu_check.operator_cases import Call, as_numbers
from tests.emulated_cuda.device import Kernels, OnDevice, Settings

# Of a number itself and of the largest one
TOLERANCES = {
    torch.float32: (2e-5, 1e-5),
    torch.bfloat16: (2**-7, 4e-3),
    torch.float64: (1e-12, 1e-12),
}


@dataclass(frozen=True)
class Stop:
    """The kernel refuses its arguments, in these words."""

    words: str


@dataclass(frozen=True)
class Check:
    """One call of an operator and what is to come of it.

    Attributes:
        name: Says which.
        operator: The builder's, by which checks are chosen.
        call: Name and arguments, on the host.
        wanted: The specification's result, or `Stop`.
        settings: How the emulation runs it.
        choice: Of products: the operator that chooses (`mmoe.ops._products`), and a number.
    """

    name: str
    operator: str
    call: Call
    wanted: Any
    settings: Settings
    choice: tuple[str, int] | None = None

    def run(self, kernels: Kernels) -> None:
        """Raises where the kernel does other than it is to.

        Raises:
            AssertionError: Other numbers, or no error where there should be one, or another.
            RuntimeError: The kernel stopped.
        """
        with self.configured(kernels):
            self._run(kernels)

    @contextmanager
    def configured(self, kernels: Kernels) -> Iterator[None]:
        """Lets the kernels run as the check asks for, with the products that it asks for."""
        kernels.configure(self.settings)
        with chosen(kernels, self.choice):
            yield

    def _run(self, kernels: Kernels) -> None:
        name, arguments = self.call
        if isinstance(self.wanted, Stop):
            assert stop_of(kernels, self.call) == self.wanted, f"{self.name}: no such stop"
            return
        found = kernels.call(name, on_device(arguments))
        compare(self.name, as_numbers(self.call, found), self.wanted, arguments)


@contextmanager
def chosen(kernels: Kernels, choice: tuple[str, int] | None) -> Iterator[None]:
    """Lets the kernels take the products that a check asks for."""
    if choice is None:
        yield
        return
    operator, number = choice
    like = OnDevice(torch.empty(0))
    before = kernels.call(operator, (like, number))
    try:
        yield
    finally:
        kernels.call(operator, (like, before))


def on_device(arguments: Any) -> Any:
    """The same with every tensor on the device."""
    return pytree.tree_map_only(Tensor, OnDevice, arguments)


def stop_of(kernels: Kernels, call: Call) -> Stop | None:
    """How the kernel refuses these arguments; None: it takes them."""
    try:
        kernels.call(call[0], on_device(call[1]))
    except (RuntimeError, ValueError) as error:
        return Stop(str(error))
    return None


def compare(name: str, found: Any, wanted: Any, arguments: Any) -> None:
    """Refuses other shapes, types and numbers.

    Raises:
        AssertionError: Names the check.
    """
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), name
        for ours, theirs in zip(found, wanted, strict=True):
            compare(name, ours, theirs, arguments)
        return
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
    if not wanted.dtype.is_floating_point:
        assert torch.equal(found, wanted), name
        return
    if wanted.numel():
        of_each, of_largest = tolerance(arguments)
        largest = float(wanted.nan_to_num().abs().max())
        atol = of_largest * max(1.0, largest)
        near = torch.isclose(found, wanted, rtol=of_each, atol=atol, equal_nan=True)
        assert near.all(), f"{name}: {int((~near).sum())} numbers differ"


def tolerance(arguments: Any) -> tuple[float, float]:
    """That of the coarsest type among the arguments."""
    types = {leaf.dtype for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)}
    types |= {leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.dtype)}
    return max((TOLERANCES[dtype] for dtype in types & set(TOLERANCES)), default=(0.0, 0.0))

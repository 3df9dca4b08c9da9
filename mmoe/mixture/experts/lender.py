"""`Lender`: a pool's experts as tensors by which another rank can compute."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from mmoe.mixture.dispatcher import Compute
from mmoe.mixture.experts.contract import Pool, PoolCompute, tensors_of
from mmoe.mixture.experts.mlp import MLPExperts
from mmoe.mixture.experts.pool import ExpertPool
from mmoe.mixture.pytrees import Tree

# What every module has, beside settings
_OF_MODULES = frozenset(vars(nn.Module()))
# Differ between the parts of one pool
_OF_PARTS = frozenset({"num_experts", "device"})


class TensorFormat(NamedTuple):
    """Shape and place of one of an expert's tensors.

    Attributes:
        name: In the pool that `Lender.compute_by` calls.
        shape: Of one expert's.
        dtype: Of it.
        trained: Whether it is a parameter of floating point; others have no gradient.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool


class Lender:
    """The experts of a pool as tensors `[n, …]`, and the pool that any number of such make.

    Neither parameters nor buffers move: what `take` returns are copies or views, with gradients.

    Args:
        shell: A pool that is `joinable`; its own tensors are not read where there are `modules`.
        modules: Experts whose tensors lie apart; None: those of the shell are stacked.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts
        >>> pool = MLPExperts(4, 8, [3])
        >>> lender = lender_of(pool)
        >>> compute = lender.compute_by(2, lender.take([3, 0]))
        >>> rows, offsets_E1 = torch.randn(5, 8), torch.tensor([0, 2, 5]).int()
        >>> torch.equal(compute(rows, offsets_E1), pool.part([3, 0]).grouped(rows, offsets_E1))
        True
    """

    def __init__(self, shell: Pool, modules: Sequence[nn.Module] | None = None) -> None:
        self._shell, self._modules = shell, modules
        trained = {n for n, p in shell.named_parameters() if p.is_floating_point()}
        first = 0 if modules else 1
        self.formats = [
            TensorFormat(name, tuple(tensor.shape[first:]), tensor.dtype, name in trained)
            for name, tensor in tensors_of(shell).items()
        ]

    def take(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Returns the tensors of some of the experts, `[n, …]` by name.

        Those of some of `MLPExperts` have a sparse gradient, which costs what they are, not what
        the pool is: the pool itself must be run, by which the sum of both is dense.

        Args:
            places: Their numbers in this pool, each once.
        """
        own = tensors_of(self._shell)
        if not places:
            return {f.name: own[f.name].new_empty(0, *f.shape) for f in self.formats}
        if self._modules is None:
            return {
                name: _rows(tensor, places, self._whole_gradient) for name, tensor in own.items()
            }
        each = [tensors_of(self._modules[place]) for place in places]
        return {f"stacked.{name}": torch.stack([t[name] for t in each]) for name in each[0]}

    @property
    def _whole_gradient(self) -> bool:
        """Returns whether every call of the pool gives each of its tensors a dense gradient."""
        return type(self._shell).grouped is MLPExperts.grouped

    def compute_by(self, num_experts: int, tensors: Mapping[str, Tensor]) -> Compute:
        """Returns what runs as many experts as there are in tensors `[num_experts, …]`."""
        shell: Any = copy.copy(self._shell)  # shallow: it shares the tensors, which are not read
        shell.num_experts = num_experts
        held, named = _Held(shell), {f"pool.{name}": tensor for name, tensor in tensors.items()}
        return lambda rows, offsets_E1: functional_call(held, named, (rows, offsets_E1))

    def structure(self) -> str | None:
        """Says what the experts are, but for their tensors' numbers; None: they are not alike.

        Two lenders of one structure can join their experts. A module with a setting that is no
        plain value, such as a function without a name, is like no other.
        """
        if self._modules is None:
            return _structure(self._shell, first=1)
        found = {_structure(self._around(module), first=0) for module in self._modules}
        return found.pop() if len(found) == 1 else None

    def _around(self, module: nn.Module) -> nn.Module:
        return ExpertPool.around(module, 0, self._shell.output_dim)


def lender_of(pool: Pool | None) -> Lender | None:
    """Returns the lender of a pool, also of one without experts; None: there cannot be one."""
    if isinstance(pool, ExpertPool) and (apart := pool.expert_modules) is not None:
        # Where all experts have left, what was kept of one says what those of other ranks are
        kinds = apart[:1] or pool.kind
        shells = [ExpertPool.around(kind, len(pool), pool.output_dim) for kind in kinds]
        return Lender(shells[0], apart or None) if shells else None
    return Lender(pool) if pool is not None and pool.traits.joinable else None


class _Held(nn.Module):
    """A pool as a module that `functional_call` can call."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, rows: Tree, offsets_E1: Tensor | None) -> Tree:
        """Computes as `PoolCompute` does."""
        return PoolCompute(self.pool)(rows, offsets_E1)


def _rows(tensor: Tensor, places: Sequence[int], sparse: bool) -> Tensor:
    """Picks some experts' entries; `sparse`: with a sparse gradient, which a dense one takes up."""
    # All of them: the tensor itself, of which no copy and no second gradient is made
    if list(places) == list(range(len(tensor))):
        return tensor
    numbers = torch.tensor(places, dtype=torch.int64, device=tensor.device)
    if sparse and tensor.requires_grad:
        # Where one of 64 experts was shadowed, a dense gradient was 1.5 times the work
        return _Entries.apply(tensor, numbers)
    return tensor[numbers]


class _Entries(torch.autograd.Function):
    """`tensor[numbers]`, whose gradient does not touch the memory of other experts."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.shape = tensor.shape
        return tensor[numbers]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        (numbers,) = ctx.saved_tensors
        places = numbers.unsqueeze(0)
        return torch.sparse_coo_tensor(places, grad, ctx.shape, check_invariants=True), None


def _structure(module: nn.Module, first: int) -> str | None:
    """Classes, settings and tensors of a module, those of an expert from dimension `first` on."""
    said: list[Any] = [(n, t.shape[first:], t.dtype) for n, t in tensors_of(module).items()]
    for name, part in module.named_modules():
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        settings = {k: v for k, v in vars(part).items() if k not in _OF_MODULES | _OF_PARTS}
        values = {k: _plain(v) for k, v in sorted(settings.items())}
        if None in values.values():
            return None
        said.append((name, kind, values))
    return repr(said)  # text, which ranks can send each other and compare


def _plain(value: Any) -> str | None:
    """A setting in words that are the same on all ranks; None: there are none."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    if isinstance(value, list | tuple):
        inner = [_plain(item) for item in value]
        return None if None in inner else f"({', '.join(map(str, inner))})"
    if isinstance(value, dict):
        return _plain([item for pair in value.items() for item in pair])
    name = getattr(value, "__qualname__", None)
    # `<lambda>` and `<locals>` name no one function
    return None if name is None or "<" in name else f"{value.__module__}.{name}"

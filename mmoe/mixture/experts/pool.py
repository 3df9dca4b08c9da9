"""`ExpertPool`: experts of any kind, as modules of their own or one upon the other."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from mmoe.mixture.axes import Entry, HasAxes, Names, Part, named, without
from mmoe.mixture.batch_invariant import StableFunctions
from mmoe.mixture.experts.contract import Pool, check_numbers, stacked_part, tensors_of
from mmoe.mixture.pytrees import Tree, join_rows, leaves_of, map_leaves, split_rows
from mmoe.mixture.traits import PoolTraits
from mmoe.ops import host_is_near

# Rows per product when a grouped pool scores. A product of torch's may round differently at another
# height, and how many rows an expert gets depends on the other rows of the batch; with products of
# one fixed height a row's score does not. 128 rows keep a product busy and waste little at its end.
SCORING_TILE = 128


class ExpertPool(Pool, nn.ModuleList):
    """Pool of experts that are modules of any class, of different classes too.

    Inputs and outputs may be tensors, or tuples and dicts of tensors to any depth (pytrees): rows
    of every leaf are gathered, and every leaf of the outputs is mixed. For equal MLPs use
    `MLPExperts`, which is faster.

    What a row's result may depend on in evaluation mode, on the CPU:

    - modules made of linear layers, ReLU, exact GELU, SiLU, sigmoid, tanh, softmax and layer
      normalisation: on that row alone, to the bit, whatever the batch, its height and the number of
      threads. Their linear layers run as this library's own products (`StableFunctions`).
    - any other module that treats rows alike: its products (`@`, convolutions, attention) are
      torch's. They round by the height of the batch, so grouped execution gives them rows in tiles
      of one fixed height, and dense execution compares batches of one height. Results agree within
      1e-5 of the largest in float32 between heights, places and thread counts; some of torch's
      functions (softplus, ELU, Mish, the tanh form of GELU) round the last numbers of a tensor in
      another way.

    Inside `torch.compile` and `torch.export`, and on a GPU, modules run as they are.

    Modules with a batch normalisation of torch's normalise, in training, over the rows that reached
    their expert: for gates that pick, such a pool runs grouped, and is refused where it is forced
    to run dense or padded. torch cannot normalise one row: an expert that got a single one raises
    its `ValueError`; `MLPExperts(norm="batch")` takes the running statistics there.

    Stacked, each of their tensors is one, experts in front: copies, which compute what the modules
    do. Since every tensor then says which of it is whose, such experts are saved in shards, and
    grow in number, as `MLPExperts`.

    Args:
        experts: Modules that map rows to as many rows. They need only agree on the structure and
            the shapes of what they return; to be stacked, also on the names and shapes of their
            tensors. Where they run grouped, any number of rows can come, none included. No modules:
            a rank of which only others compute; it does not know what theirs are, as
            `pool.part([])` does.
        output_dim: Width of what they return; default: the `output_dim` (or `out_features`) of the
            first expert that has one, else None, which is unknown.
        numbers: The experts' numbers among those of all ranks, by which their tensors are called
            (`3.weight`); default: 0, 1, …
        stacked: Their tensors are to lie one upon the other.

    Raises:
        ValueError: No experts and no width, experts that differ in their output or, stacked, in
            their tensors, or not a number for each.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLP, ExpertPool
        >>> pool = ExpertPool([MLP(8, [16]), torch.nn.Linear(8, 16)])
        >>> [y.shape for y in pool.dense([torch.zeros(3, 8)])]
        [torch.Size([3, 16]), torch.Size([3, 16])]
        >>> pool.grouped(torch.zeros(3, 8), torch.tensor([0, 1, 3], dtype=torch.int32)).shape
        torch.Size([3, 16])
        >>> pool = ExpertPool([torch.nn.Linear(8, 16) for _ in range(4)], stacked=True)
        >>> pool.stacked.weight.shape, len(pool)
        (torch.Size([4, 16, 8]), 4)

    Source: He et al., "FastMoE: a fast mixture-of-expert training system" (arXiv 2103.13262), for
        experts of any kind.
    """

    def __init__(
        self,
        experts: Iterable[nn.Module],
        output_dim: int | None = None,
        numbers: Sequence[int] | None = None,
        *,
        stacked: bool = False,
    ) -> None:
        super().__init__()
        modules = list(experts)
        if not modules and output_dim is None:
            raise ValueError(
                "experts: expected at least one module, got none; a rank without experts says "
                "output_dim, what others return"
            )
        self.output_dim = _width_of_all(modules, output_dim)
        self.is_stacked = stacked
        # What the experts of other ranks are, where there are none here; in a tuple, so that it is
        # not registered: it has nothing to train or to save
        self.kind: tuple[nn.Module, ...] = ()
        if stacked:
            self.num_experts, self.stacked = len(modules), _stack(modules)
        else:
            self.hold(dict(zip(_checked_numbers(numbers, len(modules)), modules, strict=True)))

    @classmethod
    def around(cls, stacked: nn.Module, num_experts: int, output_dim: int | None) -> "ExpertPool":
        """Makes a pool around a module whose tensors are stacked already; nothing is copied.

        Args:
            stacked: Its tensors have the experts as first dimension.
            num_experts: E; 0: none of them is here.
            output_dim: Width of an output; None: outputs are trees.
        """
        # The constructor wants a width where there are no modules; the real one, maybe None,
        # follows
        pool = cls([], output_dim or 0)
        pool.is_stacked, pool.num_experts, pool.output_dim = True, num_experts, output_dim
        pool.stacked, pool.training = stacked, stacked.training
        return pool

    @property
    def expert_modules(self) -> Sequence[nn.Module] | None:
        """The experts, unless they are stacked."""
        return None if self.is_stacked else list(self)

    def expert_sizes(self) -> list[int]:
        """Returns the number of parameters of each expert."""
        if self.is_stacked:
            return super().expert_sizes()
        return [sum(weight.numel() for weight in expert.parameters()) for expert in self]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the experts among those of all ranks, in the order in which they compute."""
        return tuple(range(len(self)) if self.is_stacked else map(int, self._modules))

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns the axes of stacked tensors: the experts first, then the modules' own."""
        if not self.is_stacked:
            return {}
        said = self.stacked.axes() if isinstance(self.stacked, HasAxes) else {}
        return {
            f"stacked.{name}": {0: "experts", **{d + 1: kind for d, kind in of.items()}}
            for name, of in ((name, said.get(name, {})) for name in self.stacked.state_dict())
        }

    def named_parts(self, names: Names) -> list[Part]:
        """Says that the tensors of every expert that is a module are its own."""
        return [
            Part(str(e), (Entry("experts", named(names, "experts", e)),), without(names, "experts"))
            for e in ([] if self.is_stacked else self.numbers)
        ]

    def hold(self, experts: Mapping[int, nn.Module]) -> None:
        """Makes these its experts, by their numbers, in the order in which they are to compute."""
        if len(self) and not experts:
            # What is left tells `lender_of` what the experts of other ranks are
            self.kind = (_without_experts(self[0]),)
        # By their numbers, not their places: checkpoints of a part have the names of the whole's
        self._modules = {str(number): expert for number, expert in experts.items()}

    def __len__(self) -> int:
        """E."""
        return self.num_experts if self.is_stacked else len(self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        """The experts; of stacked ones modules that share their tensors."""
        if not self.is_stacked:
            return super().__iter__()
        # Of one `unbind`, whose gradient is one tensor
        tensors = {name: tensor.unbind(0) for name, tensor in tensors_of(self.stacked).items()}
        return iter(
            _Expert(self.stacked, {name: of_experts[e] for name, of_experts in tensors.items()})
            for e in range(self.num_experts)
        )

    def __getitem__(self, index: Any) -> Any:
        """Returns an expert by its index here, which in a part of a pool is not its number."""
        return list(self)[index]

    def __setitem__(self, index: int, module: nn.Module) -> None:
        """Puts another expert in the place, under the same number."""
        setattr(self, list(self._modules)[index], module)

    @property
    def traits(self) -> PoolTraits:
        """A batch normalisation looks at the other rows of an expert."""
        uses_batch = any(isinstance(m, _BatchNorm) for m in self.modules())
        return PoolTraits(uses_batch=uses_batch, joinable=self.is_stacked)

    def part(self, experts: Sequence[int]) -> "ExpertPool":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        Their tensors keep their names, so that a checkpoint of all parts is one of the pool.

        Args:
            experts: Their places, in any order; none: a pool that knows what the others are.

        Raises:
            ValueError: A number outside [0, E).

        Example:
            >>> import torch
            >>> from mmoe.mixture import ExpertPool
            >>> pool = ExpertPool([torch.nn.Linear(4, 2) for _ in range(3)])
            >>> list(pool.part([2, 0]).state_dict()), len(pool.part([]))
            (['2.weight', '2.bias', '0.weight', '0.bias'], 0)
        """
        if self.is_stacked:
            return stacked_part(self, experts)
        check_numbers(experts, len(self))
        part = copy.copy(self)
        part.hold({self.numbers[e]: copy.deepcopy(self[e]) for e in experts})
        return part

    def train(self, mode: bool = True) -> "ExpertPool":
        """Sets the mode, also of what it keeps of others' experts."""
        # It lies in a tuple, where nn.Module does not look
        for module in self.kind:
            module.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ExpertPool":
        for module in self.kind:
            module._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def dense(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Runs every expert on all rows.

        Args:
            inputs: One input for all experts, or one per expert.

        Returns:
            What each expert returned.
        """
        experts = list(self)
        if len(inputs) not in (1, len(experts)):
            raise self.wrong_count(inputs)
        if not experts:
            return []
        inputs = list(inputs) if len(inputs) == len(experts) else list(inputs) * len(experts)
        outputs = [self._call(expert, x) for expert, x in zip(experts, inputs, strict=True)]
        self._check(experts, outputs, [leaves_of("inputs", x)[0].shape[0] for x in inputs])
        return outputs

    def grouped(self, rows: Tree, offsets_E1: Tensor) -> Tree:
        """Runs each expert on its own rows: expert e on `offsets[e] : offsets[e + 1]`.

        The sizes are read on the host: on a GPU this waits for the plan, and inside `torch.compile`
        it cannot run (there a mixture runs such a pool dense).

        Args:
            rows: Rows, those of one expert next to each other.
            offsets_E1: First row of each expert and, last, the number of rows; int32.

        Returns:
            Outputs, row for row; 0 past the last offset.

        Raises:
            ValueError: Offsets that do not fit the experts or the rows, or an expert that returns
                other rows than the others.
        """
        experts = list(self)
        if not experts:
            return self.no_rows(rows)
        bounds = offsets_E1.tolist()
        if len(bounds) != len(experts) + 1:
            raise ValueError(
                f"offsets_E1: expected {len(experts) + 1} entries, one more than experts, got "
                f"{len(bounds)}"
            )
        tail = leaves_of("rows", rows)[0].shape[0] - bounds[-1]
        sizes = [end - start for start, end in pairwise(bounds)]
        if min(tail, *sizes) < 0:
            raise ValueError(
                f"offsets_E1: expected numbers that rise from 0 to at most the {tail + bounds[-1]} "
                f"rows, got {bounds}"
            )
        # Experts without rows run as well: their gradients are then 0, not absent, and an optimizer
        # treats them as it does in dense execution.
        parts = split_rows(rows, [*sizes, tail])[: len(sizes)]
        outputs = [self._run(expert, part) for expert, part in zip(experts, parts, strict=True)]
        self._check(experts, outputs, sizes)
        if tail:
            zeros = map_leaves(lambda leaf: leaf.new_zeros(tail, *leaf.shape[1:]), outputs[0])
            outputs.append(zeros)
        return join_rows(outputs)

    def _run(self, expert: nn.Module, part: Tree) -> Tree:
        if self.training:
            return self._call(expert, part)
        rows = leaves_of("rows", part)[0].shape[0]
        # Of one height: how many rows an expert gets depends on the others of the batch
        missing = -rows % SCORING_TILE
        padded = map_leaves(
            lambda leaf: torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])]), part
        )
        # One empty tile where no row came, so that the result has the width of the others
        tiles = split_rows(padded, [SCORING_TILE] * ((rows + missing) // SCORING_TILE) or [0])
        together = join_rows([self._call(expert, tile) for tile in tiles])
        return map_leaves(lambda leaf: leaf[:rows], together)

    def _call(self, expert: nn.Module, rows: Tree) -> Tree:
        if torch.compiler.is_compiling():
            return expert(rows)
        try:
            if self.training or not host_is_near(leaves_of("inputs", rows)[0]):
                return expert(rows)
            # Scores on the CPU: torch's own functions may round a row by where it stands
            with StableFunctions():
                return expert(rows)
        except RuntimeError as error:
            _explain_dtype(expert, rows, error)
            raise

    def _check(
        self, experts: Sequence[nn.Module], outputs: Sequence[Tree], sizes: Sequence[int]
    ) -> None:
        """Checks that every expert returns a row for each row, of expert 0's shape and type."""
        # The width that the pool says goes before expert 0's, which may be the one that is wrong
        first = _shapes(outputs[0])
        if self.output_dim is not None and isinstance(outputs[0], Tensor):
            first = [[self.output_dim]]
        for e, (output, size) in enumerate(zip(outputs, sizes, strict=True)):
            kind = f"expert {e} ({experts[e]._get_name()})"
            if not _alike(output, outputs[0]):
                raise ValueError(
                    f"experts: expected the structure that expert 0 returns from {kind}, got "
                    f"{_describe(output)}"
                )
            for leaf, shape in zip(leaves_of("experts", output), first, strict=True):
                if list(leaf.shape) != [size, *shape]:
                    raise ValueError(
                        f"experts: expected shape {[size, *shape]} from {kind}, got "
                        f"{list(leaf.shape)}"
                    )
                if not leaf.is_floating_point():
                    raise ValueError(
                        f"experts: expected floating point numbers, which can be mixed, from "
                        f"{kind}, got {leaf.dtype}"
                    )


class _Expert(nn.Module):
    """A stacked module with the tensors of one expert in their place."""

    def __init__(self, stacked: nn.Module, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.parts = (stacked, tensors)  # in a tuple, so that they are not registered

    def forward(self, rows: Tree) -> Any:
        """Calls the expert."""
        stacked, tensors = self.parts
        return functional_call(stacked, tensors, (rows,))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Its tensors, for messages."""
        return cast(Iterator[nn.Parameter], iter(self.parts[1].values()))

    def _get_name(self) -> str:
        return type(self.parts[0]).__name__


def are_alike(experts: Sequence[nn.Module]) -> bool:
    """Returns whether modules are of one class, with tensors of the same names and shapes."""
    kinds = {
        (type(expert), tuple((n, t.shape, t.dtype) for n, t in tensors_of(expert).items()))
        for expert in experts
    }
    return len(kinds) == 1


def _stack(experts: Sequence[nn.Module]) -> nn.Module:
    """A copy of the first one, with the tensors of all in place of its own."""
    if not experts:
        raise ValueError("experts: expected at least one module to stack, got none")
    stacked, states = copy.deepcopy(experts[0]), [tensors_of(expert) for expert in experts]
    for name, tensor in tensors_of(stacked).items():
        shapes = {tuple(state[name].shape) if name in state else None for state in states}
        if len(shapes) > 1:
            raise ValueError(
                f"experts: expected modules whose tensors are alike, got {name!r} of shapes "
                f"{sorted(map(str, shapes))}"
            )
        # Into the copy's own parameters, which keep their names
        tensor.data = torch.stack([state[name].detach() for state in states])
    return stacked


def _without_experts(expert: nn.Module) -> nn.Module:
    """A copy with tensors `[0, …]` in place of its own: stacked, but of no experts."""
    kind = copy.deepcopy(expert)
    for tensor in tensors_of(kind).values():
        tensor.data = tensor.data.new_empty(0, *tensor.shape)
    return kind


def _checked_numbers(numbers: Sequence[int] | None, num_experts: int) -> Sequence[int]:
    if numbers is None:
        return range(num_experts)
    whole = all(isinstance(n, int) and n >= 0 for n in numbers)
    if len(set(numbers)) != num_experts or len(numbers) != num_experts or not whole:
        raise ValueError(
            f"numbers: expected {num_experts} different ones from 0 on, one for each expert, got "
            f"{list(numbers)}"
        )
    return numbers


def _width_of_all(experts: Sequence[nn.Module], output_dim: int | None) -> int | None:
    widths = [_width_of(expert) for expert in experts]
    if output_dim is None:
        output_dim = next((width for width in widths if width is not None), None)
    for e, width in enumerate(widths):
        if width not in (None, output_dim):
            raise ValueError(
                f"experts: expert {e} returns width {width}, expected {output_dim} "
                "as the others of its pool"
            )
    return output_dim


def _explain_dtype(expert: nn.Module, rows: Tree, error: RuntimeError) -> None:
    """Modules may cast what they get, so only one that failed is asked whether it should have."""
    own = {p.dtype for p in expert.parameters() if p.is_floating_point()}
    for leaf in leaves_of("inputs", rows):
        if own and leaf.is_floating_point() and leaf.dtype not in own:
            raise ValueError(
                f"inputs: expected {' or '.join(map(str, own))} as the parameters of "
                f"{type(expert).__name__}, got {leaf.dtype}"
            ) from error


def _width_of(expert: nn.Module) -> int | None:
    width = getattr(expert, "output_dim", getattr(expert, "out_features", None))
    return width if isinstance(width, int) else None


def _shapes(tree: Tree) -> list[list[int]]:
    return [list(leaf.shape[1:]) for leaf in leaves_of("experts", tree)]


def _alike(tree: Tree, other: Tree) -> bool:
    if isinstance(tree, Tensor) or isinstance(other, Tensor):
        return isinstance(tree, Tensor) and isinstance(other, Tensor)
    return pytree.tree_structure(tree) == pytree.tree_structure(other)


def _describe(tree: Tree) -> str:
    if isinstance(tree, dict):
        return f"a dict of {', '.join(map(str, tree))}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return f"a {type(tree).__name__}"

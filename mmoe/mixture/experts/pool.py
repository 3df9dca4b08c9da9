"""`ExpertPool`: experts of any kind that all gates share, and the two ways to run them."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from mmoe.mixture.axes import Entry, Names, Part, named, without
from mmoe.mixture.batch_invariant import StableFunctions
from mmoe.mixture.experts.no_experts import NoExperts, check_numbers, without_experts
from mmoe.mixture.pytrees import Tree, join_rows, leaves_of, map_leaves, split_rows
from mmoe.mixture.traits import PoolTraits
from mmoe.ops._checks import host_is_near

# Rows per product when a grouped pool scores. A product of torch's may round differently at another
# height, and how many rows an expert gets depends on the other rows of the batch; with products of
# one fixed height a row's score does not. 128 rows keep a product busy and waste little at its end.
SCORING_TILE = 128


@runtime_checkable
class Pool(Protocol):
    """Interface of a pool of experts; a module that has it is used as it is.

    What else it may say of itself are `PoolTraits`, as `traits` or as attributes of their names. A
    class that says `reads_requests = True` also has `of_requests(rows)`, which does with rows of
    requests what `dense` does with whole ones, and `shared_work(rows)`, the `SharedWork` of that.
    """

    output_dim: int | None

    def __len__(self) -> int:
        """E, the experts of this pool."""
        ...

    def dense(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Runs every expert on all rows: one `x_BD` for all or one per expert → E times `y_BO`."""
        ...

    def grouped(self, rows: Tree, offsets_E1: Tensor) -> Tree:
        """Runs expert e on rows `offsets[e] : offsets[e + 1]` → `y_RO`, row for row."""
        ...


class ExpertPool(nn.ModuleList):
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

    Args:
        experts: Modules that map rows to as many rows. They need only agree on the structure and
            the shapes of what they return. Where they run grouped, any number of rows can come,
            none included.
        output_dim: Width of what they return; default: the `output_dim` (or `out_features`) of the
            first expert that has one, else None, which is unknown.
        numbers: The experts' numbers among those of all ranks, by which their tensors are called
            (`3.weight`); default: 0, 1, …

    Raises:
        ValueError: No experts, experts that differ in their output, or not a number for each.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLP, ExpertPool
        >>> pool = ExpertPool([MLP(8, [16]), torch.nn.Linear(8, 16)])
        >>> [y.shape for y in pool.dense([torch.zeros(3, 8)])]
        [torch.Size([3, 16]), torch.Size([3, 16])]
        >>> pool.grouped(torch.zeros(3, 8), torch.tensor([0, 1, 3], dtype=torch.int32)).shape
        torch.Size([3, 16])

    Source: He et al., "FastMoE: a fast mixture-of-expert training system" (arXiv 2103.13262), for
        experts of any kind.
    """

    def __init__(
        self,
        experts: Iterable[nn.Module],
        output_dim: int | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        super().__init__(experts)
        if not len(self):
            raise ValueError("experts: expected at least one module, got none")
        if numbers is not None:
            self._call_by(numbers)
        widths = [_width_of(expert) for expert in self]
        if output_dim is None:
            output_dim = next((width for width in widths if width is not None), None)
        for e, width in enumerate(widths):
            if width not in (None, output_dim):
                raise ValueError(
                    f"experts: expert {e} returns width {width}, expected {output_dim} "
                    "as the others of its pool"
                )
        self.output_dim = output_dim

    def _call_by(self, numbers: Sequence[int]) -> None:
        whole = all(isinstance(n, int) and n >= 0 for n in numbers)
        if len(set(numbers)) != len(self) or len(numbers) != len(self) or not whole:
            raise ValueError(
                f"numbers: expected {len(self)} different ones from 0 on, one for each expert, got "
                f"{list(numbers)}"
            )
        self.hold(dict(zip(numbers, self, strict=True)))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the experts among those of all ranks, in the order in which they compute."""
        return tuple(map(int, self._modules))

    def named_parts(self, names: Names) -> list[Part]:
        """Says that every expert's tensors are its own."""
        return [
            Part(str(e), (Entry("experts", named(names, "experts", e)),), without(names, "experts"))
            for e in self.numbers
        ]

    def hold(self, experts: Mapping[int, nn.Module]) -> None:
        """Makes these its experts, by their numbers, in the order in which they are to compute."""
        self._modules = {str(number): expert for number, expert in experts.items()}

    def __getitem__(self, index: Any) -> Any:
        """By its place here, which in a part of a pool is not its number."""
        return list(self)[index]

    def __setitem__(self, index: int, module: nn.Module) -> None:
        """Puts another expert in the place, under the same number."""
        setattr(self, list(self._modules)[index], module)

    @property
    def traits(self) -> PoolTraits:
        """A batch normalisation looks at the other rows of an expert."""
        return PoolTraits(uses_batch=any(isinstance(m, _BatchNorm) for m in self.modules()))

    def part(self, experts: Sequence[int]) -> "ExpertPool | NoExperts":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        Their tensors keep their names, so that a checkpoint of all parts is one of the pool.

        Args:
            experts: Their places, in any order; none: `NoExperts`.

        Raises:
            ValueError: A number outside [0, E).

        Example:
            >>> import torch
            >>> from mmoe.mixture import ExpertPool
            >>> pool = ExpertPool([torch.nn.Linear(4, 2) for _ in range(3)])
            >>> list(pool.part([2, 0]).state_dict()), len(pool.part([]))
            (['2.weight', '2.bias', '0.weight', '0.bias'], 0)
        """
        check_numbers(experts, len(self))
        if not experts:
            return NoExperts(self.output_dim, without_experts(self[0]))
        numbers = [self.numbers[e] for e in experts]
        return ExpertPool([copy.deepcopy(self[e]) for e in experts], self.output_dim, numbers)

    def forward(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Does the same as `dense`."""
        return self.dense(inputs)

    def dense(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Runs every expert on all rows.

        Args:
            inputs: One input for all experts, or one per expert.

        Returns:
            What each expert returned.
        """
        if len(inputs) not in (1, len(self)):
            raise ValueError(
                f"inputs: expected one for all experts or {len(self)}, one per expert, got "
                f"{len(inputs)}"
            )
        inputs = list(inputs) if len(inputs) == len(self) else list(inputs) * len(self)
        outputs = [self._call(expert, x) for expert, x in zip(self, inputs, strict=True)]
        self._check(outputs, [leaves_of("inputs", x)[0].shape[0] for x in inputs])
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
        """
        bounds = offsets_E1.tolist()
        if len(bounds) != len(self) + 1:
            raise ValueError(
                f"offsets_E1: expected {len(self) + 1} entries, one more than experts, got "
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
        outputs = [self._run(expert, part) for expert, part in zip(self, parts, strict=True)]
        self._check(outputs, sizes)
        if tail:
            zeros = map_leaves(lambda leaf: leaf.new_zeros(tail, *leaf.shape[1:]), outputs[0])
            outputs.append(zeros)
        return join_rows(outputs)

    def _run(self, expert: nn.Module, part: Tree) -> Tree:
        if self.training:
            return self._call(expert, part)
        rows = leaves_of("rows", part)[0].shape[0]
        missing = -rows % SCORING_TILE
        padded = map_leaves(
            lambda leaf: torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])]), part
        )
        tiles = split_rows(padded, [SCORING_TILE] * ((rows + missing) // SCORING_TILE) or [0])
        together = join_rows([self._call(expert, tile) for tile in tiles])
        return map_leaves(lambda leaf: leaf[:rows], together)

    def _call(self, expert: nn.Module, rows: Tree) -> Tree:
        if torch.compiler.is_compiling():
            return expert(rows)
        try:
            if self.training or not host_is_near(leaves_of("inputs", rows)[0]):
                return expert(rows)
            with StableFunctions():
                return expert(rows)
        except RuntimeError as error:
            _explain_dtype(expert, rows, error)
            raise

    def _check(self, outputs: Sequence[Tree], sizes: Sequence[int]) -> None:
        """All experts must return what expert 0 does, a row for each row."""
        first = _shapes(outputs[0])
        if self.output_dim is not None and isinstance(outputs[0], Tensor):
            first = [[self.output_dim]]
        for e, (output, size) in enumerate(zip(outputs, sizes, strict=True)):
            kind = f"expert {e} ({self[e]._get_name()})"
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

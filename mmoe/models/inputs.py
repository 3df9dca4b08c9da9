"""Inputs of a network: numbers and embeddings of a batch side by side, and layers of numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from mmoe.config import InputLayerSpec, PiecesSpec, ProjectionSpec
from mmoe.datasets import Batch
from mmoe.mixture import Inputs
from mmoe.mixture.axes import Entry, Names, Part
from mmoe.mixture.batch_invariant import apply_linear


class NetworkInputs(NamedTuple):
    """Inputs of N rows, or of the requests that rows share.

    Attributes:
        dense_NF: Numbers, as the network's `inputs` return them, float32.
        x_NE: Pooled embeddings, then sequences; None: nothing is looked up.
    """

    dense_NF: Tensor
    x_NE: Tensor | None

    @property
    def wide(self) -> Tensor:
        """Joins all of them side by side, float32."""
        return self.dense_NF if self.x_NE is None else torch.cat([self.dense_NF, self.x_NE], dim=1)

    @property
    def joined(self) -> Tensor:
        """Joins all of them side by side, as the network reads them."""
        return self.dense_NF if self.x_NE is None else join_inputs(self.dense_NF, self.x_NE)


class Rows(Protocol):
    """B rows of a batch, read: looked up, encoded and in columns."""

    @property
    def batch(self) -> Batch:
        """The batch, every row with all of its own ids and numbers."""
        ...

    @property
    def all(self) -> NetworkInputs:
        """Returns all columns of each row."""
        ...

    @property
    def others(self) -> NetworkInputs:
        """Returns all columns but those of the display, which `model.bias` reads alone."""
        ...

    @property
    def read(self) -> Tensor | Inputs:
        """Everything that the levels of the network read."""
        ...


class PlainRows(NamedTuple):
    """Rows that share nothing."""

    batch: Batch
    all: NetworkInputs
    others: NetworkInputs

    @property
    def read(self) -> Tensor:
        """The other columns side by side."""
        return self.others.joined


class Added(NamedTuple):
    """Numbers to be added to the logits of towers.

    Attributes:
        logits_BR: A column for each logit that differs from row to row, or one a task.
        mixed_T: Tasks whose own logits stay; those of others are replaced. None: all stay.
        one_a_task: Whether there is one column a task, for its first logit.
    """

    logits_BR: Tensor
    mixed_T: Tensor | None = None
    one_a_task: bool = False


class LogitTerm(Protocol):
    """A part of a model whose logits are added to those of the towers."""

    def added(self, rows: Rows) -> Added | None:
        """Computes what is added; None: nothing, as of rows without embeddings."""
        ...


def join_inputs(dense_BF: Tensor, x_BD: Tensor) -> Tensor:
    """Returns `[dense, x]`, under bfloat16 autocast in bfloat16.

    Experts and gates would each cast it otherwise, and `cat` would write it once more: with 3,000
    columns these copies took as long as the gates.

    Args:
        dense_BF: Dense features, float32.
        x_BD: Embeddings, float32.

    Returns:
        `[B, F + D]`, float32 or bfloat16; the gradients are float32.

    Example:
        >>> join_inputs(torch.zeros(2, 3), torch.ones(2, 4)).shape
        torch.Size([2, 7])
    """
    device = dense_BF.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if dtype == torch.bfloat16 and x_BD.dtype == torch.float32:
        return _Narrow.apply(dense_BF, x_BD)
    return torch.cat([dense_BF, x_BD], dim=1) if dense_BF.shape[1] else x_BD


class _Narrow(torch.autograd.Function):
    """Joins and rounds in one pass, and widens the gradient in one."""

    @staticmethod
    def forward(ctx: Any, dense_BF: Tensor, x_BD: Tensor) -> Tensor:
        ctx.split = dense_BF.shape[1]
        out = x_BD.new_empty(len(x_BD), ctx.split + x_BD.shape[1], dtype=torch.bfloat16)
        out[:, : ctx.split] = dense_BF
        out[:, ctx.split :] = x_BD
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        needs_dense, needs_x = ctx.needs_input_grad
        return (
            grad[:, : ctx.split].float() if needs_dense else None,
            grad[:, ctx.split :].float() if needs_x else None,
        )


class InputLayers(nn.ModuleDict):
    """Replaces the dense columns of some features by linear projections or pieces of them.

    Projections have no bias: the layers that read them have their own, and a missing vector, which
    is 0, is then told by the weights of its own column alone. Pieces have no weights at all, and
    stand behind all other columns: those of features with as many pieces are made at once.

    Args:
        specs: The features, in the order of their columns, which do not overlap.
        of_levels: By level, those of them that are of it, where the dense columns of each level
            come apart; their columns are counted among the level's.

    Example:
        >>> title = ProjectionSpec(name="title", first=1, width=6, dim=2)
        >>> price = PiecesSpec(name="price", first=8, pieces=20, missing=True)
        >>> InputLayers([title, price])(torch.zeros(4, 9)).shape
        torch.Size([4, 25])
    """

    def __init__(
        self,
        specs: Sequence[InputLayerSpec],
        of_levels: Mapping[str, Sequence[InputLayerSpec]] | None = None,
    ) -> None:
        super().__init__()
        for spec in specs:
            if isinstance(spec, ProjectionSpec):
                linear = nn.Linear(spec.width, spec.dim, bias=False)
                # Projections have about the variance of the numbers that they are made of
                nn.init.normal_(linear.weight, std=spec.width**-0.5)
                self[_key(spec.name)] = linear
        self.specs = tuple(specs)
        self.of_levels = {"": self.specs, **{k: tuple(v) for k, v in (of_levels or {}).items()}}
        for level, own in self.of_levels.items():
            in_pieces = _in_pieces(own)
            for pieces in _distinct(in_pieces):
                places = [spec for spec in in_pieces if spec.pieces == pieces]
                self._keep(f"{level}positions_{pieces}", places)
            self._keep(f"{level}told_missing", [spec for spec in in_pieces if spec.missing])

    def forward(self, dense_BF: Tensor, level: str = "") -> Tensor:
        """Replaces them; other columns stay as they are, in their order.

        Args:
            dense_BF: float32 under autocast too: a position of 200.1 is 200 in bfloat16.
            level: Whose columns these are; default: all.
        """
        parts, at = [], 0
        specs = self.of_levels[level]
        for spec in specs:
            parts.append(dense_BF[:, at : spec.first])
            at = spec.first + spec.width
            if isinstance(spec, ProjectionSpec):
                linear = cast(nn.Linear, self[_key(spec.name)])
                parts.append(apply_linear(linear, dense_BF[:, spec.first : at].contiguous()))
        parts.append(dense_BF[:, at:])
        in_pieces = _in_pieces(specs)
        for pieces in _distinct(in_pieces):
            places = self.get_buffer(f"{level}positions_{pieces}")
            parts.append(expand_pieces(dense_BF.index_select(1, places), pieces))
        if in_pieces:
            told_BM = dense_BF.index_select(1, self.get_buffer(f"{level}told_missing"))
            parts.append((told_BM < 0).to(dense_BF))
        return torch.cat(parts, dim=1)

    def named_parts(self, names: Names) -> list[Part]:
        """Says which feature each projection is of."""
        own = {spec.name: _key(spec.name) for spec in self.specs if _key(spec.name) in self}
        return [Part(key, (Entry("features", name),), names) for name, key in own.items()]

    def _keep(self, name: str, specs: Sequence[PiecesSpec]) -> None:
        """Keeps the places of positions on the network's device, and out of its files."""
        places = torch.tensor([spec.first for spec in specs], dtype=torch.int64)
        self.register_buffer(name, places, persistent=False)


def expand_pieces(position_BK: Tensor, pieces: int) -> Tensor:
    """Returns the piecewise linear encoding of numbers, from their positions among P pieces.

    Column p of a number is `clip(u − p, 0, 1) − 0.5`: how far u has gone through piece p. All are 0
    where the number is missing.

    Args:
        position_BK: u of K numbers, in [0, P]: whole pieces below the number, and its fraction of
            the next; below 0 where it is missing.
        pieces: P.

    Returns:
        `[B, K·P]`, the first number's columns first.

    Source: Gorishniy, Rubachev, Babenko, "On embeddings for numerical features in tabular deep
    learning", NeurIPS 2022, section 3.2.

    Example:
        >>> expand_pieces(torch.tensor([[1.25], [-1.0]]), 3)
        tensor([[ 0.5000, -0.2500, -0.5000],
                [ 0.0000,  0.0000,  0.0000]])
    """
    start_P = torch.arange(pieces, device=position_BK.device, dtype=position_BK.dtype)
    # −0.5 where the number is known: a sum instead of a mask over all columns
    known_BK = (position_BK + 1).clamp(0, 1)
    gone_BKP = (position_BK.unsqueeze(2) - start_P).clamp_(0, 1)
    return gone_BKP.sub_(known_BK.unsqueeze(2), alpha=0.5).flatten(1)


def widened_by(specs: Sequence[InputLayerSpec]) -> int:
    """Returns by how much these layers make the input wider (below 0: narrower).

    Example:
        >>> widened_by([ProjectionSpec(name="title", first=1, width=6, dim=2)])
        -4
    """
    return sum(len(spec.columns) - spec.width for spec in specs)


def replaced_names(names: Sequence[str], specs: Sequence[InputLayerSpec]) -> list[str]:
    """Names the columns that `InputLayers` returns.

    Example:
        >>> specs = [ProjectionSpec(name="t", first=1, width=2, dim=1)]
        >>> replaced_names(["age", "t[0]", "t[1]", "size"], specs)
        ['age', 't projected[0]', 'size']
    """
    found, at = [], 0
    for spec in specs:
        found += names[at : spec.first]
        at = spec.first + spec.width
        if isinstance(spec, ProjectionSpec):
            found += spec.columns
    found += names[at:]
    in_pieces = _in_pieces(specs)
    for spec in in_pieces:
        found += spec.columns[: spec.pieces]
    return found + [spec.columns[-1] for spec in in_pieces if spec.missing]


def _key(name: str) -> str:
    """A name that no method of a module has."""
    return f"{name}_projection"


def _distinct(in_pieces: Sequence[PiecesSpec]) -> list[int]:
    """Returns the number of distinct pieces, of features of as many each."""
    return sorted({spec.pieces for spec in in_pieces})


def _in_pieces(specs: Sequence[InputLayerSpec]) -> list[PiecesSpec]:
    """Columns that are expanded into pieces, in the order of the columns they become."""
    found = [spec for spec in specs if isinstance(spec, PiecesSpec)]
    return sorted(found, key=lambda spec: spec.pieces)

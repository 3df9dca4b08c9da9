"""Pieces of tensors that several ranks hold together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor


class Shard(NamedTuple):
    """What a rank holds of a global tensor.

    Attributes:
        tensor: The piece itself, not a copy: what is loaded into it is loaded into the model.
        shape: Of the global tensor.
        offsets: Where the piece begins in it, one number for each dimension.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def region(self) -> tuple[slice, ...]:
        """What the piece is of the whole.

        Example:
            >>> import torch
            >>> whole = torch.arange(12).view(4, 3)
            >>> whole[Shard(torch.zeros(2, 3), (4, 3), (2, 0)).region].tolist()
            [[6, 7, 8], [9, 10, 11]]
        """
        return tuple(
            slice(start, start + size)
            for start, size in zip(self.offsets, self.tensor.shape, strict=True)
        )


# A tensor that every rank holds whole, or this rank's pieces (there may be none)
Sharded: TypeAlias = Tensor | list[Shard]
TensorMap: TypeAlias = Mapping[str, Tensor | Sequence[Shard]]


def pieces(value: Tensor | Sequence[Shard]) -> list[Shard]:
    """What this rank holds; a whole tensor is one piece."""
    if isinstance(value, Tensor):
        return [Shard(value, tuple(value.shape), (0,) * value.dim())]
    return list(value)


def held_whole(tensors: Mapping[str, Sharded]) -> dict[str, Tensor]:
    """The tensors, where this process holds all of them.

    Raises:
        ValueError: One of them is in pieces.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name!r} is spread over ranks, and this one has a part of it; take the pieces "
                "from table_shards() and optimizer_shards()"
            )
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def rows_held(shards: Iterable[Shard], rows_R: Tensor) -> Iterator[tuple[Shard, Tensor, Tensor]]:
    """Which of some rows of the whole each piece has.

    Args:
        shards: Pieces of one tensor.
        rows_R: Numbers of rows of the whole.

    Yields:
        The piece, those of its own rows [S], and which of the R they are [S].
    """
    for shard in shards:
        own_R = rows_R - shard.offsets[0]
        chosen_S = ((own_R >= 0) & (own_R < len(shard.tensor))).nonzero().view(-1)
        yield shard, own_R[chosen_S], chosen_S


def first_rows(value: Tensor | Sequence[Shard], rows: int) -> list[Shard]:
    """The first rows of a tensor, as pieces (views) of one that ends after them.

    Args:
        value: The tensor, or this rank's pieces of it.
        rows: How many of the whole, at most all.

    Example:
        >>> import torch
        >>> table = [Shard(torch.zeros(3, 4), (6, 4), (3, 0))]
        >>> [(len(piece.tensor), piece.shape, piece.offsets) for piece in first_rows(table, 5)]
        [(2, (5, 4), (3, 0))]
    """
    return [
        Shard(shard.tensor[: rows - shard.offsets[0]], (rows, *shard.shape[1:]), shard.offsets)
        for shard in pieces(value)
        if shard.offsets[0] < rows
    ]


def cut_like(tensor: Tensor, shards: Sequence[Shard]) -> list[Shard]:
    """Cuts a tensor as another one of its shape is cut, such as a moment as its parameter.

    Args:
        tensor: What this rank holds: the pieces one after another along dimension 0.
        shards: Of the other one, in that order; their `tensor`s give the heights.

    Returns:
        Views of `tensor`.

    Example:
        >>> import torch
        >>> weight = torch.zeros(3, 4)
        >>> experts = [Shard(weight[:1], (9, 4), (0, 0)), Shard(weight[1:], (9, 4), (5, 0))]
        >>> [tuple(piece.tensor.shape) for piece in cut_like(torch.ones(3, 4), experts)]
        [(1, 4), (2, 4)]
    """
    heights = [len(shard.tensor) for shard in shards]
    return [
        Shard(view, shard.shape, shard.offsets)
        for view, shard in zip(tensor.split(heights), shards, strict=True)
    ]


def cut_all(
    tensors: Mapping[str, Tensor], layout: Mapping[str, Sequence[Shard]]
) -> dict[str, Tensor | list[Shard]]:
    """`cut_like` for those tensors that are in a layout; others are as they were."""
    return {
        name: cut_like(tensor, layout[name]) if name in layout else tensor
        for name, tensor in tensors.items()
    }

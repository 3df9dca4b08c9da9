"""Shards of tensors that several ranks hold together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class Shard(NamedTuple):
    """A shard: what a rank holds of a global tensor.

    Attributes:
        tensor: The shard itself, not a copy: what is loaded into it is loaded into the model.
        shape: Of the global tensor.
        offsets: Where the shard begins in it, one number for each dimension.
        place: Where the shard lies in the tensor that this rank has; None: its shards stand there
            one after another, along dimension 0.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    place: tuple[slice, ...] | None = None

    @property
    def region(self) -> tuple[slice, ...]:
        """Slices of the global tensor that the shard is.

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


# A tensor that every rank holds whole, or this rank's shards (there may be none)
Sharded: TypeAlias = Tensor | list[Shard]
TensorMap: TypeAlias = Mapping[str, Tensor | Sequence[Shard]]


def local_shards(value: Tensor | Sequence[Shard]) -> list[Shard]:
    """Lists the shards of a tensor that this rank holds; a whole tensor is one shard."""
    if isinstance(value, Tensor):
        return [Shard(value, tuple(value.shape), (0,) * value.dim())]
    return list(value)


def is_whole(shards: Sequence[Shard]) -> bool:
    """Returns whether the shards that this rank holds are one, which is all of the tensor."""
    return len(shards) == 1 and shards[0].tensor.shape == shards[0].shape


def spread_out(tensor: Tensor, shards: Sequence[Shard]) -> Tensor:
    """Returns a global tensor of what a rank has of it, and zeros.

    Args:
        tensor: Of this rank.
        shards: As it, or one of its shape, is cut; at least one.

    Example:
        >>> import torch
        >>> own = torch.ones(2, 1)
        >>> right = Shard(own[1:], (1, 3), (0, 2), place=(slice(1, 2),))
        >>> spread_out(own, [right]).tolist()
        [[0.0, 0.0, 1.0]]
    """
    whole = tensor.new_zeros(shards[0].shape)
    for shard in cut_like(tensor, shards):
        whole[shard.region] = shard.tensor
    return whole


def taken_from(whole: Tensor, like: Tensor, shards: Sequence[Shard]) -> Tensor:
    """Returns a rank's part of a global tensor, `[…]` as `like`; what no shard has is 0.

    Args:
        whole: The global tensor.
        like: What the rank has of another one that is cut alike.
        shards: As that is cut.

    Example:
        >>> import torch
        >>> own = torch.ones(2, 1)
        >>> right = Shard(own[1:], (1, 3), (0, 2), place=(slice(1, 2),))
        >>> taken_from(torch.tensor([[5, 6, 7]]), own, [right]).tolist()
        [[0], [7]]
    """
    part = torch.zeros(like.shape, dtype=whole.dtype, device=whole.device)
    for shard in cut_like(part, shards):
        shard.tensor.copy_(whole[shard.region])
    return part


def held_whole(tensors: Mapping[str, Sharded]) -> dict[str, Tensor]:
    """Returns the tensors where this process holds all of them whole, else refuses.

    Raises:
        ValueError: One of them is in shards.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name!r} is spread over ranks, and this one has a part of it; take the pieces "
                "from table_shards() and optimizer_shards()"
            )
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def rows_held(shards: Iterable[Shard], rows_R: Tensor) -> Iterator[tuple[Shard, Tensor, Tensor]]:
    """Yields for each shard which of some rows of the whole it has.

    Args:
        shards: Shards of one tensor.
        rows_R: Numbers of rows of the whole.

    Yields:
        The shard, those of its own rows [S], and which of the R they are [S].
    """
    for shard in shards:
        own_R = rows_R - shard.offsets[0]
        chosen_S = ((own_R >= 0) & (own_R < len(shard.tensor))).nonzero().view(-1)
        yield shard, own_R[chosen_S], chosen_S


def first_rows(value: Tensor | Sequence[Shard], rows: int) -> list[Shard]:
    """Returns the first rows of a tensor, as shards (views) of one that ends after them.

    Args:
        value: The tensor, or this rank's shards of it.
        rows: How many of the whole, at most all.

    Example:
        >>> import torch
        >>> table = [Shard(torch.zeros(3, 4), (6, 4), (3, 0))]
        >>> [(len(shard.tensor), shard.shape, shard.offsets) for shard in first_rows(table, 5)]
        [(2, (5, 4), (3, 0))]
    """
    return [
        Shard(shard.tensor[: rows - shard.offsets[0]], (rows, *shard.shape[1:]), shard.offsets)
        for shard in local_shards(value)
        if shard.offsets[0] < rows
    ]


def cut_like(tensor: Tensor, shards: Sequence[Shard]) -> list[Shard]:
    """Cuts a tensor as another one of its shape is cut, such as Adam's moment as its parameter.

    Args:
        tensor: What this rank holds: the shards one after another along dimension 0, or each in
            its `place`.
        shards: Of the other one, in that order; their `tensor`s give the heights.

    Returns:
        Views of `tensor`.

    Example:
        >>> import torch
        >>> weight = torch.zeros(3, 4)
        >>> experts = [Shard(weight[:1], (9, 4), (0, 0)), Shard(weight[1:], (9, 4), (5, 0))]
        >>> [tuple(shard.tensor.shape) for shard in cut_like(torch.ones(3, 4), experts)]
        [(1, 4), (2, 4)]
    """
    if any(shard.place is not None for shard in shards):
        return [shard._replace(tensor=tensor[shard.place]) for shard in shards]
    if is_whole(shards):
        return local_shards(tensor)  # maybe a single number
    heights = [len(shard.tensor) for shard in shards]
    return [
        Shard(view, shard.shape, shard.offsets)
        for view, shard in zip(tensor.split(heights), shards, strict=True)
    ]


def cut_all(
    tensors: Mapping[str, Tensor], layout: Mapping[str, Sequence[Shard]]
) -> dict[str, Tensor | list[Shard]]:
    """Applies `cut_like` to the tensors that are in a layout; others stay as they are."""
    return {
        name: cut_like(tensor, layout[name]) if name in layout else tensor
        for name, tensor in tensors.items()
    }


@torch.no_grad()
def put_rows(table: Sharded, rows_R: Tensor, values_RD: Tensor) -> None:
    """Writes rows of a whole table into the shards that this rank holds.

    Args:
        table: The table or this rank's shards of it, changed in place.
        rows_R: Numbers of rows of the whole, each once, int64 on the CPU.
        values_RD: What they hold from now on, float32 on the CPU.

    Example:
        >>> table = torch.zeros(3, 4)
        >>> put_rows(table, torch.tensor([2]), torch.ones(1, 4))
        >>> table.sum(dim=1).tolist()
        [0.0, 0.0, 4.0]
    """
    for shard, own_S, chosen_S in rows_held(local_shards(table), rows_R):
        if len(own_S):
            # A shard may hold some of the columns alone
            held = values_RD[chosen_S][:, shard.region[1]]
            shard.tensor[own_S.to(shard.tensor.device)] = held.to(shard.tensor)

"""Slices: MLPs of two products, cut along their hidden units into pools of more, smaller ones."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture.experts.mlp import MLPExperts


class Piece(NamedTuple):
    """Numbers of a tensor of slices that stand together in that of the whole experts.

    Attributes:
        place: Where they are in the slices' tensor.
        offsets: Where they begin in that of the whole experts.
    """

    place: tuple[slice, ...]
    offsets: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Size along each dimension."""
        return tuple(span.stop - span.start for span in self.place)

    @property
    def region(self) -> tuple[slice, ...]:
        """Where they are in the whole experts' tensor."""
        sides = zip(self.offsets, self.shape, strict=True)
        return tuple(slice(start, start + size) for start, size in sides)


def cut_into_slices(whole: object, slices: int) -> MLPExperts:
    """Makes a pool of E · r slices: each has H / r of an expert's hidden units, and they add up.

    `W₂ᵀ act(W₁ᵀ x + b₁) + b₂ = Σ_s (W₂[s]ᵀ act(W₁[s]ᵀ x + b₁[s]) + [s = 0] · b₂)`

    A slice is an expert of its own, number `e · r + s`, so that more ranks than there are experts
    have something to compute: `ExpertPlacement.even(E, W, slices=r)` says who holds which, and
    gates go on picking whole experts. The bias b₂ is that of slice 0; what others have in its place
    is neither read nor trained, and stays 0. SwiGLU's two halves are cut alike.

    Dropout is drawn for every unit, so that hidden units drop as they do in the whole. That of the
    outputs is drawn for each slice by itself: of the same mean, but an output is then rarely
    dropped as a whole.

    Args:
        whole: The experts, `MLPExperts` with two products, no norm and `output_activation=None`:
            an activation would have to follow the sum, which no rank of a slice has. They are
            copied, and no random number is drawn.
        slices: r; it divides H.

    Raises:
        ValueError: Experts that cannot be cut, or slices that do not divide H.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts, cut_into_slices
        >>> whole = MLPExperts(2, 8, [6, 3], output_activation=None)
        >>> pool = cut_into_slices(whole, 3)
        >>> [tuple(weight.shape) for weight in pool.weights]
        [(6, 8, 2), (6, 2, 3)]
        >>> x_BD = torch.randn(4, 8)
        >>> first_three = torch.stack(pool.dense([x_BD])[:3]).sum(0)
        >>> torch.allclose(first_three, whole.dense([x_BD])[0], atol=1e-6)
        True

    Source: Hwang et al., "Tutel" (MLSys 2023), section 3.1: an expert shared out over r ranks.
    """
    whole = _checked(whole, slices)
    hidden, output_dim = whole.weights[1].shape[1:]
    pool = _empty(whole, len(whole) * slices, hidden // slices, output_dim)
    pool.slices = slices
    # A setting, not state: it comes back with what the whole was made by
    numbers_V = torch.arange(len(pool), device="cpu")
    pool.register_buffer("number_V", numbers_V, persistent=False)
    _fill(pool, whole, partial(cut_tensor, pool))
    # Only now: cutting reads them, which on the meta device have no values, and on a GPU are late
    pool.number_V = numbers_V.to(whole.weights[0].device)
    return pool


def join_slices(pool: MLPExperts) -> MLPExperts:
    """Copies slices into a pool of the whole experts.

    Raises:
        ValueError: A part of the slices.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts, cut_into_slices
        >>> whole = MLPExperts(2, 8, [6, 3], output_activation=None)
        >>> joined = join_slices(cut_into_slices(whole, 3))
        >>> all(map(torch.equal, joined.parameters(), whole.parameters()))
        True
    """
    if _numbers(pool) != list(range(len(pool))) or len(pool) % pool.slices:
        raise ValueError(
            f"slices: expected all {pool.slices} of every expert in their order, got "
            f"{_numbers(pool)}; join them where all ranks' are"
        )
    hidden, output_dim = pool.weights[1].shape[1:]
    whole = _empty(pool, len(pool) // pool.slices, hidden * pool.slices, output_dim)
    _fill(whole, pool, partial(join_tensor, pool))
    return whole


def cut_tensor(pool: MLPExperts, name: str, whole: Tensor) -> Tensor:
    """Cuts a tensor `[E, …]` of whole experts into that of their slices, `[E · r, …]`.

    Args:
        pool: The slices.
        name: Of a parameter; or, of what an optimizer keeps for each of its numbers,
            `NAME/MOMENT`.
        whole: The tensor; one number for all, such as a count of steps, is returned.
    """
    if not whole.dim():
        return whole
    # Zeros stay where a slice has no part of it: slices add up, so that one alone has the bias
    sliced = whole.new_zeros(pool.get_parameter(name.partition("/")[0]).shape)
    for piece in pieces(pool, name, sliced.shape):
        sliced[piece.place] = whole[piece.region]
    return sliced


def join_tensor(pool: MLPExperts, name: str, sliced: Tensor) -> Tensor:
    """Puts a tensor of slices together again: what `cut_tensor` has cut."""
    if not sliced.dim():
        return sliced
    num_experts = len(sliced) // pool.slices
    whole = sliced.new_empty(whole_shape(pool, name, sliced.shape, num_experts))
    for piece in pieces(pool, name, sliced.shape):
        whole[piece.region] = sliced[piece.place]
    return whole


def pieces(pool: MLPExperts, name: str, shape: Sequence[int]) -> Iterator[Piece]:
    """Yields where the numbers of a tensor of slices lie in that of the whole experts.

    Args:
        pool: The slices, or some of them.
        name: As for `cut_tensor`.
        shape: Of the slices' tensor, `[v, …]`.

    Example:
        >>> from mmoe.mixture import MLPExperts, cut_into_slices
        >>> part = cut_into_slices(MLPExperts(2, 8, [6, 3], output_activation=None), 2).part([3])
        >>> [piece] = pieces(part, "weights.1", (1, 3, 3))  # units 3 to 5 of expert 1
        >>> piece.offsets, piece.shape
        ((1, 3, 0), (1, 3, 3))
    """
    rest = tuple(shape[1:])
    numbers = _numbers(pool)
    for place, (expert, turn) in enumerate(divmod(n, pool.slices) for n in numbers):
        own = (slice(place, place + 1), *(slice(0, width) for width in rest))
        match name.partition("/")[0]:
            case "biases.1":  # once for all slices of an expert
                if turn == 0:
                    yield Piece(own, (expert, 0))
            case "weights.1":
                yield Piece(own, (expert, turn * rest[0], 0))
            case _:
                width = rest[-1] // _halves(pool)
                before = tuple(0 for _ in rest[:-1])
                # Both halves of SwiGLU are cut alike, so that a unit keeps its gate
                for half in range(_halves(pool)):
                    first = half * width
                    units = (*own[:-1], slice(first, first + width))
                    start = (half * pool.slices + turn) * width
                    yield Piece(units, (expert, *before, start))


def whole_shape(
    pool: MLPExperts, name: str, shape: Sequence[int], num_experts: int
) -> tuple[int, ...]:
    """Returns the shape of a tensor of whole experts, `[E, …]`, by that of slices, `[v, …]`.

    Args:
        pool: The slices, or some of them.
        name: As for `cut_tensor`.
        shape: Of the slices' tensor.
        num_experts: E.
    """
    cut = {"biases.1": None, "weights.1": 1}.get(name.partition("/")[0], len(shape) - 1)
    widths = [w * pool.slices if d == cut else w for d, w in enumerate(shape)]
    return num_experts, *widths[1:]


def _halves(pool: MLPExperts) -> int:
    """Returns the number of blocks of hidden units in the first product."""
    return 2 if pool.activation == "swiglu" else 1


def _numbers(pool: MLPExperts) -> list[int]:
    """The slices' numbers among all."""
    assert pool.number_V is not None, "it was cut"
    return pool.number_V.tolist()


def _empty(like: MLPExperts, num_experts: int, hidden: int, output_dim: int) -> MLPExperts:
    """A pool of other sizes, without numbers."""
    with torch.device("meta"):  # nothing is drawn there
        return MLPExperts(
            num_experts,
            like.input_dim,
            [hidden, output_dim],
            activation=like.activation,
            output_activation=None,
            dropout=like.dropout,
            output_dropout=like.output_dropout,
            bias=bool(like.biases),
        )


def _fill(pool: MLPExperts, source: MLPExperts, change: Callable[[str, Tensor], Tensor]) -> None:
    """Gives a pool without numbers copies of another one's, changed."""
    for kind in ("weights", "biases"):
        for layer, old in enumerate(getattr(source, kind)):
            new = change(f"{kind}.{layer}", old.detach())
            getattr(pool, kind)[layer] = nn.Parameter(new, requires_grad=old.requires_grad)
    pool.train(source.training)


def can_be_cut(pool: object) -> bool:
    """Returns whether `cut_into_slices` takes a pool, into some number of slices."""
    try:
        _checked(pool, 1)
    except ValueError:
        return False
    return True


def _checked(whole: object, slices: int) -> MLPExperts:
    # A subclass may compute something else
    if type(whole) is not MLPExperts or whole.number_V is not None:
        got = "slices" if isinstance(whole, MLPExperts) else f"a {type(whole).__name__}"
        raise ValueError(
            f"experts: expected whole MLPExperts, which can be cut, got {got}; spread others whole"
        )
    if len(whole.weights) != 2:
        raise ValueError(
            f"hidden: expected two widths, [H, O], for experts that are cut along H, got "
            f"{[weight.shape[2] for weight in whole.weights]}"
        )
    if whole.norm is not None:
        raise ValueError(
            f"norm: expected None for experts that are cut, since a norm sees all units of a "
            f"layer, got {whole.norm!r}"
        )
    if whole.activations[-1] is not None:
        raise ValueError(
            "output_activation: expected None for experts that are cut, since slices add up before "
            f"it, got {whole.output_activation!r}"
        )
    hidden = whole.weights[1].shape[1]
    if slices < 1 or hidden % slices:
        raise ValueError(
            f"slices: expected a number that divides the {hidden} hidden units, got {slices}"
        )
    return whole

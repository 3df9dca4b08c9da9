"""`SlicedExperts`: MLPs of two products, cut along their hidden units."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture.experts.mlp_experts import MLPExperts


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
        """How many there are along each dimension."""
        return tuple(span.stop - span.start for span in self.place)


class SlicedExperts(MLPExperts):
    """Pool of E · r slices: each has H / r of an expert's hidden units, and they add up to it.

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
        >>> from mmoe.mixture import SlicedExperts, mlp_experts
        >>> whole = mlp_experts(2, 8, [6, 3], output_activation=None)
        >>> slices = SlicedExperts(whole, 3)
        >>> [tuple(weight.shape) for weight in slices.weights]
        [(6, 8, 2), (6, 2, 3)]
        >>> x_BD = torch.randn(4, 8)
        >>> first_three = torch.stack(slices.dense([x_BD])[:3]).sum(0)
        >>> torch.allclose(first_three, whole.dense([x_BD])[0], atol=1e-6)
        True

    Source: Hwang et al., "Tutel" (MLSys 2023), section 3.1: an expert shared out over r ranks.
    """

    number_V: Tensor
    slices = 1

    def __init__(self, whole: MLPExperts, slices: int) -> None:
        _check(whole, slices)
        hidden, output_dim = whole.weights[1].shape[1:]
        with torch.device("meta"):  # nothing is drawn there
            super().__init__(
                len(whole) * slices,
                whole.input_dim,
                [hidden // slices, output_dim],
                activation=whole.activation,
                output_activation=None,
                dropout=whole.dropout,
                output_dropout=whole.output_dropout,
                bias=bool(whole.biases),
            )
        self.slices = slices
        _fill(self, whole, self.cut_tensor)
        # A setting, not state: it comes back with the constructor's arguments
        numbers_V = torch.arange(len(self), device=self.weights[0].device)
        self.register_buffer("number_V", numbers_V, persistent=False)

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator, as those of whole experts."""
        for weight, cut in zip(self.weights, (1, self.slices), strict=True):
            nn.init.normal_(weight, std=math.sqrt(2 / (weight.shape[1] * cut)))
        for bias in self.biases:
            nn.init.zeros_(bias)

    def joined(self) -> MLPExperts:
        """Copies the slices into a pool of the whole experts.

        Raises:
            ValueError: A part of the slices.

        Example:
            >>> import torch
            >>> from mmoe.mixture import SlicedExperts, mlp_experts
            >>> whole = mlp_experts(2, 8, [6, 3], output_activation=None)
            >>> joined = SlicedExperts(whole, 3).joined()
            >>> all(map(torch.equal, joined.parameters(), whole.parameters()))
            True
        """
        if self.number_V.tolist() != list(range(len(self))) or len(self) % self.slices:
            raise ValueError(
                f"slices: expected all {self.slices} of every expert in their order, got "
                f"{self.number_V.tolist()}; join them where all ranks' are"
            )
        with torch.device("meta"):
            whole = MLPExperts(
                len(self) // self.slices,
                self.input_dim,
                [self.weights[1].shape[1] * self.slices, self.weights[1].shape[2]],
                activation=self.activation,
                output_activation=None,
                dropout=self.dropout,
                output_dropout=self.output_dropout,
                bias=bool(self.biases),
            )
        _fill(whole, self, self.join_tensor)
        return whole

    def cut_tensor(self, name: str, whole: Tensor) -> Tensor:
        """Cuts a tensor `[E, …]` of whole experts into that of their slices, `[E · r, …]`.

        Args:
            name: Of a parameter; or, of what an optimizer keeps for each of its numbers,
                `NAME/MOMENT`.
            whole: The tensor; one number for all, such as a count of steps, is returned.
        """
        match name.partition("/")[0]:
            case _ if not whole.dim():
                return whole
            case "biases.1":
                first = whole.new_zeros(len(whole), self.slices, *whole.shape[1:])
                first[:, 0] = whole
                return first.flatten(0, 1)
            case "weights.1":
                return whole.unflatten(1, (self.slices, -1)).flatten(0, 1)
            case _:  # [E, …, halves, r, h] → [E, r, …, halves, h]
                apart = whole.unflatten(-1, (self._halves, self.slices, -1))
                return apart.movedim(-2, 1).flatten(-2).flatten(0, 1)

    def join_tensor(self, name: str, sliced: Tensor) -> Tensor:
        """Puts a tensor of slices together again: what `cut_tensor` has cut."""
        if not sliced.dim():
            return sliced
        of_each = sliced.unflatten(0, (-1, self.slices))
        match name.partition("/")[0]:
            case "biases.1":
                return of_each[:, 0]
            case "weights.1":
                return of_each.flatten(1, 2)
            case _:
                return of_each.unflatten(-1, (self._halves, -1)).movedim(1, -2).flatten(-3)

    def pieces(self, name: str, shape: Sequence[int]) -> Iterator["Piece"]:
        """Yields where the numbers of a tensor of slices lie in that of the whole experts.

        Args:
            name: As for `cut_tensor`.
            shape: Of the slices' tensor, `[v, …]`.

        Example:
            >>> from mmoe.mixture import SlicedExperts, mlp_experts
            >>> part = SlicedExperts(mlp_experts(2, 8, [6, 3], output_activation=None), 2).part([3])
            >>> [piece] = part.pieces("weights.1", (1, 3, 3))  # units 3 to 5 of expert 1
            >>> piece.offsets, piece.shape
            ((1, 3, 0), (1, 3, 3))
        """
        rest = tuple(shape[1:])
        numbers = self.number_V.tolist()
        for place, (expert, turn) in enumerate(divmod(n, self.slices) for n in numbers):
            own = (slice(place, place + 1), *(slice(0, width) for width in rest))
            match name.partition("/")[0]:
                case "biases.1":  # once for all slices of an expert
                    if turn == 0:
                        yield Piece(own, (expert, 0))
                case "weights.1":
                    yield Piece(own, (expert, turn * rest[0], 0))
                case _:
                    width = rest[-1] // self._halves
                    before = tuple(0 for _ in rest[:-1])
                    for half in range(self._halves):
                        first = half * width
                        units = (*own[:-1], slice(first, first + width))
                        start = (half * self.slices + turn) * width
                        yield Piece(units, (expert, *before, start))

    def whole_shape(self, name: str, shape: Sequence[int], num_experts: int) -> tuple[int, ...]:
        """Returns the shape of a tensor of whole experts, `[E, …]`, by that of slices, `[v, …]`.

        Args:
            name: As for `cut_tensor`.
            shape: Of the slices' tensor.
            num_experts: E.
        """
        cut = {"biases.1": None, "weights.1": 1}.get(name.partition("/")[0], len(shape) - 1)
        widths = [w * self.slices if d == cut else w for d, w in enumerate(shape)]
        return num_experts, *widths[1:]

    @property
    def _halves(self) -> int:
        """How many blocks of hidden units the first product has."""
        return 2 if self.activation == "swiglu" else 1

    def _layer(self, layer: int) -> tuple[Tensor, Tensor | None]:
        weight, bias_VH = super()._layer(layer)
        if layer and bias_VH is not None:  # once for all slices of an expert
            bias_VH = bias_VH * (self.number_V % self.slices == 0).unsqueeze(1)
        return weight, bias_VH


def _fill(pool: MLPExperts, source: MLPExperts, change: Callable[[str, Tensor], Tensor]) -> None:
    """Gives a pool without numbers copies of another one's, changed."""
    for kind in ("weights", "biases"):
        for layer, old in enumerate(getattr(source, kind)):
            new = change(f"{kind}.{layer}", old.detach()).clone()
            getattr(pool, kind)[layer] = nn.Parameter(new, requires_grad=old.requires_grad)
    pool.train(source.training)


def can_be_cut(pool: object) -> bool:
    """Returns whether `SlicedExperts` takes a pool, into some number of slices.

    Example:
        >>> from mmoe.mixture import mlp_experts
        >>> can_be_cut(mlp_experts(2, 8, [6, 3])), can_be_cut(mlp_experts(2, 8, [3]))
        (False, False)
    """
    try:
        _check(pool, 1)
    except ValueError:
        return False
    return True


def _check(whole: object, slices: int) -> None:
    if type(whole) is not MLPExperts:  # a subclass may compute something else
        raise ValueError(
            f"experts: expected whole MLPExperts, which can be cut, got a {type(whole).__name__}; "
            "spread others whole"
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

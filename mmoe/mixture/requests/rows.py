"""`RequestRows`: an input of a mixture whose rows share what is of their request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmoe.mixture.pytrees import cast_for_autocast, leaves_of
from mmoe.mixture.requests.columns import RequestColumns
from mmoe.ops.repeat_rows import Owners, repeat_rows

# Requests per product where a product of another height may round otherwise, as on a GPU: how many
# requests a batch has must not show in a score
REQUEST_TILE = 128


@dataclass(frozen=True, kw_only=True)
class RequestRows:
    """B rows of Q requests, in two parts.

    Attributes:
        x_QP: The request's columns, float; rows behind the Qth are nobody's.
        x_BR: The row's.
        owners: Each row's request.
        columns: Which columns of the whole these are.
        exact: What is not the request's alone is computed of whole rows, so that it has the bits of
            rows without requests.
        in_tiles: Products of requests are those of tiles of one height; nothing is trained then.

    Raises:
        ValueError: The parts do not fit each other.

    Example:
        >>> import torch
        >>> from mmoe.mixture.requests.columns import RequestColumns
        >>> from mmoe.ops.repeat_rows import Owners
        >>> rows = RequestRows(
        ...     x_QP=torch.tensor([[1.0], [2.0]]), x_BR=torch.tensor([[5.0], [6.0], [7.0]]),
        ...     owners=Owners(torch.tensor([0, 1, 1]), 2), columns=RequestColumns([0], 2))
        >>> rows.whole.tolist()
        [[1.0, 5.0], [2.0, 6.0], [2.0, 7.0]]
    """

    x_QP: Tensor
    x_BR: Tensor
    owners: Owners
    columns: RequestColumns
    exact: bool = False
    in_tiles: bool = False

    def __post_init__(self) -> None:
        """Refuses parts that do not fit each other."""
        columns, rows = self.columns, len(self.owners.of_B)
        for name, part, height, width in (
            ("x_QP", self.x_QP, len(self.x_QP), len(columns.of_request)),
            ("x_BR", self.x_BR, rows, len(columns.of_row)),
        ):
            if part.dim() != 2 or list(part.shape) != [height, width]:
                raise ValueError(
                    f"{name}: expected shape [{height}, {width}], as owners and columns say, got "
                    f"{list(part.shape)}"
                )
        if self.x_QP.dtype != self.x_BR.dtype or not self.x_BR.is_floating_point():
            raise ValueError(
                f"x_BR: expected floating point numbers in the type of x_QP, {self.x_QP.dtype}, "
                f"got {self.x_BR.dtype}"
            )

    def __len__(self) -> int:
        """B."""
        return len(self.x_BR)

    @cached_property
    def whole(self) -> Tensor:
        """Every row with its request's columns, `x_BD`."""
        return self.columns.join(self.repeat(self.x_QP), self.x_BR)

    def repeat(self, y_QO: Tensor) -> Tensor:
        """Gives each row what was computed of its request."""
        return repeat_rows(y_QO, self.owners)

    def repeat_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Does the same for several tensors; where nothing is learnt, all of them at once."""
        if torch.is_grad_enabled():
            return [self.repeat(y_QO) for y_QO in parts]
        wide_BX = torch.cat(list(parts), dim=1).index_select(0, self.owners.of_B)
        return list(wide_BX.split([y_QO.shape[1] for y_QO in parts], dim=1))

    def once(self, function: Callable[[Tensor], Any]) -> list[Tensor]:
        """Calls a function of rows, which returns a list of tensors of as many, for the requests.

        Args:
            function: Of `x_QP`, or of tiles of it, one after another.
        """
        if not self.in_tiles:
            return list(function(self.x_QP))
        missing = -self.owners.count % REQUEST_TILE
        x_QP = self.x_QP[: self.owners.count]
        padded = torch.cat([x_QP, x_QP.new_zeros(missing, x_QP.shape[1])])
        tiles = [function(tile) for tile in padded.split(REQUEST_TILE)] or [function(padded)]
        return [torch.cat(list(parts)) for parts in zip(*tiles, strict=True)]


def first_leaf(x: Any) -> Tensor:
    """Returns a tensor of as many rows as an input has, in its type and on its device.

    Example:
        >>> import torch
        >>> first_leaf((torch.zeros(2, 3), torch.zeros(2))).shape
        torch.Size([2, 3])
    """
    return x.x_BR if isinstance(x, RequestRows) else leaves_of("x", x)[0]


def read_by_gates(gate: object, x: Any) -> Any:
    """Returns an input as a gate reads it: whole, unless it knows of requests and they share.

    Example:
        >>> import torch
        >>> read_by_gates(torch.nn.Linear(3, 1), torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    if not isinstance(x, RequestRows):
        return x
    return x if knows_requests(gate) and not x.exact else x.whole


def read_by_experts(pool: object, x: Any) -> Any:
    """Returns an input as a pool reads it where it runs dense, in autocast's type.

    Example:
        >>> import torch
        >>> read_by_experts(None, torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    if not isinstance(x, RequestRows):
        return cast_for_autocast(x)
    return x if knows_requests(pool) else cast_for_autocast(x.whole)


def knows_requests(part: object) -> bool:
    """Whether a gate or a pool says `reads_requests`.

    Its very class: what is derived from one may read its input otherwise.

    Example:
        >>> from mmoe.mixture import SoftmaxGate
        >>> knows_requests(SoftmaxGate(4, num_gates=1, num_experts=2))
        True
    """
    return vars(type(part)).get("reads_requests", False)

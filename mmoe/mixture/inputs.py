"""`Inputs`: what gates, experts and towers read of rows of which there is more to say.

First the columns of an input: those that a part of a mixture reads; the request's and the row's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mmoe import ops
from mmoe.mixture.pytrees import Tree, cast_for_autocast, leaves_of
from mmoe.ops import RoutePlan, gathered_mm, route_plan, unpermute
from mmoe.ops.row_sums import Owners, repeat_rows

Run = tuple[int, int, int]  # where it begins in the part, where in the whole, and how long it is


class ColumnChoice(nn.Module):
    """Takes some columns of rows, in an order of its own.

    Args:
        columns: Their numbers; None: rows come back as they are.

    Example:
        >>> import torch
        >>> x_BD = torch.tensor([[1.0, 2.0, 3.0]])
        >>> [x.tolist() for x in ColumnChoice([2, 0]).of([x_BD, x_BD])]
        [[[3.0, 1.0]], [[3.0, 1.0]]]
    """

    columns_C: Tensor | None

    def __init__(self, columns: Sequence[int] | None) -> None:
        super().__init__()
        # A setting, not state: it comes back with the constructor's arguments
        numbers_C = None if columns is None else torch.tensor(columns, dtype=torch.int64)
        self.register_buffer("columns_C", numbers_C, persistent=False)

    def forward(self, x_RD: Tensor) -> Tensor:
        """Returns the columns of one tensor."""
        return x_RD if self.columns_C is None else x_RD.index_select(1, self.columns_C)

    def of(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns those of each; a tensor that comes several times is read once, and stays one."""
        # By identity: gates that read one tensor still read one, and share a product
        # (`gate_products`)
        taken = {id(x_RD): x_RD for x_RD in inputs}
        chosen = {key: self(x_RD) for key, x_RD in taken.items()}
        return [chosen[id(x_RD)] for x_RD in inputs]


class RequestColumns(nn.Module):
    """Takes inputs, and weights that read them, apart into the request's part and the row's.

    Args:
        of_request: Numbers of the request's columns, in the order of its part.
        width: D, of the whole; the row's columns are the others, in the order of `of_row`.
        of_row: Numbers of the row's columns, in the order of its part; default: as in the whole.

    Attributes:
        runs: Of both parts, which columns of theirs are neighbours in the whole too.

    Raises:
        ValueError: Together they are not all columns, each once.

    Example:
        >>> import torch
        >>> columns = RequestColumns([0, 2], 4)
        >>> of_request, of_row = columns.split(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), dim=1)
        >>> of_request.tolist(), of_row.tolist()
        ([[1.0, 3.0]], [[2.0, 4.0]])
        >>> columns.join(of_request, of_row).tolist()
        [[1.0, 2.0, 3.0, 4.0]]
    """

    order_D: Tensor
    inverse_D: Tensor

    def __init__(
        self, of_request: Sequence[int], width: int, of_row: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        shared = set(of_request)
        of_row = [d for d in range(width) if d not in shared] if of_row is None else of_row
        order = [*of_request, *of_row]
        if sorted(order) != list(range(width)):
            raise ValueError(
                f"of_request: expected some of the columns 0 to {width - 1}, each once, and the "
                f"others in of_row, got {list(of_request)} and {list(of_row)}"
            )
        self.of_request, self.of_row = tuple(of_request), tuple(of_row)
        self.runs = _runs(self.of_request), _runs(self.of_row)
        # Settings, not state: they come back with the constructor's arguments
        order_D = torch.tensor(order, dtype=torch.int64)
        self.register_buffer("order_D", order_D, persistent=False)
        self.register_buffer("inverse_D", order_D.argsort(), persistent=False)

    @property
    def width(self) -> int:
        """Returns D."""
        return len(self.order_D)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Takes a tensor of D entries in a dimension apart: the request's, the row's."""
        return _Split.apply(x, self, dim)

    def join(self, x_NP: Tensor, x_NR: Tensor) -> Tensor:
        """Puts the two parts of N rows back where they were: `[N, D]`."""
        return _Join.apply(x_NP, x_NR, self)

    def extra_repr(self) -> str:
        """Returns what `print` shows."""
        return f"request={len(self.of_request)}, row={len(self.of_row)}"

    @property
    def _places(self) -> tuple[Tensor, Tensor]:
        first, second = self.order_D.split([len(self.of_request), len(self.of_row)])
        return first, second


class _Split(torch.autograd.Function):
    """The gradient is one pass; that of two selections would be two buffers of zeros, added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: RequestColumns, dim: int) -> tuple[Tensor, Tensor]:
        ctx.columns, ctx.dim = columns, dim
        of_request, of_row = columns._places
        return x.index_select(dim, of_request), x.index_select(dim, of_row)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        first, second = grads
        joined = torch.cat([first, second], dim=ctx.dim)
        return joined.index_select(ctx.dim, ctx.columns.inverse_D), None, None


class _Join(torch.autograd.Function):
    """Likewise; run by run of neighbouring columns, which takes half as long as one by one."""

    @staticmethod
    def forward(ctx: Any, x_NP: Tensor, x_NR: Tensor, columns: RequestColumns) -> Tensor:
        ctx.columns = columns
        out_ND = x_NR.new_empty(len(x_NR), columns.width)
        for x_NX, runs in zip((x_NP, x_NR), columns.runs, strict=True):
            for own, whole, width in runs:
                out_ND[:, whole : whole + width] = x_NX[:, own : own + width]
        return out_ND

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_ND,) = grads
        parts = []
        for runs in ctx.columns.runs:
            taken = [grad_ND[:, whole : whole + width] for _, whole, width in runs]
            parts.append(torch.cat(taken, dim=1) if taken else grad_ND[:, :0])
        return parts[0], parts[1], None


def _runs(places: Sequence[int]) -> list[Run]:
    """Neighbouring columns of a part that are neighbours in the whole."""
    runs: list[Run] = []
    for own, whole in enumerate(places):
        start, first, width = runs[-1] if runs else (0, -1, 0)
        if runs and whole == first + width:
            runs[-1] = start, first, width + 1
        else:
            runs.append((own, whole, 1))
    return runs


# Requests per product where a product of another height may round otherwise, as on a GPU: how many
# requests a batch has must not show in a score
REQUEST_TILE = 128


# Without ==: that of tensors is no single truth value
@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """B rows with requests, domains or columns beside the tensor: any of the three.

    They share columns with others of their request (`x_QP`, `owners`, `columns`), they ask some of
    the gates (`asked_BG`), or they are of domains (`domains_B`, `by_domain`; see `in_domains`).

    Attributes:
        x_BR: The row's columns, float; all of them, or a tuple or dict, where rows share none.
        x_QP: The columns of Q requests, in its type; rows behind the Qth are nobody's.
        owners: Each row's request.
        columns: Which columns of the whole the two parts are.
        exact: What is not the request's alone is computed of whole rows, so that it has the bits of
            rows without requests.
        in_tiles: Products of requests are those of tiles of one height; nothing is trained then.
        asked_BG: Bool, the gates that each row asks; others pick and weigh nothing, and have no
            vote. None: every row asks all.
        domains_B: Each row's domain, int32, from 0 to M; M: none of the M domains. None: rows have
            no domains, or the gates none of their own.
        by_domain: The rows of each of the M + 1, one after another.

    Raises:
        ValueError: The parts do not fit each other.

    Example:
        >>> import torch
        >>> from mmoe.mixture.inputs import RequestColumns
        >>> from mmoe.ops.row_sums import Owners
        >>> rows = Inputs(
        ...     x_QP=torch.tensor([[1.0], [2.0]]), x_BR=torch.tensor([[5.0], [6.0], [7.0]]),
        ...     owners=Owners(torch.tensor([0, 1, 1]), 2), columns=RequestColumns([0], 2))
        >>> rows.whole.tolist()
        [[1.0, 5.0], [2.0, 6.0], [2.0, 7.0]]
    """

    x_BR: Tree
    x_QP: Tensor | None = None
    owners: Owners | None = None
    columns: RequestColumns | None = None
    exact: bool = False
    in_tiles: bool = False
    asked_BG: Tensor | None = None
    domains_B: Tensor | None = None
    by_domain: RoutePlan | None = None

    def __post_init__(self) -> None:
        """Refuses parts that do not fit each other."""
        if self.x_QP is not None:
            _check_parts(self.x_BR, *self._shared)

    @classmethod
    def of(cls, x: "Tree | Inputs") -> "Inputs":
        """Returns rows that are their columns alone; `Inputs` unchanged.

        Example:
            >>> import torch
            >>> len(Inputs.of(torch.zeros(3, 2)))
            3
        """
        return x if isinstance(x, Inputs) else cls(x_BR=x)

    def in_domains(self, domains_B: Tensor, num_domains: int) -> "Inputs":
        """Says which domains the rows are of; sorts them once, for all products of a batch.

        Args:
            domains_B: int32.
            num_domains: M.

        Example:
            >>> import torch
            >>> rows = Inputs(x_BR=torch.zeros(4, 1))
            >>> rows = rows.in_domains(torch.tensor([1, 0, 2, 0]).int(), 2)
            >>> rows.by_domain.offsets_E1.tolist()
            [0, 2, 3, 4]
        """
        plan = route_plan(domains_B.view(-1, 1, 1), num_domains + 1)
        return replace(self, domains_B=domains_B, by_domain=plan)

    def first_domains(self, num_domains: int) -> "Inputs":
        """Returns the rows for what knows the first domains alone: the others are none to it.

        Args:
            num_domains: How many it knows, of the M; 0: it has none of its own.

        Example:
            >>> import torch
            >>> rows = Inputs(x_BR=torch.zeros(3, 1)).in_domains(torch.tensor([2, 0, 3]).int(), 3)
            >>> rows.first_domains(1).domains_B.tolist()
            [1, 0, 1]
        """
        if not num_domains:
            return replace(self, domains_B=None, by_domain=None)
        # M domains and none of them are M + 1 groups, with M + 2 offsets: it knows all of them
        if self.domains_B is None or num_domains + 2 == self._plan.offsets_E1.shape[0]:
            return self
        return self.in_domains(self.domains_B.clamp(max=num_domains), num_domains)

    def asking(self, x: "Tree | Inputs", asked_BG: Tensor | None, own_gates: bool) -> "Inputs":
        """Returns the same rows as the gates of another mixture read them.

        Args:
            x: What is read there.
            asked_BG: Which of its gates each row asks.
            own_gates: Whether its gates are the domains' own.
        """
        domains_B, by_domain = (self.domains_B, self.by_domain) if own_gates else (None, None)
        return replace(Inputs.of(x), asked_BG=asked_BG, domains_B=domains_B, by_domain=by_domain)

    def __len__(self) -> int:
        """B."""
        return len(first_leaf(self))

    @property
    def shape(self) -> torch.Size:
        """Shape of whole rows."""
        shape = first_leaf(self).shape
        return shape if self.columns is None else torch.Size([shape[0], self.columns.width])

    @property
    def shares(self) -> bool:
        """Returns whether rows share columns with others of their request."""
        return self.x_QP is not None

    @property
    def shared_width(self) -> int:
        """Number of columns that are the request's."""
        return 0 if self.columns is None else len(self.columns.of_request)

    @property
    def rows_a_request(self) -> float | None:
        """Mean number of rows a request; None: there are no requests."""
        return None if self.owners is None else len(self) / max(self.owners.count, 1)

    @property
    def whole(self) -> Tree:
        """Returns every row with its request's columns, `x_BD`."""
        return self._joined if self.shares else self.x_BR

    def for_gate(self, gate: object) -> "Tree | Inputs":
        """Returns what a gate reads: whole rows, unless it knows of requests and they share.

        Example:
            >>> import torch
            >>> Inputs(x_BR=torch.zeros(2, 3)).for_gate(torch.nn.Linear(3, 1)).shape
            torch.Size([2, 3])
        """
        return self if self.shares and knows_requests(gate) and not self.exact else self.whole

    def repeat(self, y_QO: Tensor) -> Tensor:
        """Gives each row what was computed of its request."""
        return repeat_rows(y_QO, self._shared[1])

    def once(self, function: Callable[[Tensor], Any]) -> list[Tensor]:
        """Calls a function of rows, which returns a list of tensors of as many, for the requests.

        Args:
            function: Of `x_QP`, or of tiles of it, one after another.
        """
        x_QP, owners, _ = self._shared
        if not self.in_tiles:
            return list(function(x_QP))
        missing = -owners.count % REQUEST_TILE
        # Rows behind the last request are nobody's, and how many there are must not show either
        x_QP = x_QP[: owners.count]
        padded = torch.cat([x_QP, x_QP.new_zeros(missing, x_QP.shape[1])])
        tiles = [function(tile) for tile in padded.split(REQUEST_TILE)] or [function(padded)]
        return [torch.cat(list(parts)) for parts in zip(*tiles, strict=True)]

    def once_a_request(self, pool: Any) -> list[Tensor]:
        """Runs experts of the request on the requests, and gives each row what its request has."""
        x_QP, owners, _ = self._shared

        def run(x_NP: Tensor) -> list[Tensor]:
            return pool.dense([cast_for_autocast(x_NP)])

        if pool.training and pool.traits.uses_batch:
            return run(self.repeat(x_QP))  # statistics are those of all rows
        parts = self.once(run)
        if torch.is_grad_enabled():
            return [self.repeat(y_QO) for y_QO in parts]
        # Where nothing is learnt, all of them at once
        wide_BX = torch.cat(parts, dim=1).index_select(0, owners.of_B)
        return list(wide_BX.split([y_QO.shape[1] for y_QO in parts], dim=1))

    def product(
        self,
        multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        weight_ND: Tensor,
        bias_N: Tensor | None,
    ) -> Tensor:
        """Computes `W x_b + bias` as a sum of two products, that of the request once a request.

        Args:
            multiply: Does so of `x_RD`, weight and bias.
            weight_ND: Reads all columns.
            bias_N: None: there is none.
        """
        of_request, of_row = self._shared[2].split(weight_ND, dim=1)
        (y_QN,) = self.once(lambda x_QP: [multiply(x_QP, of_request, None)])
        # The bias in one of them, that of the rows
        return multiply(self.x_BR, of_row, bias_N) + self.repeat(y_QN)

    def layer(
        self, weight_EDH: Tensor, bias_EH: Tensor | None, activation: ops.FusedActivation
    ) -> list[Tensor]:
        """Sends rows through a layer of every expert, `act(x_q W_q + x_b W_b + bias)`.

        `x_q W_q` is computed once a request. The weights' gradients, and that of the request's
        columns, are products of as many rows as there are requests: what the rows of each want is
        added up before.

        Args:
            weight_EDH: Reads all columns.
            bias_EH: In its type; None: there is none.
            activation: As of `ops.dense_mm`.

        Returns:
            E tensors `y_BH`.

        Example:
            >>> import torch
            >>> from mmoe.mixture.inputs import RequestColumns
            >>> from mmoe.ops.row_sums import Owners
            >>> rows = Inputs(
            ...     x_QP=torch.ones(1, 2), x_BR=torch.ones(3, 1),
            ...     owners=Owners(torch.zeros(3).long(), 1), columns=RequestColumns([0, 1], 3))
            >>> ones = torch.ones(2, 3, 4), torch.zeros(2, 4)
            >>> [y_BH.shape for y_BH in rows.layer(*ones, "relu")]
            [torch.Size([3, 4]), torch.Size([3, 4])]
        """
        x_BR, of_row, shared = self._apart(weight_EDH)
        return ops.shared_mm(x_BR, of_row, bias_EH, shared, self._shared[1], activation)

    def layers(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        activation: ops.FusedActivation,
        output_activation: ops.FusedActivation,
    ) -> list[Tensor]:
        """Sends rows through `layer`, and what it gives through further layers.

        Args:
            weights: Of each layer; the first reads all columns.
            biases: Of each layer; none: layers have none.
            activation: As of `ops.dense_mlp`.
            output_activation: Likewise.

        Returns:
            E tensors `y_BO`.
        """
        x_BR, of_row, shared = self._apart(weights[0])
        return ops.dense_mlp(
            x_BR,
            [of_row, *weights[1:]],
            biases,
            activation,
            output_activation,
            shared=shared,
            owners=self._shared[1],
        )

    def domain_products(
        self, x_BD: Tensor, weight_NHD: Tensor, bias_NH: Tensor | None = None
    ) -> Tensor:
        """Computes `y_b = W_m x_b [+ c_m]`, m the domain of row b, however many there are.

        It is one product over rows by domain. The arithmetic is in fp32 (fp64 for fp64 rows), also
        under autocast. On the CPU, where the operators are built, a row's bits depend on that row
        alone.

        Args:
            x_BD: Columns of these rows, of any float type.
            weight_NHD: Of N = M + 1 domains, from `of_each_domain`.
            bias_NH: Likewise.

        Returns:
            `y_BH`.

        Example:
            >>> import torch
            >>> x_BD = torch.ones(2, 1)
            >>> rows = Inputs(x_BR=x_BD).in_domains(torch.tensor([1, 0]).int(), num_domains=1)
            >>> rows.domain_products(x_BD, torch.tensor([[[1.0]], [[10.0]]])).tolist()
            [[10.0], [1.0]]
        """
        # In fp32: this makes the logits of domains' gates
        with torch.autocast(x_BD.device.type, enabled=False):
            dtype = torch.promote_types(x_BD.dtype, torch.float32)
            weight_NDH = weight_NHD.to(dtype).transpose(1, 2).contiguous()
            bias_NH = None if bias_NH is None else bias_NH.to(dtype).contiguous()
            y_PH = gathered_mm(x_BD.to(dtype), self._plan, weight_NDH, bias_NH)
            return unpermute(y_PH, self._plan)

    def domain_values(self, values_NX: Tensor) -> Tensor:
        """Gives each row what its domain has: `y_b = values_m`, m the domain of row b, to the bit.

        Args:
            values_NX: Of N = M + 1 domains, from `of_each_domain`, of any shape behind.

        Returns:
            `y_BX`.

        Example:
            >>> import torch
            >>> rows = Inputs(x_BR=torch.zeros(3, 1)).in_domains(torch.tensor([1, 0, 1]).int(), 1)
            >>> rows.domain_values(torch.tensor([[5.0], [7.0]])).flatten().tolist()
            [7.0, 5.0, 7.0]
        """
        assert self.domains_B is not None, "rows have domains"
        # A product by 1, whose gradient adds up in the order of the rows, the same on every run
        ones_B1 = values_NX.new_ones(self.domains_B.shape[0], 1)
        weight_NH1 = values_NX.flatten(1).unsqueeze(-1)
        return self.domain_products(ones_B1, weight_NH1).unflatten(1, values_NX.shape[1:])

    @cached_property
    def _joined(self) -> Tensor:
        x_QP, _, columns = self._shared
        return columns.join(self.repeat(x_QP), self.x_BR)

    @property
    def _shared(self) -> tuple[Tensor, Owners, RequestColumns]:
        assert self.x_QP is not None and self.owners is not None and self.columns is not None
        return self.x_QP, self.owners, self.columns

    @property
    def _plan(self) -> RoutePlan:
        assert self.by_domain is not None, "rows have domains"
        return self.by_domain

    def _apart(self, weight_EDH: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Rows, the weight of their columns, and the product of the request's, once a request."""
        _, owners, columns = self._shared
        of_request, of_row = columns.split(weight_EDH, dim=1)
        shared = self.once(lambda x_QP: ops.dense_mm(cast_for_autocast(x_QP), of_request))
        # Rows behind the last request are nobody's, and would need owners
        return cast_for_autocast(self.x_BR), of_row, [y_QH[: owners.count] for y_QH in shared]


def of_each_domain(shared_X: Tensor, own_MX: Tensor) -> Tensor:
    """Returns what each of M domains computes with and, last, rows of no domain: M + 1 of it.

    `w_m = shared + own_m`, and of no domain the mean of these: for what is linear the mean of the
    domains' results.

    Args:
        shared_X: Of any shape.
        own_MX: A tensor of that shape for each domain.

    Example:
        >>> import torch
        >>> of_each_domain(torch.ones(1), torch.tensor([[0.0], [2.0]])).flatten().tolist()
        [1.0, 3.0, 2.0]
    """
    own = torch.cat([own_MX, own_MX.mean(0, keepdim=True)])
    return shared_X.unsqueeze(0) + own


def first_leaf(x: "Tree | Inputs") -> Tensor:
    """Returns a tensor of as many rows as an input has, in its type and on its device."""
    return leaves_of("x", x.x_BR if isinstance(x, Inputs) else x)[0]


def knows_requests(part: object) -> bool:
    """Returns whether a gate says `reads_requests`.

    Its very class: what is derived from one may read its input otherwise.
    """
    return vars(type(part)).get("reads_requests", False)


def _check_parts(x_BR: Tensor, x_QP: Tensor, owners: Owners, columns: RequestColumns) -> None:
    for name, part, height, width in (
        ("x_QP", x_QP, len(x_QP), len(columns.of_request)),
        ("x_BR", x_BR, len(owners.of_B), len(columns.of_row)),
    ):
        if part.dim() != 2 or list(part.shape) != [height, width]:
            raise ValueError(
                f"{name}: expected shape [{height}, {width}], as owners and columns say, got "
                f"{list(part.shape)}"
            )
    if x_QP.dtype != x_BR.dtype or not x_BR.is_floating_point():
        raise ValueError(
            f"x_BR: expected floating point numbers in the type of x_QP, {x_QP.dtype}, "
            f"got {x_BR.dtype}"
        )

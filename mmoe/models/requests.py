"""Rows of requests: what is read, looked up and encoded once for all candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.datasets import Batch
from mmoe.embeddings import Lookups
from mmoe.mixture import Inputs
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.mixture.inputs import RequestColumns
from mmoe.models.bias_tower import BiasTower
from mmoe.models.inputs import InputLayers, NetworkInputs
from mmoe.models.sequences import Events, SequenceInputs
from mmoe.ops.row_sums import Owners, repeat_rows

Run = tuple[int, int]  # columns [start, stop)


class LookedUp(NamedTuple):
    """A feature that is looked up.

    Attributes:
        name: Its name.
        width: Of its pooled embedding; 0: it stays events.
        of_request: Whether it is of requests.
    """

    name: str
    width: int
    of_request: bool


class RequestInputs(nn.Module):
    """Makes the two parts of a network's input; each part is read, looked up and encoded once.

    A sequence of requests whose target is of rows is one of rows: its events are looked up once,
    and every row gives them other weights.

    Args:
        columns: Which columns of the whole input each part has, in their order.
        dense_columns: The same of dense columns, as they come.
        num_numbers: How many columns of the whole are numbers, as `inputs` returns them.
        lookups: Of all that are looked up.
        sequences: Of each sequence its events and targets, by the names of what is looked up.
        read: Which columns the network reads, of those that `model.bias` leaves it, and which of
            each part's these are; None: all.
        exact: As `data.requests` says.
    """

    of_request_C: Tensor
    kept_P: Tensor
    kept_R: Tensor

    def __init__(
        self,
        columns: RequestColumns,
        dense_columns: RequestColumns,
        num_numbers: int,
        lookups: Sequence[LookedUp],
        sequences: Sequence[tuple[Sequence[str], Sequence[str]]] = (),
        *,
        read: tuple[RequestColumns, Sequence[int], Sequence[int]] | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.columns, self.dense_columns = columns, dense_columns
        self.num_numbers, self.exact = num_numbers, exact
        self.read_columns = columns if read is None else read[0]
        self.leaves_out = read is not None
        for name, places in zip(("kept_P", "kept_R"), read[1:] if read else ((), ()), strict=True):
            kept = torch.tensor(list(places), dtype=torch.int64)
            self.register_buffer(name, kept, persistent=False)
        flags = torch.tensor([one.of_request for one in lookups], dtype=torch.bool)
        self.register_buffer("of_request_C", flags, persistent=False)
        pooled = [one for one in lookups if one.width]
        self._runs = {
            level: _runs([(one.width, one.of_request == level) for one in pooled])
            for level in (True, False)
        }
        # Of each pooled feature: whether it is of requests, and its columns there
        self._places: dict[str, tuple[bool, int, int]] = {}
        starts = {True: 0, False: 0}
        for name, width, level in pooled:
            self._places[name] = level, starts[level], starts[level] + width
            starts[level] += width
        of_request = {one.name for one in lookups if one.of_request}
        self._sequences = [(events[0] in of_request, targets) for events, targets in sequences]

    def read(
        self,
        batch: Batch,
        lookups: Lookups | None,
        inputs: InputLayers | None,
        sequences: SequenceInputs | None,
        bias: BiasTower | None,
        *,
        in_parts: bool,
    ) -> "RowsOfRequests":
        """Reads a batch whose rows share requests.

        Args:
            batch: Numbers and ids of requests come once.
            lookups: Of all features; those of requests are in the first places.
            inputs: Of the network.
            sequences: Likewise.
            bias: Likewise.
            in_parts: Whether the network's levels read both parts; else they read whole rows.
        """
        dense_QF, owners = _requests_of(batch)
        height, in_tiles = _height(owners, batch)
        dense_QF = F.pad(dense_QF, (0, 0, 0, height - len(dense_QF)))
        parts = self._parts(dense_QF, batch.dense_BF, owners, lookups, inputs, sequences)
        rows = None if not in_parts else self.rows(parts, owners, in_tiles=in_tiles)
        return RowsOfRequests(self, batch, parts, owners, bias, rows)

    def _parts(
        self,
        dense_QF: Tensor,
        dense_BF: Tensor,
        owners: Owners,
        lookups: Lookups | None,
        inputs: InputLayers | None,
        sequences: SequenceInputs | None,
    ) -> tuple[NetworkInputs, NetworkInputs]:
        """Splits a batch into both parts; the requests' part gets as many rows as `dense_QF`."""
        height = len(dense_QF)
        if inputs is not None:
            dense_QF, dense_BF = inputs(dense_QF, "request"), inputs(dense_BF, "row")
        if lookups is None:
            return NetworkInputs(dense_QF, None), NetworkInputs(dense_BF, None)
        x_QE, x_BE = _Levels.apply(lookups.x_BD, height, self._runs[True], self._runs[False])
        if sequences is not None:
            x_QE, x_BE = self._with_sequences(x_QE, x_BE, lookups, owners, sequences)
        return NetworkInputs(dense_QF, x_QE), NetworkInputs(dense_BF, x_BE)

    def rows(
        self, parts: tuple[NetworkInputs, NetworkInputs], owners: Owners, *, in_tiles: bool
    ) -> Inputs:
        """Returns what mixtures read."""
        x_QP, x_BR = (part.joined for part in parts)
        if self.leaves_out:
            x_QP, x_BR = x_QP.index_select(1, self.kept_P), x_BR.index_select(1, self.kept_R)
        return Inputs(
            x_QP=x_QP,
            x_BR=x_BR,
            owners=owners,
            columns=self.read_columns,
            exact=self.exact,
            in_tiles=in_tiles,
        )

    def whole(self, parts: tuple[NetworkInputs, NetworkInputs], owners: Owners) -> NetworkInputs:
        """Returns the same for every row by itself: numbers, and all other columns."""
        joined = [part.wide for part in parts]
        whole = self.columns.join(repeat_rows(joined[0], owners), joined[1])
        dense_BF, x_BE = whole.split([self.num_numbers, whole.shape[1] - self.num_numbers], dim=1)
        return NetworkInputs(dense_BF, None if parts[1].x_NE is None else x_BE)

    def flat(self, batch: Batch) -> Batch:
        """Returns a batch with its numbers, ids and weights as they are without requests."""
        dense_QF, owners = _requests_of(batch)
        places_B = owners.of_B
        values, lengths_CB, id_weights = flat_ids(
            batch.values, batch.lengths_CB, batch.id_weights, places_B, self.of_request_C
        )
        return replace(
            batch,
            dense_BF=self.dense_columns.join(dense_QF.index_select(0, places_B), batch.dense_BF),
            values=values,
            lengths_CB=lengths_CB,
            id_weights=id_weights,
            requests_B=None,
            request_dense_QF=None,
        )

    def _with_sequences(
        self,
        x_QE: Tensor,
        x_BE: Tensor,
        lookups: Lookups,
        owners: Owners,
        sequences: SequenceInputs,
    ) -> tuple[Tensor, Tensor]:
        of_requests, of_rows = [x_QE], [x_BE]
        for number, (shared, targets) in enumerate(self._sequences):
            events = sequences.events_of(number, lookups)
            if shared:
                events = events._replace(lengths_B=events.lengths_B[: len(x_QE)])
            levels = [self._places[name][0] for name in targets]
            once = shared and all(levels)
            if shared and not once:
                events = _repeat_events(events, owners)
            read = [self._target(name, x_QE, x_BE, owners, once=once) for name in targets]
            events = events._replace(target_BD=torch.cat(read, dim=1) if read else None)
            (of_requests if once else of_rows).extend(sequences.encode(number, events))
        return torch.cat(of_requests, dim=1), torch.cat(of_rows, dim=1)

    def _target(
        self, name: str, x_QE: Tensor, x_BE: Tensor, owners: Owners, *, once: bool
    ) -> Tensor:
        shared, start, stop = self._places[name]
        found = (x_QE if shared else x_BE)[:, start:stop]
        return repeat_rows(found, owners) if shared and not once else found


@dataclass(frozen=True)
class RowsOfRequests:
    """Rows that share what is of their requests; whole rows are made when somebody reads them.

    Attributes:
        made: Knows which columns are whose.
        given: The batch, with requests.
        parts: Columns of requests, and of rows.
        owners: Each row's request.
        bias: Tower of the display; None: there is none.
        in_parts: What levels read; None: they read whole rows.
    """

    made: RequestInputs
    given: Batch
    parts: tuple[NetworkInputs, NetworkInputs]
    owners: Owners
    bias: BiasTower | None
    in_parts: Inputs | None

    @property
    def batch(self) -> Batch:
        """The batch without requests."""
        return self._flat

    @property
    def all(self) -> NetworkInputs:
        """All columns of each row."""
        return self._whole

    @property
    def others(self) -> NetworkInputs:
        """All columns but those of the display."""
        return self.all if self.bias is None else self.bias.others(self.all)

    # Not the properties themselves: a type checker takes a cached one for no member of `Rows`
    @cached_property
    def _flat(self) -> Batch:
        return self.made.flat(self.given)

    @cached_property
    def _whole(self) -> NetworkInputs:
        return self.made.whole(self.parts, self.owners)

    @property
    def read(self) -> Tensor | Inputs:
        """Everything that the levels of the network read."""
        return self.others.joined if self.in_parts is None else self.in_parts


def _height(owners: Owners, batch: Batch) -> tuple[int, bool]:
    """Returns the number of rows that requests get, and whether their products are tiled.

    Elsewhere than on the CPU a product of another height may round otherwise: what is scored
    has as many places for requests as rows, and products of a fixed height.
    """
    any_height = HAS_KERNELS and batch.dense_BF.device.type == "cpu"
    if any_height or torch.is_grad_enabled():
        return owners.count, False
    return max(len(batch), owners.count), True


def _runs(widths: Sequence[tuple[int, bool]]) -> list[Run]:
    """Columns of those features, of some widths, that are flagged."""
    runs, start = [], 0
    for flag, features in groupby(widths, key=lambda feature: feature[1]):
        stop = start + sum(width for width, _ in features)
        if flag:
            runs.append((start, stop))
        start = stop
    return runs


def _repeat_events(events: Events, owners: Owners) -> Events:
    """Repeats each request's events for its rows."""
    index_W, lengths_B = repeated_lists(events.lengths_B, owners.of_B)
    return Events(repeat_rows(events.e_VD, Owners(index_W, len(events.e_VD))), lengths_B)


class _Levels(torch.autograd.Function):
    """Takes looked-up columns apart, requests' of the first rows; the gradient is one buffer."""

    @staticmethod
    def forward(
        ctx: Any, x_BD: Tensor, height: int, of_request: Sequence[Run], of_row: Sequence[Run]
    ) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.height, ctx.runs = x_BD.shape, height, (of_request, of_row)
        return _taken(x_BD[:height], of_request), _taken(x_BD, of_row)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        first, second = grads
        grad_BD = second.new_empty(ctx.shape)
        of_request, of_row = ctx.runs
        for start, stop in of_request:
            grad_BD[ctx.height :, start:stop] = 0  # nobody's
        for rows, runs, found in ((ctx.height, of_request, first), (len(grad_BD), of_row, second)):
            at = 0
            for start, stop in runs:
                grad_BD[:rows, start:stop] = found[:, at : at + stop - start]
                at += stop - start
        return grad_BD, None, None, None


def _taken(x_BD: Tensor, runs: Sequence[Run]) -> Tensor:
    if not runs:
        return x_BD.new_zeros(len(x_BD), 0)
    return torch.cat([x_BD[:, start:stop] for start, stop in runs], dim=1)


def _requests_of(batch: Batch) -> tuple[Tensor, Owners]:
    """Returns the dense columns of a batch's requests, and each row's request."""
    dense_QF, requests_B = batch.request_dense_QF, batch.requests_B
    assert dense_QF is not None and requests_B is not None
    if len(requests_B) and not len(dense_QF):  # rows of padding alone are of some request
        dense_QF = dense_QF.new_zeros(1, dense_QF.shape[1])
    return dense_QF, Owners(requests_B, len(dense_QF))


def flat_ids(
    values: Tensor,
    lengths_CB: Tensor,
    id_weights: Tensor | None,
    requests_B: Tensor,
    of_request_C: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gives every row the ids of its request: ids, lengths and weights as without requests.

    Args:
        values: Ids of all features, feature-major, int64; those of requests come once.
        lengths_CB: How many each feature has in each place, int32, flat.
        id_weights: Of the ids; or None.
        requests_B: Place of each row's request.
        of_request_C: Whether each feature is of requests, bool.

    Example:
        >>> user_of_2_requests, item_of_3_rows = [7, 8], [1, 2, 3]
        >>> flat_ids(
        ...     torch.tensor(user_of_2_requests + item_of_3_rows),
        ...     torch.tensor([1, 1, 0, 1, 1, 1]).int(), None, torch.tensor([0, 1, 1]),
        ...     torch.tensor([True, False]))[0].tolist()
        [7, 8, 8, 1, 2, 3]
    """
    features, rows = len(of_request_C), len(requests_B)
    if not features:
        return values, lengths_CB, id_weights
    own_B = torch.arange(rows, device=requests_B.device)
    places_CB = torch.where(of_request_C[:, None], requests_B, own_B)
    places_CB = places_CB + rows * torch.arange(features, device=places_CB.device)[:, None]
    index_N, lengths_N = repeated_lists(lengths_CB, places_CB.flatten())
    weights = None if id_weights is None else id_weights.index_select(0, index_N)
    return values.index_select(0, index_N), lengths_N, weights


def repeated_lists(lengths_Q: Tensor, places_B: Tensor) -> tuple[Tensor, Tensor]:
    """Says which items B lists have that are those of Q lists: index of each item, and lengths.

    On a GPU it waits for how many there are.

    Args:
        lengths_Q: How many items each of Q lists has, int; they lie one after the other.
        places_B: Which of them each list is, int64.

    Returns:
        `index_W`, int64, and `lengths_B`.

    Example:
        >>> repeated_lists(torch.tensor([2, 1]), torch.tensor([1, 0, 1]))
        (tensor([2, 0, 1, 2]), tensor([1, 2, 1]))
    """
    lengths_B = lengths_Q.index_select(0, places_B)
    ends_Q = lengths_Q.to(torch.int64).cumsum(0)
    wide_B = lengths_B.to(torch.int64)
    # The first item of each list, less its place among all that come
    shift_B = (ends_Q - lengths_Q).index_select(0, places_B) - (wide_B.cumsum(0) - wide_B)
    shift_W = torch.repeat_interleave(shift_B, wide_B)
    return shift_W + torch.arange(len(shift_W), device=shift_W.device), lengths_B

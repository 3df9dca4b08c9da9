"""`RequestInputs`: inputs of a network in two parts, those of requests and those of rows."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmoe.embeddings import Lookups
from mmoe.mixture.requests.columns import RequestColumns
from mmoe.mixture.requests.rows import RequestRows
from mmoe.models.input_layers import InputLayers
from mmoe.models.inputs import join_inputs
from mmoe.models.requests.batch import RequestBatch, flat_ids, repeated_lists
from mmoe.models.sequences.events import Events
from mmoe.models.sequences.inputs import SequenceInputs
from mmoe.ops.repeat_rows import Owners, repeat_rows

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


class Part(NamedTuple):
    """What requests, or rows, have.

    Attributes:
        dense_NF: Numbers, as the network's `inputs` return them, float32.
        x_NE: Pooled embeddings, then sequences; None: nothing is looked up.
    """

    dense_NF: Tensor
    x_NE: Tensor | None

    @property
    def wide(self) -> Tensor:
        """Returns all of them side by side, float32."""
        return self.dense_NF if self.x_NE is None else torch.cat([self.dense_NF, self.x_NE], dim=1)

    @property
    def joined(self) -> Tensor:
        """Returns all of them side by side, as the network reads them."""
        return self.dense_NF if self.x_NE is None else join_inputs(self.dense_NF, self.x_NE)


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

    def parts(
        self,
        dense_BF: Tensor,
        requests: RequestBatch,
        lookups: Lookups | None,
        inputs: InputLayers | None,
        sequences: SequenceInputs | None,
        height: int,
    ) -> tuple[Part, Part]:
        """Makes both parts of a batch.

        Args:
            dense_BF: Dense columns of rows.
            requests: Those of requests.
            lookups: Of all features; those of requests are in the first places.
            inputs: Of the network.
            sequences: Likewise.
            height: How many rows the requests' part gets: Q, or more.
        """
        dense_QF = requests.dense_QF
        missing = dense_QF.new_zeros(height - len(dense_QF), dense_QF.shape[1])
        dense_QF = torch.cat([dense_QF, missing]) if len(missing) else dense_QF
        if inputs is not None:
            dense_QF, dense_BF = inputs(dense_QF, "request"), inputs(dense_BF, "row")
        if lookups is None:
            return Part(dense_QF, None), Part(dense_BF, None)
        x_QE, x_BE = _Levels.apply(lookups.x_BD, height, self._runs[True], self._runs[False])
        if sequences is not None:
            x_QE, x_BE = self._with_sequences(x_QE, x_BE, lookups, requests.owners, sequences)
        return Part(dense_QF, x_QE), Part(dense_BF, x_BE)

    def rows(self, parts: tuple[Part, Part], owners: Owners, *, in_tiles: bool) -> RequestRows:
        """Returns what mixtures read."""
        x_QP, x_BR = (part.joined for part in parts)
        if self.leaves_out:
            x_QP, x_BR = x_QP.index_select(1, self.kept_P), x_BR.index_select(1, self.kept_R)
        return RequestRows(
            x_QP=x_QP,
            x_BR=x_BR,
            owners=owners,
            columns=self.read_columns,
            exact=self.exact,
            in_tiles=in_tiles,
        )

    def whole(self, parts: tuple[Part, Part], owners: Owners) -> tuple[Tensor, Tensor | None]:
        """Returns the same for every row by itself: numbers, and all other columns."""
        joined = [part.wide for part in parts]
        whole = self.columns.join(repeat_rows(joined[0], owners), joined[1])
        dense_BF, x_BE = whole.split([self.num_numbers, whole.shape[1] - self.num_numbers], dim=1)
        return dense_BF, None if parts[1].x_NE is None else x_BE

    def flat(
        self,
        dense_BF: Tensor,
        requests: RequestBatch,
        values: Tensor,
        lengths: Tensor,
        id_weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns dense columns, ids, lengths and weights as they are without requests."""
        dense_QF = requests.dense_QF.index_select(0, requests.requests_B)
        ids = flat_ids(values, lengths, id_weights, requests.requests_B, self.of_request_C)
        return self.dense_columns.join(dense_QF, dense_BF), *ids

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
    """Every row's events: those of its request."""
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

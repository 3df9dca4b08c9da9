"""Embeddings that are only looked up, to evaluate and score with; in fewer bits if asked for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from mmoe.config import FeatureSpec, ScoringPrecision, TableSpec
from mmoe.embeddings.lookups import (
    Bags,
    Lookups,
    bounds_of,
    divide_by_length,
    lengths_of_events,
    split_bags,
)
from mmoe.embeddings.managed import ManagedEmbeddings
from mmoe.parallel import Wire, rank, world_size
from mmoe.terminal import byte_size

RowPrecision = Literal["fp32", "fp16", "int8"]

_SCALE_AND_BIAS = 8  # bytes at the end of an int8 row: two fp32


class StoredRows:
    """Rows as they were trained; a base class of rows in other precisions. Sums are fp32.

    Args:
        rows, dim: Of the table.
        device: Where it lies.
    """

    dtype = torch.float32

    def __init__(self, rows: int, dim: int, device: torch.device | None = None) -> None:
        self.stored = torch.empty(rows, dim, dtype=self.dtype, device=device)

    def fill(self, start: int, block_HD: Tensor) -> Tensor:
        """Stores fp32 rows as rows `start`, `start + 1`, …

        Returns:
            `fits_H`: False where a row has a number that is not finite, or not in this precision.
        """
        block_HD = block_HD.to(self.dtype)
        self.stored[start : start + len(block_HD)] = block_HD
        return block_HD.isfinite().all(dim=1)

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids; zeros where it has none.

        Args:
            ids_V: int64, bag after bag.
            bounds: Where each bag begins, and where the last one ends, int64 [B + 1].
            weights_V: float32.
        """
        return _sums(self.stored, ids_V, bounds, weights_V)


class Int8Rows(StoredRows):
    """Rows in int8: `e ≈ scale · q + bias`, q in 0 … 255, scale and bias in fp32 for each row.

    `bias = min(e)`, `scale = (max(e) - min(e)) / 255`, so that a number is off by no more
    than half a scale (and 1e-8, which torch adds to a row's range so that none divides by zero).
    FBGEMM's own inference tables keep scale and bias in fp16, which below 6e-5 has few bits left:
    too few for rows of large tables, which begin within ±1/√rows.

    Args:
        rows, dim: Of the table.
        device: The CPU, or `meta`: where it has no memory yet.

    Example:
        >>> import torch
        >>> rows = Int8Rows(2, 4)
        >>> rows.fill(0, torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 25.5, 5.1, 10.2]]))
        tensor([True, True])
        >>> rows.pool(torch.tensor([1, 1]), torch.tensor([0, 0, 2]), None)
        tensor([[ 0.0000,  0.0000,  0.0000,  0.0000],
                [ 0.0000, 51.0000, 10.2000, 20.4000]])

    Source: Guan et al. 2019, Post-Training 4-bit Quantization on Embedding Tables ("ASYM");
    torch's `quantized::embedding_bag_byte` operators, which are FBGEMM's kernels.
    """

    def __init__(self, rows: int, dim: int, device: torch.device | None = None) -> None:
        self.stored = torch.empty(rows, row_bytes(dim, "int8"), dtype=torch.uint8, device=device)

    def fill(self, start: int, block_HD: Tensor) -> Tensor:
        """Stores fp32 rows from `start` on; returns which of them fit."""
        packed_HP = torch.ops.quantized.embedding_bag_byte_prepack(block_HD)
        self.stored[start : start + len(block_HD)] = packed_HP
        tails_H8 = packed_HP[:, -_SCALE_AND_BIAS:].clone(memory_format=torch.contiguous_format)
        scales_H2 = tails_H8.view(torch.float32)
        return block_HD.isfinite().all(dim=1) & scales_H2.isfinite().all(dim=1)

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids."""
        return torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            self.stored,
            ids_V,
            bounds,
            mode=0,  # sum
            per_sample_weights=weights_V,
            include_last_offset=True,
        )


class Fp16Rows(StoredRows):
    """Rows rounded to fp16; sums are taken in fp32. Arguments are those of `StoredRows`."""

    dtype = torch.float16

    def pool(self, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
        """Returns `sums_BD`: Σ e, or Σ w·e, over each bag's ids."""
        # A bag of fp16 rows is summed into fp16; so its rows are widened first
        rows_VD = self.stored[ids_V].float()
        return _sums(
            rows_VD if len(ids_V) else rows_VD.new_zeros(1, rows_VD.shape[1]),
            torch.arange(len(ids_V), device=ids_V.device),
            bounds,
            weights_V,
        )


def stored_rows(
    rows: int, dim: int, precision: RowPrecision, device: torch.device | None = None
) -> StoredRows:
    """Makes room for so many rows, not filled; int8 lies on the CPU, where torch has kernels."""
    if precision == "int8":
        return Int8Rows(rows, dim, device if device is not None and device.type == "meta" else None)
    return (Fp16Rows if precision == "fp16" else StoredRows)(rows, dim, device)


def row_bytes(dim: int, precision: str) -> int:
    """Returns the bytes of one row.

    Example:
        >>> row_bytes(64, "fp32"), row_bytes(64, "fp16"), row_bytes(64, "int8")
        (256, 128, 72)
    """
    return dim + _SCALE_AND_BIAS if precision == "int8" else dim * {"fp16": 2, "fp32": 4}[precision]


def _sums(table_RD: Tensor, ids_V: Tensor, bounds: Tensor, weights_V: Tensor | None) -> Tensor:
    """Adds rows id after id, as FBGEMM's fused tables do: to the same bits on the CPU."""
    # Not F.embedding_bag, whose checks take longer than one row's sum
    scale_by_frequency, sum_of_ids, sparse, last_offset = False, 0, False, True
    return torch.embedding_bag(
        table_RD, ids_V, bounds, scale_by_frequency, sum_of_ids, sparse, weights_V, last_offset
    )[0]


def spread_tables(
    tables: Sequence[TableSpec], ranks: int, precisions: Mapping[str, RowPrecision]
) -> dict[str, list[range]]:
    """Says for each table which rows rank 0 holds, which rank 1, …

    A table of no more than a rank's even share of all bytes stays whole, on the rank that has the
    fewest so far (the largest tables choose first): then its sums have the bits of one process.
    Larger ones are cut by rows, evenly over all ranks.

    Example:
        >>> from mmoe.config import TableSpec
        >>> rows = {"a": 9, "b": 3, "c": 2}
        >>> tables = [TableSpec(name=n, num_rows=r, dim=8) for n, r in rows.items()]
        >>> precisions = dict.fromkeys(rows, "int8")
        >>> for table, held in spread_tables(tables, 2, precisions).items():
        ...     print(table, held)
        a [range(0, 4), range(4, 9)]
        b [range(0, 3), range(0, 0)]
        c [range(0, 0), range(0, 2)]
    """
    sizes = {
        table.name: table.num_rows * row_bytes(table.dim, precisions[table.name])
        for table in tables
    }
    share = sum(sizes.values()) / ranks
    filled = [0] * ranks
    held: dict[str, list[range]] = {}
    # The largest first, each to the rank that has least: what comes last evens the ranks out
    for table in sorted(tables, key=lambda table: -sizes[table.name]):
        rows = table.num_rows
        if sizes[table.name] > share:
            held[table.name] = [
                range(rows * r // ranks, rows * (r + 1) // ranks) for r in range(ranks)
            ]
            continue
        chosen = filled.index(min(filled))
        filled[chosen] += sizes[table.name]
        held[table.name] = [range(rows if r == chosen else 0) for r in range(ranks)]
    return {table.name: held[table.name] for table in tables}


class ScoringEmbeddings(nn.Module):
    """Pooled embeddings by torch's own kernels: no TorchRec, and nothing that a lookup changes.

    So one process needs no process group, and any number of threads may look up at a time. Tables
    as they were trained give the bits that TorchRec's give on one process, on the CPU. Those in
    fewer bits lie on the CPU, whatever the device of the batch: torch has the kernels there.

    Several ranks, those there are when this is made, share the tables out (`spread_tables`); they
    call it together, each with its own rows of any number, 0 included. A bag whose ids lie on
    several ranks is added up in the order of the ranks.

    Args:
        tables: Rows and widths. They hold nothing until they are filled.
        features: In the order of the output.
        precision: Of the stored rows of all tables; or that of each table, as it was trained.
        device: Of tables as they were trained; default: the CPU.
        empty: No memory is taken for them: rows that lie somewhere come by `use`.

    Raises:
        ValueError: There is no such precision.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        precision: ScoringPrecision | Mapping[str, RowPrecision],
        device: torch.device | None = None,
        *,
        empty: bool = False,
    ) -> None:
        super().__init__()
        self.as_trained = isinstance(precision, Mapping)
        if not isinstance(precision, Mapping) and precision not in get_args(ScoringPrecision):
            known = " or ".join(get_args(ScoringPrecision))
            raise ValueError(
                f"table_precision: expected {known}, or None for tables as they were trained, "
                f"got {precision!r}"
            )
        self.precisions: dict[str, RowPrecision] = (
            dict(precision)
            if isinstance(precision, Mapping)
            else dict.fromkeys((table.name for table in tables), precision)
        )
        self.features = list(features)
        self.device = device if device is not None and self.as_trained else torch.device("cpu")
        self.shapes = {table.name: (table.num_rows, table.dim) for table in tables}
        self.output_dim = sum(self.shapes[f.table][1] for f in features if f.pooling != "none")
        self._ranks = world_size()
        self._spread = spread_tables(tables, self._ranks, self.precisions)
        self.held = {name: of_ranks[rank()] for name, of_ranks in self._spread.items()}
        place = torch.device("meta") if empty else self.device
        self._rows = {
            table.name: stored_rows(
                len(self.held[table.name]), table.dim, self.precisions[table.name], place
            )
            for table in tables
        }

    def fill(self, table: str, start: int, block_HD: Tensor) -> None:
        """Stores rows `start`, `start + 1`, … of a table, of those that this rank holds.

        Args:
            table: Its name.
            start: Counted in the whole table.
            block_HD: As trained, fp32.

        Raises:
            ValueError: A number is not finite, or does not fit a precision it was not trained in.
        """
        fits_H = self._rows[table].fill(start - self.held[table].start, block_HD)
        if not self.as_trained and not bool(fits_H.all()):
            row = start + int((~fits_H).nonzero()[0])
            raise ValueError(
                f"table {table!r}: row {row} holds a number that cannot be stored in "
                f"{self.precisions[table]}; score with the tables as they were trained"
            )

    def stored(self) -> dict[str, Tensor]:
        """Returns the rows (not copies) of each table, as this rank stores them."""
        return {name: rows.stored for name, rows in self._rows.items()}

    def use(self, table: str, stored: Tensor) -> None:
        """Looks rows up where they lie, instead of filling a table with them: in a mapped file.

        Args:
            table: Its name.
            stored: As `stored` gives them of a table of this precision.

        Raises:
            ValueError: They are of another shape or dtype.
        """
        rows = self._rows[table]
        if (stored.shape, stored.dtype) != (rows.stored.shape, rows.stored.dtype):
            raise ValueError(
                f"table {table!r}: expected rows {list(rows.stored.shape)} of {rows.stored.dtype}, "
                f"got {list(stored.shape)} of {stored.dtype}"
            )
        rows.stored = stored

    def forward(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> Lookups:
        """Returns pooled embeddings and those of events, in fp32, on the device of `values`.

        Args:
            values: Rows of the tables, int64 [V], one feature's after another's.
            lengths_CB: Ids of each feature in each row.
            id_weights: float32 [V]; None where no feature has weights.
        """
        device = values.device
        if not self.features:
            return Lookups(torch.zeros(len(lengths_CB), 0, device=device))
        weights = None if id_weights is None else id_weights.to(self.device)
        bags = split_bags(
            self.features, values.to(self.device), lengths_CB.to(self.device), weights
        )
        pooled = [c for c, feature in enumerate(self.features) if feature.pooling != "none"]
        parts = [
            divide_by_length(sums_BD, bags[c].lengths_B)
            if self.features[c].pooling == "mean"
            else sums_BD
            for c, sums_BD in zip(pooled, self._sums(pooled, bags), strict=True)
        ]
        none_B0 = torch.zeros(bags[0].lengths_B.shape[0], 0, device=self.device)
        events = [
            self._sums([c], [*bags[:c], bags[c].of_one_each(), *bags[c + 1 :]])[0].to(device)
            for c, feature in enumerate(self.features)
            if feature.pooling == "none"
        ]
        lengths_SB = lengths_of_events(self.features, lengths_CB)
        return Lookups(torch.cat(parts or [none_B0], dim=1).to(device), tuple(events), lengths_SB)

    def _sums(self, features: Sequence[int], bags: Sequence[Bags]) -> list[Tensor]:
        """`sums_BD` of each of these features, all of one height."""
        if not features:
            return []
        if self._ranks == 1:
            bounds = bounds_of([bags[c].lengths_B for c in features])
            return [self._pool(c, bags[c], ends) for c, ends in zip(features, bounds, strict=True)]
        held = [self._spread[self.features[c].table] for c in features]
        dims = [self.shapes[self.features[c].table][1] for c in features]
        of = dict(enumerate(features))
        return pool_over_ranks(
            [bags[c] for c in features],
            held,
            dims,
            lambda c, own: self._pool(of[c], own, *bounds_of([own.lengths_B])),
        )

    def _pool(self, feature: int, bags: Bags, bounds: Tensor) -> Tensor:
        rows = self._rows[self.features[feature].table]
        return rows.pool(bags.ids_V, bounds, bags.weights_V)


def pool_over_ranks(
    bags: Sequence[Bags],
    held: Sequence[Sequence[range]],
    dims: Sequence[int],
    pool: Callable[[int, Bags], Tensor],
) -> list[Tensor]:
    """Returns `sums_BD` of each feature for this rank's rows; all ranks call it together.

    Args:
        bags: This rank's ids of each feature.
        held: For each feature, the rows of its table that rank 0 holds, that rank 1 holds, …
        dims: Width of each feature.
        pool: Of a feature's number and bags with ids counted from the first row that this rank
            holds, their sums.

    Returns:
        The pooled bags; where rows of one lie on several ranks, partial sums are added in the order
        of the ranks.
    """
    wire = Wire()
    asked = [[c for c, rows in enumerate(held) if rows[w]] for w in range(wire.world_size)]
    requests = [[bags[c].within(held[c][w]) for c in of] for w, of in enumerate(asked)]
    height, own = len(bags[0].lengths_B), asked[wire.rank]
    weighted = [bags[c].weights_V is not None for c in own]
    # Zero columns first: `cat` needs one, also of a rank that was asked for nothing
    answers = [
        torch.cat([torch.zeros(rows, 0), *map(pool, own, batch)], dim=1)
        for rows, batch in _exchange(wire, requests, height, weighted)
    ]
    widths = [sum(dims[c] for c in of) for of in asked]
    received = _send(
        wire, [answer_BD.flatten() for answer_BD in answers], [height * width for width in widths]
    )
    sums = [torch.zeros(height, dim) for dim in dims]
    for w, pooled in enumerate(received):
        columns = pooled.view(height, widths[w]).split([dims[c] for c in asked[w]], dim=1)
        for c, column_BD in zip(asked[w], columns, strict=True):
            sums[c] += column_BD
    return sums


def _exchange(
    wire: Wire, requests: Sequence[Sequence[Bags]], height: int, weighted: Sequence[bool]
) -> list[tuple[int, list[Bags]]]:
    """Exchanges every rank's number of rows, and its bags for this one.

    Args:
        wire: Of all ranks.
        requests: For each rank, the bags of the features it holds.
        height: Rows of this rank's batch.
        weighted: Whether this rank's features have weights.
    """
    ids = [_joined([b.ids_V for b in of], torch.int64) for of in requests]
    weights = [
        _joined([b.weights_V for b in of if b.weights_V is not None], torch.float32)
        for of in requests
    ]
    lengths = [_joined([b.lengths_B for b in of], torch.int64) for of in requests]
    sizes = [[height, len(i), len(w)] for i, w in zip(ids, weights, strict=True)]
    told = wire.exchange_sizes(torch.tensor(sizes))
    heights, counts, weight_counts = zip(*told, strict=True)
    of_lengths = _send(wire, lengths, [rows * len(weighted) for rows in heights])
    of_ids, of_weights = _send(wire, ids, counts), _send(wire, weights, weight_counts)
    return [
        (rows, _unpacked(lengths_L.view(len(weighted), rows), ids_V, weights_V, weighted))
        for rows, lengths_L, ids_V, weights_V in zip(
            heights, of_lengths, of_ids, of_weights, strict=True
        )
    ]


def _unpacked(
    lengths_CB: Tensor, ids_V: Tensor, weights_V: Tensor, weighted: Sequence[bool]
) -> list[Bags]:
    counts = lengths_CB.sum(dim=1).tolist()
    each = iter(weights_V.split([n for n, w in zip(counts, weighted, strict=True) if w]))
    return [
        Bags(ids, lengths_B, next(each) if has_weights else None)
        for ids, lengths_B, has_weights in zip(
            ids_V.split(counts), lengths_CB, weighted, strict=True
        )
    ]


def _send(wire: Wire, tensors: Sequence[Tensor], receive: Sequence[int]) -> Sequence[Tensor]:
    sent = [len(tensor) for tensor in tensors]
    return wire.begin_rows(torch.cat(list(tensors)), sent, receive).wait().split(list(receive))


def _joined(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.empty(0, dtype=dtype), *tensors])


def scoring_embeddings(embeddings: object) -> ScoringEmbeddings | None:
    """Returns the tables if these are tables to score with, else None."""
    module = embeddings.module if isinstance(embeddings, ManagedEmbeddings) else embeddings
    return module if isinstance(module, ScoringEmbeddings) else None


def memory_of_tables(tables: Sequence[TableSpec], precision: RowPrecision) -> str:
    """Writes how much memory tables take, for people.

    Args:
        tables: Whose rows and widths count; optimizer state does not.
        precision: Of the stored rows.

    Example:
        >>> from mmoe.config import TableSpec
        >>> memory_of_tables([TableSpec(name="item", num_rows=2_000_000, dim=16)], "int8")
        'tables: 32.0M parameters in int8, 45.8 MiB (122.1 MiB in fp32)'
    """
    count = sum(table.num_rows * table.dim for table in tables)
    narrow, wide = (
        sum(table.num_rows * row_bytes(table.dim, p) for table in tables)
        for p in (precision, "fp32")
    )
    return (
        f"tables: {_short(count)} parameters in {precision}, {byte_size(narrow)} "
        f"({byte_size(wide)} in fp32)"
    )


def _short(count: int) -> str:
    for one, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= one:
            return f"{count / one:,.1f}{letter}"
    return str(count)

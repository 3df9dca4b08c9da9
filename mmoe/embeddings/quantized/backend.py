"""Embeddings that are only looked up, to evaluate and score with; in fewer bits if asked for."""

from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor, nn

from mmoe.config import FeatureSpec, ScoringPrecision, TableSpec
from mmoe.embeddings.bags import Bags, bounds_of, divide_by_length, split_bags
from mmoe.embeddings.byte_size import byte_size
from mmoe.embeddings.lookups import Lookups, lengths_of_events
from mmoe.embeddings.managed.backend import managed_ids
from mmoe.embeddings.quantized.pool_over_ranks import pool_over_ranks
from mmoe.embeddings.quantized.stored_rows import RowPrecision, row_bytes, stored_rows
from mmoe.parallel import rank, world_size


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
        """Returns pooled embeddings and those of events, in fp32, on the device of `values`."""
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


def scoring_embeddings(embeddings: object) -> ScoringEmbeddings | None:
    """Returns the tables if these are tables to score with, else None."""
    ids = managed_ids(embeddings)
    module = embeddings if ids is None else ids.module
    return module if isinstance(module, ScoringEmbeddings) else None


def memory_of_tables(tables: Sequence[TableSpec], precision: RowPrecision) -> str:
    """Writes how much memory tables take, for people.

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

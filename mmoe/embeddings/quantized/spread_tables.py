"""Which rank holds which rows of tables that are only looked up."""

from collections.abc import Mapping, Sequence

from mmoe.config import TableSpec
from mmoe.embeddings.quantized.stored_rows import RowPrecision, row_bytes


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

"""One rank of a gloo world that shares out tables to score with; run by test_scoring_ranks.py.

Every rank looks its own rows up with the others, and alone those of all. What it finds is its
report.
"""

from unittest import mock

import torch

from mmoe.config import FeatureSpec, TableSpec
from mmoe.embeddings import ScoringEmbeddings
from mmoe.ops.row_sums import jagged_sum

# `item` is more than a rank's share: it is cut, and its bags are added up from several ranks
CUT = [
    TableSpec(name="item", num_rows=2000, dim=16),
    TableSpec(name="user", num_rows=50, dim=8),
    TableSpec(name="city", num_rows=31, dim=3),
]
# No table is: all stay whole
WHOLE = [TableSpec(name=name, num_rows=200, dim=8) for name in ("item", "user", "city", "hour")]
FEATURES = [  # not in the order of the tables; `item` is shared
    FeatureSpec(name="city", table="city", pooling="sum"),
    FeatureSpec(name="history", table="item", pooling="mean"),
    FeatureSpec(name="user", table="user", pooling="mean"),
    FeatureSpec(name="tags", table="item", pooling="sum", weighted=True),
]
# Their rows stay events
EVENTS = [
    FeatureSpec(name="seen", table="item", pooling="none"),
    *FEATURES,
    FeatureSpec(name="visited", table="city", pooling="none"),
]
HOUR = FeatureSpec(name="hour", table="hour", pooling="sum", weighted=True)
# Rows of each rank, step by step: even, uneven, ranks without any, none at all
HEIGHTS = ((6, 6, 6), (7, 2, 1), (0, 5, 0), (0, 0, 0), (3, 0, 4))
CASES = {
    f"{name}, {precision}": (tables, features, precision)
    for name, tables, features in (
        ("cut", CUT, FEATURES),
        ("whole", WHOLE, [*FEATURES, HOUR]),
        ("unweighted", CUT, [f for f in FEATURES if not f.weighted]),
        ("events", CUT, EVENTS),
        ("events alone", CUT, EVENTS[:1]),
        ("one feature", CUT[:1], FEATURES[1:2]),
    )
    for precision in ("int8", "fp16")
    if precision == "int8" or name in ("cut", "whole")
}


def filled(tables, features, precision):
    module = ScoringEmbeddings(tables, features, precision)
    for table in tables:
        generator = torch.Generator().manual_seed(table.num_rows + table.dim)
        weight_RD = torch.randn(table.num_rows, table.dim, generator=generator)
        held = module.held[table.name]
        module.fill(table.name, held.start, weight_RD[held.start : held.stop])
    return module


def rows_of(step, rank, tables, features):
    """One rank's ids, numbers of ids and weights of each feature."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    rows = {table.name: table.num_rows for table in tables}
    found = []
    for feature in features:
        lengths_B = torch.randint(0, 4, (HEIGHTS[step][rank],), generator=generator).int()
        count = int(lengths_B.sum())
        ids_V = torch.randint(0, rows[feature.table], (count,), generator=generator)
        found.append((ids_V, lengths_B, torch.rand(count, generator=generator)))
    return found


def joined(of_ranks):
    """The batch of some ranks' rows, feature-major: ids, numbers of ids, weights."""
    by_feature = zip(*of_ranks, strict=True)
    together = [[torch.cat(parts) for parts in zip(*f, strict=True)] for f in by_feature]
    return [torch.cat(parts) for parts in zip(*together, strict=True)]


def of_one_process(case, batch):
    module = "mmoe.embeddings.quantized"
    with (
        mock.patch(f"{module}.world_size", return_value=1),
        mock.patch(f"{module}.rank", return_value=0),
    ):
        return looked_up(filled(*case), batch)


def looked_up(module, batch):
    """Everything by row: pooled columns, and of events sums in which later ones count for more."""
    found = module(*batch)
    columns = [found.x_BD]
    for s, e_VD in enumerate(found.events):
        lengths_B = found.lengths_SB[s]
        places_V = torch.cat([torch.arange(int(n)) for n in lengths_B] or [lengths_B])
        columns.append(jagged_sum(e_VD, lengths_B, 1.0 + places_V))
    return torch.cat(columns, dim=1)


def compare(case, ranks, rank):
    tables, features, _ = case
    module = filled(*case)
    errors, bits, repeats = [0.0], [], []
    for step, heights in enumerate(HEIGHTS):
        batches = [rows_of(step, r, tables, features) for r in range(ranks)]
        own = joined(batches[rank : rank + 1])
        mine = looked_up(module, own)
        first = sum(heights[:rank])
        alone = of_one_process(case, joined(batches))[first : first + heights[rank]]
        errors += (mine - alone).abs().flatten().tolist()
        bits.append(mine.equal(alone))
        repeats.append(looked_up(module, own).equal(mine))
    return {
        "error": max(errors),
        "same_bits": all(bits),
        "repeats": all(repeats),
        "held": {name: [rows.start, rows.stop] for name, rows in module.held.items()},
    }


def main(rank, ranks, _):
    with torch.no_grad():
        return {name: compare(case, ranks, rank) for name, case in CASES.items()}

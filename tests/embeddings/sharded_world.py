"""One rank of a gloo world that compares tables over ranks with one process; run by the tests.

Every rank trains each case with the others, on its own rows, and one of them alone on those of all,
on the plain backend. What a rank
finds is its report: for each case the largest
errors.
"""

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, ManagedIds, ParallelConfig, TableSpec
from mmoe.embeddings import ManagedEmbeddings, PlainEmbeddings, build_embeddings
from mmoe.embeddings.admission import IdAdmission
from mmoe.embeddings.backend import fill_tables
from mmoe.ops.row_sums import jagged_sum
from mmoe.parallel.sharded_tensors import local_shards
from tests.ranks import shared_out

SEED = 3
TABLES = [
    TableSpec(name="item", ids=True, num_rows=101, dim=16),
    TableSpec(name="user", ids=True, num_rows=50, dim=8, learning_rate=0.01),
    TableSpec(name="city", ids=True, num_rows=31, dim=32, learning_rate=0.3),
    TableSpec(name="hour", num_rows=9, dim=8, learning_rate=0.01),
]
FEATURES = [  # not in the order of the tables; `item` is shared
    FeatureSpec(name="city", table="city", pooling="sum"),
    FeatureSpec(name="history", table="item", pooling="mean"),
    FeatureSpec(name="user", table="user", pooling="mean"),
    FeatureSpec(name="tags", table="item", pooling="sum", weighted=True),
    FeatureSpec(name="hour", table="hour", pooling="sum"),
]
# Their tables' rows stay events: pooled features of these tables are added up from them
EVENTS = [
    FeatureSpec(name="seen", table="item", pooling="none"),
    *FEATURES,
    FeatureSpec(name="visited", table="city", pooling="none"),
    FeatureSpec(name="bought", table="item", pooling="none"),
]
# Rows of each rank, step by step: even, uneven, ranks without any, none at all
HEIGHTS = ((6, 6, 6, 6), (7, 2, 1, 12), (0, 5, 0, 3), (0, 0, 0, 0), (3, 0, 4, 0))
FACTORS = (1.0, 0.3, 2.0, 1.0, 0.5)
BY_COLUMNS = ("column_wise", "table_column_wise", "grid")
SHARDINGS = ("auto", "table_wise", "row_wise", "table_row_wise", "data_parallel", *BY_COLUMNS)


@dataclass(frozen=True)
class Case:
    parallel: dict[str, Any]
    optimizer: str = "rowwise_adagrad"
    weighted: bool = True
    managed: ManagedIds | None = None  # the ids of items, which then come and go
    weight_decay: float = 0.0
    events: bool = False
    frozen: bool = False  # the rows of items


def all_tables(**keys):
    return {"tables": keys}


CASES = {
    f"{sharding}, {optimizer}": Case(all_tables(sharding=sharding), optimizer)
    for sharding in SHARDINGS
    for optimizer in ("adagrad" if sharding in BY_COLUMNS else "rowwise_adagrad",)
}
CASES |= {
    f"{sharding}, sgd, unweighted": Case(all_tables(sharding=sharding), "sgd", weighted=False)
    for sharding in ("auto", "row_wise", "data_parallel", "grid")
}
CASES |= {
    "one of each": Case(
        {
            "tables": {"sharding": "table_wise"},
            "per_table": {
                "item": {"sharding": "row_wise"},
                "city": {"sharding": "column_wise"},
                "hour": {"sharding": "data_parallel"},
            },
        },
        "adagrad",
    ),
    "narrow pieces, adagrad": Case(all_tables(sharding="column_wise", columns=4), "adagrad"),
    "fp16": Case(all_tables(sharding="row_wise", precision="fp16")),
    "fp16, whole": Case(all_tables(sharding="table_wise", precision="fp16"), "sgd"),
}
CASES["rows that decay"] = Case({}, weight_decay=0.3)
CASES |= {
    f"managed, {sharding}": Case(
        all_tables(sharding=sharding),
        "adagrad",
        managed=ManagedIds(rows=12, evict=evict, evict_every=1),
    )
    for sharding, evict in (("row_wise", "lru"), ("column_wise", "lfu"), ("data_parallel", "lru"))
}
CASES |= {
    f"events, {sharding}": Case(all_tables(sharding=sharding), optimizer, events=True)
    for sharding, optimizer in (
        ("table_wise", "sgd"),
        ("row_wise", "rowwise_adagrad"),
        ("data_parallel", "rowwise_adagrad"),
        ("column_wise", "adagrad"),
        ("grid", "adagrad"),
    )
}
CASES |= {
    "events, rows that decay": Case({}, weight_decay=0.3, events=True),
    "events, frozen items": Case({}, events=True, frozen=True),
    "events, unweighted": Case({}, weighted=False, events=True),
    "events, managed": Case(
        all_tables(sharding="row_wise"),
        managed=ManagedIds(rows=12, evict="lru", evict_every=1),
        events=True,
    ),
    "events, one of each": Case(
        {
            "tables": {"sharding": "table_wise"},
            "per_table": {"item": {"sharding": "row_wise"}, "city": {"sharding": "data_parallel"}},
        },
        "adagrad",
        events=True,
    ),
}
CASES |= {
    f"frozen items, {sharding}": Case({"per_table": {"item": {"sharding": sharding}}}, frozen=True)
    for sharding in ("table_wise", "row_wise", "column_wise", "data_parallel")
}
CASES["frozen items, others decay"] = Case({}, weight_decay=0.3, frozen=True)
CASES["frozen items, fp16"] = Case(all_tables(precision="fp16"), "adagrad", frozen=True)


# Trained twice: Adagrad, which takes every sharding, and one of each other kind
_KINDS = {
    (c.optimizer, c.weighted, c.managed is None, c.weight_decay, c.events, c.frozen, fp16): c
    for c in CASES.values()
    for fp16 in ("fp16" in str(c.parallel),)
}
TWICE = [c for c in CASES.values() if c.optimizer == "adagrad" or c in _KINDS.values()]

REFUSED = {
    "rows that decay in pieces": Case(all_tables(sharding="table_wise"), weight_decay=0.3),
    "columns of row-wise Adagrad": Case(all_tables(sharding="grid")),
    "too few rows": Case({"per_table": {"city": {"sharding": "row_wise"}}}),
    "events cut by rows and columns": Case(
        {"per_table": {"item": {"sharding": "grid"}}}, "adagrad", events=True
    ),
    "kernel": Case(all_tables(kernel="uvm_caching")),
    "memory": Case({"memory_gib": 10}),
    "memory of one rank": Case({"memory_gib": 40, "tables": {"sharding": "table_wise"}}, "sgd"),
}


def batch_of_all(step, features, heights):
    """Ids, lengths [C, B] and weights of all ranks' rows."""
    generator = torch.Generator().manual_seed(step)
    lengths_CB = torch.randint(0, 4, (len(features), sum(heights)), generator=generator).int()
    rows = {table.name: table.num_rows for table in TABLES}
    ids = [
        torch.randint(0, rows[feature.table], (int(lengths_B.sum()),), generator=generator)
        for feature, lengths_B in zip(features, lengths_CB, strict=True)
    ]
    weights = [
        torch.rand(len(ids_V), generator=generator) if feature.weighted else torch.ones(len(ids_V))
        for feature, ids_V in zip(features, ids, strict=True)
    ]
    return torch.cat(ids), lengths_CB, torch.cat(weights)


def part(batch, heights, rank):
    """The rows of one rank."""
    values, lengths_CB, weights = batch
    first = sum(heights[:rank])
    own = torch.zeros(lengths_CB.shape[1], dtype=torch.bool)
    own[first : first + heights[rank]] = True
    chosen = torch.repeat_interleave(own.repeat(len(lengths_CB)), lengths_CB.flatten())
    return values[chosen], lengths_CB[:, own].flatten(), weights[chosen]


def train(module, features, ranks, rank=None):
    """Outputs of all steps; `rank` None: of all ranks' rows, by one process."""
    outputs = []
    for step, (heights, factor) in enumerate(zip(HEIGHTS, FACTORS, strict=True)):
        heights = heights[:ranks]
        batch = batch_of_all(step, features, heights)
        generator = torch.Generator().manual_seed(100 + step)
        direction = torch.randn(sum(heights), module.output_dim, generator=generator)
        values, lengths_CB, weights = batch[0], batch[1].flatten(), batch[2]
        if rank is not None:
            values, lengths_CB, weights = part(batch, heights, rank)
            first = sum(heights[:rank])
            direction = direction[first : first + heights[rank]]
        module.scale_learning_rates(factor)
        found = module(values, lengths_CB, weights)
        loss = (found.x_BD * direction).sum()
        out = [found.x_BD]
        for s, e_VD in enumerate(found.events):
            lengths_B = found.lengths_SB[s]
            # Later events of a row count for more
            places_V = torch.cat([torch.arange(int(n)) for n in lengths_B] or [lengths_B])
            sums_BD = jagged_sum(e_VD, lengths_B, 1.0 + places_V)
            loss = loss + (sums_BD * direction[:, :1]).sum()
            out.append(sums_BD)
        loss.backward()
        module.step()
        outputs.append(torch.cat(out, dim=1).detach())
    return outputs


def rows_of(outputs, ranks, rank):
    for heights, out in zip(HEIGHTS, outputs, strict=True):
        first = sum(heights[:ranks][:rank])
        yield out[first : first + heights[rank]]


def worst(pairs):
    """Largest error, relative where numbers are above 1."""
    return max(
        (float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in pairs if a.numel()),
        default=0.0,
    )


def shard_errors(mine, theirs):
    """Of this rank's pieces; NaN where names or shapes differ."""
    if mine.keys() != theirs.keys():
        return float("nan")
    return worst(
        (piece.tensor, theirs[name][piece.region])
        for name, value in mine.items()
        for piece in local_shards(value)
    )


def covered(shards):
    """Numbers that all ranks hold of each table, and that they should."""
    held = []
    for value in shards.values():
        count = sum(piece.tensor.numel() for piece in local_shards(value))
        held.append(0 if isinstance(value, torch.Tensor) and dist.get_rank() else count)
    counts = torch.tensor(held)
    dist.all_reduce(counts)
    return dict(zip(shards, counts.tolist(), strict=True))


def build(case, tables, features):
    return build_embeddings(
        tables,
        features,
        optimizer=optimizer_of(case),
        backend="torchrec",
        seed=SEED,
        parallel=ParallelConfig.model_validate(case.parallel),
    )


def optimizer_of(case):
    settings = {"kind": case.optimizer, "learning_rate": 0.1, "weight_decay": case.weight_decay}
    return EmbeddingOptimizerConfig.model_validate(settings)


def refusal(case):
    item, user, city, hour = TABLES
    tables = [replace(item, num_rows=10**9), user, replace(city, num_rows=1), hour]
    try:
        build(case, tables, EVENTS if case.events else FEATURES)
    except ValueError as error:
        return str(error)
    return ""


def tables_and_features(case):
    features = EVENTS if case.events else FEATURES
    if not case.weighted:
        features = [feature for feature in features if not feature.weighted]
    tables = TABLES
    if case.managed:
        item = replace(TABLES[0], num_rows=case.managed.rows + 2, managed=case.managed)
        tables = [item, *TABLES[1:]]
    if case.frozen:
        tables = [replace(TABLES[0], frozen=True), *TABLES[1:]]
    return tables, features


class Alone(NamedTuple):
    """What one process finds on the rows of all."""

    initial: dict[str, torch.Tensor]
    outputs: list[torch.Tensor]
    tables: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    owners: dict[str, list]


def alone(case, ranks):
    tables, features = tables_and_features(case)
    one = PlainEmbeddings(tables, features, optimizer_of(case))
    fill_tables(one.table_shards(), SEED)
    if case.managed:
        one = ManagedEmbeddings(one, features, {"item": IdAdmission("item", case.managed)}, SEED)
    initial = {name: table.clone() for name, table in one.table_weights().items()}
    with mock.patch("mmoe.embeddings.managed.gather_ids", list):  # it has the ids of all ranks
        outputs = train(one, features, ranks)
    owned = owners(one) if case.managed else {}
    return Alone(initial, outputs, one.table_weights(), one.optimizer_state(), owned)


def of_one(case):
    """What of a case is the same to one process: not where the tables lie."""
    return repr(replace(case, parallel={}))


def repeats(many, of_many, again, of_again):
    """Whether training a second time gave the same bits."""
    return all(map(torch.equal, of_many, of_again)) and all(
        torch.equal(mine.tensor, other.tensor)
        for take in ("table_shards", "optimizer_shards")
        for name, value in getattr(many, take)().items()
        for mine, other in zip(
            local_shards(value), local_shards(getattr(again, take)()[name]), strict=True
        )
    )


def compare(case, ranks, rank, one):
    tables, features = tables_and_features(case)
    many = build(case, tables, features)
    initial = shard_errors(many.table_shards(), one.initial)
    items = [shard.tensor.clone() for shard in local_shards(many.table_shards()["item"])]
    of_many = train(many, features, ranks, rank)
    same = True
    if case in TWICE:
        again = build(case, tables, features)
        same = repeats(many, of_many, again, train(again, features, ranks, rank))
    return {
        "initial": initial,
        "outputs": worst(zip(of_many, rows_of(one.outputs, ranks, rank), strict=True)),
        "tables": shard_errors(many.table_shards(), one.tables),
        "state": shard_errors(many.optimizer_shards(), one.state),
        "covered": covered(many.table_shards())
        == {name: table.numel() for name, table in one.tables.items()},
        "same_bits": same,
        "moved": not all(
            torch.equal(before, shard.tensor)
            for before, shard in zip(items, local_shards(many.table_shards()["item"]), strict=True)
        ),
        "owners": not case.managed or owners(many) == one.owners,
        "plan": many.plan_summary(),
    }


def owners(module):
    """Who owns which row, and all that decides who comes next."""
    found = {**module.maps(), **module.progress()}
    return {name: tensor.tolist() for name, tensor in found.items()}


def main(rank, ranks, _):
    # Two machines of two ranks, where there are four
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    singles = shared_out(CASES, partial(alone, ranks=ranks), of_one)
    return {
        "cases": {name: compare(case, ranks, rank, singles[name]) for name, case in CASES.items()},
        "refused": {name: refusal(case) for name, case in REFUSED.items()},
    }

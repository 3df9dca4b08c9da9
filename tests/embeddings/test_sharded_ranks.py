"""Tables over ranks equal one process: a world of 4 gloo ranks, and what is refused.

The ranks run `sharded_world.py`, all cases in one world, and report what they found.
"""

import re

import pytest

pytestmark = pytest.mark.torchrec


@pytest.fixture(scope="module")
def reports(run_ranks):
    """What every rank found."""
    return run_ranks("embeddings.sharded_world", 4)


@pytest.fixture
def world(reports):
    """What every rank found of each case: `[rank][case][key]`."""
    return [report["cases"] for report in reports]


def tolerance(case):
    return 2e-3 if "fp16" in case else 1e-6


@pytest.mark.parametrize("what", ["outputs", "tables", "state"])
def test_ranks_equal_one_process(world, what):
    """After even, uneven and empty batches; rates of tables and their schedule included."""
    worst = {case: max(rank[case][what] for rank in world) for case in world[0]}
    assert {case: error for case, error in worst.items() if not error <= tolerance(case)} == {}


def test_pieces_begin_with_the_rows_of_one_process(world):
    wrong = {
        case
        for rank in world
        for case, found in rank.items()
        if found["initial"] != 0 and "fp16" not in case
    }
    assert wrong == set()


def test_ranks_hold_every_number_once(world):
    assert {case for rank in world for case in rank if not rank[case]["covered"]} == set()


def test_a_run_repeats_to_the_bit(world):
    assert {case for rank in world for case in rank if not rank[case]["same_bits"]} == set()


def test_frozen_rows_stay_to_the_bit(world):
    for case in world[0]:
        moved = any(rank[case]["moved"] for rank in world)
        assert moved != ("frozen" in case), case


def test_managed_ids_own_the_same_rows_everywhere(world):
    assert {case for rank in world for case in rank if not rank[case]["owners"]} == set()


def test_the_plan_is_what_was_asked_for(world):
    assert all(rank[case]["plan"] == world[0][case]["plan"] for rank in world for case in rank)
    plans = {case: {t["table"]: t for t in found["plan"]} for case, found in world[0].items()}
    mixed = plans["one of each"]
    assert {name: table["sharding"] for name, table in mixed.items()} == {
        "item": "row_wise",
        "user": "table_wise",
        "city": "column_wise",
        "hour": "data_parallel",
    }
    assert [piece["rank"] for piece in mixed["hour"]["pieces"]] == list(range(len(world)))
    pieces = plans["narrow pieces, adagrad"]["city"]["pieces"]
    assert sorted(piece["columns"] for piece in pieces) == [[c, c + 4] for c in range(0, 32, 4)]
    assert {piece["bytes"] for piece in pieces} == {31 * 4 * 8}
    assert plans["fp16"]["item"]["precision"] == "fp16"
    for case, tables in plans.items():
        sharding = case.split(", ")[0]
        if sharding in ("row_wise", "table_row_wise", "grid"):
            # Nine rows on four ranks would be 3 + 3 + 3 + 0
            small = sharding == "row_wise" and len(world) == 4
            assert tables["hour"]["sharding"] == ("table_wise" if small else sharding)


def test_tables_of_events_are_sharded_as_asked(world):
    plans = {case: {t["table"]: t["sharding"] for t in found["plan"]}
             for case, found in world[0].items() if case.startswith("events")}  # fmt: skip
    for sharding in ("table_wise", "data_parallel", "column_wise"):
        assert set(plans[f"events, {sharding}"].values()) == {sharding}
    assert plans["events, row_wise"]["item"] == plans["events, row_wise"]["city"] == "row_wise"
    # What is asked of all tables goes for those that can
    grid = plans["events, grid"]
    assert (grid["user"], grid["item"], grid["city"]) == ("grid", "table_wise", "table_wise")
    one = plans["events, one of each"]
    assert (one["item"], one["city"], one["user"]) == ("row_wise", "data_parallel", "table_wise")


def test_a_rank_may_hold_nothing_or_several_pieces(world):
    """Otherwise the other tests prove less than they say."""
    found = [table["pieces"] for case in world[0].values() for table in case["plan"]]
    counts = {
        [piece["rank"] for piece in pieces].count(rank)
        for pieces in found
        for rank in range(len(world))
    }
    assert {0, 1, 2} <= counts


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "columns of row-wise Adagrad",
            r"table 'item': parallel says sharding grid, but rowwise_adagrad has one number for a "
            r"whole row.*say sharding: row_wise, or training.embedding_optimizer.kind: adagrad",
        ),
        (
            "too few rows",
            r"table 'city': parallel says sharding row_wise, but its 1 rows are too few to give "
            r"all of \d ranks some; say sharding: table_wise",
        ),
        (
            "rows that decay in pieces",
            r"table 'item': parallel says sharding table_wise, but embedding_optimizer.weight_decay"
            r" needs a copy on every rank; say sharding: data_parallel",
        ),
        (
            "events cut by rows and columns",
            r"table 'item': parallel says sharding grid, but a sequence reads its rows one by one; "
            r"say data_parallel, table_wise, column_wise, row_wise or auto",
        ),
        ("kernel", r"table 'item': parallel says kernel uvm_caching, .* say kernel: fused"),
        (
            "memory",
            r"the embedding tables need 63.3 GiB with their optimizer's state, and each of \d "
            r"ranks may use 10.0 GiB \(parallel.memory_gib\): (43|23).3 GiB are missing; the "
            r"largest table is 'item' \(63.3 GiB\): raise parallel.memory_gib, lower rows",
        ),
        (
            "memory of one rank",
            r"table 'item' with sharding table_wise puts 59.6 GiB on one rank, and each of \d "
            r"ranks may use 40.0 GiB \(parallel.memory_gib\): 19.6 GiB are missing there; "
            r"say sharding: row_wise",
        ),
    ],
)
def test_every_rank_refuses_alike(reports, what, message):
    messages = {report["refused"][what] for report in reports}
    assert len(messages) == 1
    assert re.search(message, messages.pop())

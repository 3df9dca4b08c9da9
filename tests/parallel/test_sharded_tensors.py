"""Pieces of tables, the plan that is printed, and what the config says of both."""

import pytest
import torch
from rich.console import Console

from mmoe.config import ParallelConfig, TablePlacement, config_from_dict, dump_config
from mmoe.embeddings import Shard, local_shards, plan_table
from mmoe.embeddings.backend import fill_tables, fresh_rows
from mmoe.embeddings.managed import gather_ids
from mmoe.parallel.sharded_tensors import held_whole, rows_held


def cut(shape):
    """A table in four pieces, rows and columns, of zeros."""
    rows, dim = shape
    return [
        Shard(torch.zeros(last - first, end - start), shape, (first, start))
        for first, last in ((0, rows // 3), (rows // 3, rows))
        for start, end in ((0, dim // 2), (dim // 2, dim))
    ]


@pytest.mark.parametrize("drawn", [1, 40, 2**22])
def test_pieces_get_the_numbers_of_the_whole(monkeypatch, drawn):
    monkeypatch.setattr("mmoe.embeddings.backend._DRAWN", drawn)
    whole, parts = torch.empty(29, 8), cut((29, 8))
    fill_tables({"item": whole}, seed=5)
    fill_tables({"item": parts, "elsewhere": []}, seed=5)
    assert not whole[:2].any() and whole[2:].all()
    assert torch.equal(whole[2:], fresh_rows(29, (29, 8), "5 item")[2:])
    for shard in parts:
        assert torch.equal(shard.tensor, whole[shard.region])


def test_rows_are_found_in_the_pieces_that_have_them():
    whole, rows_R = torch.arange(24.0).view(6, 4), torch.tensor([5, 0, 3])
    parts = cut((6, 4))
    for shard, own_S, chosen_S in rows_held(parts, rows_R):
        shard.tensor[own_S] = whole[rows_R[chosen_S], shard.region[1]]
    joined = torch.zeros(6, 4)
    for shard in parts:
        joined[shard.region] = shard.tensor
    expected = torch.zeros(6, 4)
    expected[rows_R] = whole[rows_R]
    assert torch.equal(joined, expected)


def test_a_whole_table_is_one_piece_and_pieces_are_no_table():
    table = torch.ones(3, 2)
    assert local_shards(table)[0].offsets == (0, 0) and local_shards(table)[0].tensor is table
    assert held_whole({"item": table})["item"] is table
    with pytest.raises(ValueError, match=r"'item' is spread over ranks.* table_shards\(\)"):
        held_whole({"item": cut((6, 4))})


def test_one_process_gathers_its_own_ids():
    ids = torch.arange(3)
    assert gather_ids([ids])[0] is ids


def test_a_key_of_one_table_goes_before_that_of_all():
    parallel = ParallelConfig.model_validate(
        {
            "tables": {"sharding": "row_wise", "precision": "fp16"},
            "per_table": {"item": {"sharding": "auto", "columns": 8}},
        }
    )
    assert parallel.placement("item") == TablePlacement(
        sharding="auto", kernel="auto", precision="fp16", columns=8
    )
    assert parallel.placement("user").sharding == "row_wise"
    assert ParallelConfig().placement("user") == TablePlacement(
        sharding="auto", kernel="auto", precision="fp32"
    )


def test_placements_of_a_run_are_checked_and_kept(funnel_config):
    raw = {**funnel_config, "parallel": {"per_table": {"price__bucket": {"sharding": "row_wise"}}}}
    config = config_from_dict(raw)
    assert "price__bucket" in dump_config(config)
    raw["parallel"] = {"per_table": {"itm": {"sharding": "row_wise"}}}
    with pytest.raises(ValueError, match=r"per_table names 'itm', .*; did you mean 'item'\?"):
        config_from_dict(raw)
    raw["parallel"] = {"tables": {"columns": 6}}
    with pytest.raises(ValueError, match=r"parallel.tables.columns: .* multiple of 4, got 6"):
        config_from_dict(raw)


def test_the_plan_is_printed():
    piece = {"rows": [0, 50], "columns": [0, 16], "bytes": 2**20}
    entry = {"table": "item", "rows": 100, "dim": 16, "sharding": "row_wise", "kernel": "fused"}
    entry |= {"precision": "fp32", "pieces": [piece | {"rank": 0}, piece | {"rank": 1}] * 2}
    console = Console(width=100, record=True, file=None)
    with console.capture() as shown:
        console.print(plan_table([entry]))
    assert "item    row_wise   fused    fp32          100 × 16   2.0 MiB   2.0 MiB" in " ".join(
        [shown.get()]
    )
    small = {**entry, "pieces": [piece | {"rank": 0, "bytes": 51_200}]}
    with console.capture() as shown:
        console.print(plan_table([small]))
    assert "50.0 KiB" in shown.get()
    many = {**entry, "pieces": [piece | {"rank": rank} for rank in range(20)]}
    with console.capture() as shown:
        console.print(plan_table([many]))
    assert "least" in shown.get() and "rank 3" not in shown.get()

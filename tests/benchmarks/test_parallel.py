"""`benchmarks.parallel` counts what it says."""

import pytest
import torch
import torch.distributed as dist

from benchmarks.parallel import collective_costs
from benchmarks.racing.spread import Traffic, count_link
from mmoe.parallel import ensure_process_group


def test_what_a_link_has_to_carry():
    # Experts 2 and 3 are on the other rank; two gates, top-2
    picks_BGK = torch.tensor(
        [
            [[0, 2], [2, 3]],  # both are asked for, 2 twice: 3 picks, 2 pairs, 2 sums
            [[0, 1], [1, 0]],  # nobody there
            [[3, 2], [0, 1]],  # by one gate: 2 picks, 2 pairs, 1 sum
        ]
    )
    link = count_link(picks_BGK, 2, 4)
    assert (link.rows, link.picks, link.pairs, link.sums) == (2, 5, 4, 3)
    # Sums come back (3 · 100 + 5 weights < 4 · 100); gradients of all but the picks come again
    assert link.bytes(row_bytes=10, output_bytes=100) == 2 * (20 + 320) + 20
    assert link.bytes(row_bytes=10, output_bytes=4) == 2 * (20 + 16) + 20


def test_waiting_and_the_wire():
    def log(issued, stood, ended):
        found = {"owner": "rows", "key": "0:1", "bytes": 2_000_000}
        return {"steps": 2, "found": [{**found, "issued": issued, "stood": stood, "ended": ended}]}

    # The first rank waits from 1.0 until the second one comes at 1.3, which waits for nobody
    (row,) = collective_costs([log(1.0, 1.0, 1.4), log(1.3, 1.3, 1.4)])
    assert (row["owner"], row["calls"], row["mb"]) == ("rows", 0.5, 1.0)
    assert row["waiting"] == pytest.approx(300 / 4)
    assert row["wire"] == pytest.approx(200 / 4)
    # What goes on behind other work costs nothing
    (row,) = collective_costs([log(1.0, 1.5, 1.5), log(1.3, 1.6, 1.7)])
    assert row["waiting"] == 0
    assert row["wire"] == pytest.approx(100 / 4)


def test_what_cannot_be_counted_is_refused():
    ensure_process_group()
    with Traffic() as traffic:
        received = torch.empty(4)
        dist.all_to_all_single(received, torch.ones(4), [4], [4])
        assert traffic.bytes == 0  # to itself
        with pytest.raises(ValueError, match="got c10d::allreduce_"):
            dist.all_reduce(received)

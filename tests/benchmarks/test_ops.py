import pytest
import torch

from benchmarks.bench_ops import exchange_contests


@pytest.mark.parametrize("way", ["pairs", "sums"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_exchange_without_a_wire_gives_what_its_specification_does(way, dtype):
    experts_BGK = torch.rand(20, 3, 8).topk(2).indices.int()
    found = exchange_contests(experts_BGK, 8, 6, dtype, way)

    assert len(found) == 12
    for name, (calls, moved) in found.items():
        assert moved > 0
        if name != "exchange train":
            torch.testing.assert_close(*(calls[who]() for who in ("mmoe", "reference")))


def test_indexing_computes_the_same_rows():
    experts_BGK = torch.rand(20, 3, 8).topk(2).indices.int()
    found = exchange_contests(experts_BGK, 8, 6, torch.float32, "pairs")

    for name in ("pack_returns", "mix_returns"):
        calls, _ = found[name]
        torch.testing.assert_close(calls["indexing"](), calls["mmoe"]())

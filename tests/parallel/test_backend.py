"""What tensors travel by: gloo, and NCCL for those on GPUs (played by stand-ins)."""

import pytest
import torch
import torch.distributed as dist

from mmoe.parallel.launch import process_group

GPU = torch.device("cuda", 0)


def test_tensors_on_gpus_travel_by_nccl_where_there_is_one(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert process_group._backend(cuda=True) == "cpu:gloo,cuda:nccl"
    assert process_group._backend(cuda=False) == "gloo"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert process_group._backend(cuda=True) == "gloo"


@pytest.mark.parametrize(
    ("device", "ranks", "backends", "refused"),
    [
        (GPU, 2, "cpu:gloo,cuda:gloo", True),
        (GPU, 2, "cpu:gloo,cuda:nccl", False),
        (GPU, 1, "cpu:gloo,cuda:gloo", False),
        (torch.device("cpu"), 2, "cpu:gloo,cuda:gloo", False),
    ],
)
def test_several_ranks_on_gpus_need_nccl(device, ranks, backends, refused, monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    if refused:
        with pytest.raises(
            ValueError, match=r"device cuda:0: .* has no NCCL \(.*or use device cpu"
        ):
            process_group.ensure_process_group(device=device)
    else:
        process_group.ensure_process_group(device=device)
    assert current == ([device] if device == GPU else [])

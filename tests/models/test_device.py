"""Which device a setting means on which machine."""

import pytest
import torch

from mmoe.models.layout import describe_device, resolve_device

NO_KERNELS = "the installed fbgemm_gpu is a build for the CPU"


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many GPUs, and variables as torchrun sets them."""

    def make(gpus: int, *, built: bool = True, **variables: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.version, "cuda", "13.0" if built else None)
        for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return make


@pytest.fixture
def fbgemm(monkeypatch):
    """FBGEMM with or without kernels for CUDA."""

    def make(*, cuda: bool) -> None:
        monkeypatch.setattr("mmoe.embeddings.build.find_spec", lambda _: True)
        monkeypatch.setattr("mmoe.embeddings.build._fbgemm_has_cuda", lambda: cuda)

    return make


@pytest.mark.parametrize("asked", ["auto", "cpu"])
def test_without_a_gpu_it_is_the_cpu(asked, machine):
    machine(0)
    assert resolve_device(asked) == torch.device("cpu")


def test_auto_takes_the_gpu_and_cpu_does_not(machine):
    machine(1)
    assert str(resolve_device()) == str(resolve_device("cuda")) == "cuda:0"
    assert str(resolve_device("cpu")) == "cpu"


def test_a_rank_takes_the_gpu_of_its_number(machine):
    machine(4, LOCAL_RANK=2, LOCAL_WORLD_SIZE=4)
    assert resolve_device("auto") == torch.device("cuda", 2)


@pytest.mark.parametrize(
    ("gpus", "settings", "message"),
    [
        (0, {}, "torch sees no CUDA device: look at nvidia-smi"),
        (0, {"built": False}, "is built without CUDA: install a build with it"),
        (2, {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}, r"has 2 CUDA device\(s\) for 4 ranks"),
        (2, {"LOCAL_RANK": 3}, "start no more ranks on it"),
    ],
)
def test_cuda_that_cannot_be_had_is_refused_with_the_way_out(gpus, settings, message, machine):
    machine(gpus, **settings)
    with pytest.raises(ValueError, match=f"device is cuda, but .*{message}.*--device cpu"):
        resolve_device("cuda")
    assert resolve_device("auto") == torch.device("cpu")


def test_tables_on_torchrec_need_an_fbgemm_with_cuda(machine, fbgemm):
    machine(1)
    fbgemm(cuda=False)
    with pytest.raises(ValueError, match=f"backend is torchrec and {NO_KERNELS}.*install"):
        resolve_device("cuda", "torchrec")
    assert str(resolve_device("auto", "torchrec")) == "cpu"
    assert str(resolve_device("auto", "auto")) == "cuda:0"
    assert str(resolve_device("cuda", "plain")) == "cuda:0"
    fbgemm(cuda=True)
    assert str(resolve_device("cuda", "torchrec")) == "cuda:0"


def test_a_device_is_described_for_people(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    assert describe_device(torch.device("cpu")) == "cpu"
    assert describe_device(torch.device("cuda", 1)) == "cuda:1 (NVIDIA H100)"

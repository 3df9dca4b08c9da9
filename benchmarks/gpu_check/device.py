"""What a process of a check works on: a GPU, the emulated one, or the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.gpu_check.extension import require_kernels

DEVICES = ("cuda", "cpu", "emulated")


@contextmanager
def opened(device: str) -> Iterator[str]:
    """Gives the name under which tensors are put on it, while kernels for it are there.

    Emulated, "cuda" means the CUDA sources compiled for the host, in this process.

    Raises:
        SystemExit: There are no CUDA kernels for a GPU.
    """
    if device == "emulated":
        from tests.emulated_cuda.device import EmulatedDevice, Kernels  # compiles where it must

        with EmulatedDevice(Kernels()):
            yield "cuda"
        return
    if device == "cuda":
        require_kernels()
    yield device

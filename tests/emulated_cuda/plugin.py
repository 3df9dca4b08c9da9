"""`-p tests.emulated_cuda.plugin`: tests marked `gpu` run on the emulated device.

    python -m pytest -p tests.emulated_cuda.plugin -m "gpu and not real_gpu" tests/ops

What needs CUDA's runtime, marked `real_gpu`, is skipped. `--emulated-…` say what is varied.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulated_cuda.build import NoCompiler
from tests.emulated_cuda.device import ORDERS, EmulatedDevice, Kernels, Settings

VARIANTS = ("plain", "asan")
OPTIONS = ("variant", "order", "seed", "copies", "capability")
LARGE = ("[large", "-large", "many-experts")
_KERNELS = pytest.StashKey[Kernels]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the emulation varies."""
    group = parser.getgroup("emulated CUDA")
    group.addoption("--emulated-variant", choices=VARIANTS, default="plain")
    group.addoption("--emulated-order", choices=ORDERS, default="forward")
    group.addoption("--emulated-seed", type=int, default=0, help="of the shuffled order")
    group.addoption("--emulated-copies", choices=("late", "early"), default="late")
    group.addoption("--emulated-capability", type=int, choices=(8, 9), default=8)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Opens the device before test files are read: they look whether there is one."""
    variant, *varied = (_option(config, name) for name in OPTIONS)
    try:
        kernels = Kernels(variant)
    except NoCompiler as error:
        raise pytest.UsageError(f"tests.emulated_cuda: {error}") from None
    kernels.configure(Settings(*varied))
    config.stash[_KERNELS] = kernels
    device = EmulatedDevice(kernels)
    device.__enter__()
    config.add_cleanup(lambda: device.__exit__())


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"--emulated-{name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what CUDA's runtime is needed for, and without `--all` what is large."""
    whole = config.getoption("--all", default=False)
    for item in items:
        if item.get_closest_marker("real_gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a real GPU"))
        elif not whole and _is_large(item):
            item.add_marker(pytest.mark.skip(reason="large for an emulated device: --all"))


def _is_large(item: pytest.Item) -> bool:
    """By the names that the operators' shared cases have."""
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    return "large" in fixtures or any(name in item.name for name in LARGE)


@pytest.fixture
def emulated(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The kernels; settings are put back after the test."""
    kernels = request.config.stash[_KERNELS]
    before = kernels.settings
    yield kernels
    kernels.configure(before)

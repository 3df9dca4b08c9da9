"""`-p tests.emulated_cuda.plugin`: tests marked `gpu` run on the emulated device.

    python -m pytest -p tests.emulated_cuda.plugin -m "gpu and not real_gpu" tests/ops

What needs CUDA's runtime, marked `real_gpu`, is skipped. `--emulated-…` say what is varied.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulated_cuda.build import NoCompiler
from tests.emulated_cuda.device import ORDERS, EmulatedDevice, Kernels, Settings

VARIANTS = ("plain", "asan")
OPTIONS = ("variant", "order", "seed", "copies", "capability")
LARGE = ("[large", "-large", "many-experts")
ASKED = "asked for the capability"  # the property of such a test in the report
_KERNELS = pytest.StashKey[Kernels]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the emulation varies."""
    group = parser.getgroup("emulated CUDA")
    group.addoption("--emulated-variant", choices=VARIANTS, default="plain")
    group.addoption("--emulated-order", choices=ORDERS, default="forward")
    group.addoption("--emulated-seed", type=int, default=0, help="of the shuffled order")
    group.addoption("--emulated-copies", choices=("late", "early"), default="late")
    group.addoption("--emulated-capability", type=int, choices=(8, 9), default=8)
    group.addoption("--emulated-library", metavar="FILE", help="which is compiled")
    group.addoption("--emulated-tests", metavar="FILE", help="runs those alone whose names it has")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Opens the device before test files are read: they look whether there is one."""
    variant, *varied = (_option(config, name) for name in OPTIONS)
    try:
        kernels = Kernels(variant, _option(config, "library"))
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
    if names := config.getoption("--emulated-tests"):
        wanted = set(Path(names).read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]
    whole = config.getoption("--all", default=False)
    for item in items:
        if item.get_closest_marker("real_gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a real GPU"))
        elif not whole and _is_large(item):
            item.add_marker(pytest.mark.skip(reason="large for an emulated device: --all"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Notes of a test that it asked for the capability: with another it may go another way."""
    if item.config.stash[_KERNELS].capability_asked() and call.when != "teardown":
        item.user_properties.append((ASKED, item.nodeid))
    return (yield)


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

"""Fixtures shared by all tests."""

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist

from mmoe.embeddings import torchrec_problem
from tests import ranks, thinning
from tests.costs import Costs, recorded_seconds

# One thread: the tests' tensors are too small to share out, and a busy machine would wait for both.
torch.set_num_threads(1)

# No test cuts the power: nobody waits for the disk, 15 times a run
os.fsync = lambda descriptor: None

# All that is imported and collected stays: see `pytest_collection_finish`
gc.disable()

ROOT = Path(__file__).resolve().parent.parent


# Where a test is tried on a whole grid of cases, types and settings
GRIDS = ("tests/ops/", "tests/mixture/", "tests/integrations/convert/test_equal_at_start.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test-all` asks for."""
    parser.addoption(
        "--all",
        action="store_true",
        help="also what is marked slow, and every member of the grids of tests/ops, tests/mixture "
        "and what is exported of converted networks (left out: each value of each parameter once "
        "at least, and all members where the test is marked whole), and all examples of properties",
    )
    parser.addoption(
        "--costs",
        metavar="FILE",
        help="prints worker and processor seconds by file; writes those of each test as JSON",
    )


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked torchrec is skipped where that cannot be used; a file stays on one worker."""
    problem = torchrec_problem()
    for item in items:
        if problem and item.get_closest_marker("torchrec"):
            item.add_marker(pytest.mark.skip(reason=str(problem)))
        if not item.get_closest_marker("xdist_group"):
            # A file's fixtures are made once. Worlds of ranks run side by side: their limits of
            # time are many times what they take
            item.add_marker(pytest.mark.xdist_group(_file(item)))
    # What takes longest begins first. The sort is stable: a file's tests keep their order
    seconds = recorded_seconds()
    items.sort(key=lambda item: -seconds.get(_file(item), 0))


def _file(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


def _values(item: pytest.Item) -> tuple[Hashable, ...]:
    """What each parametrisation has set: a mark its arguments together, a fixture its own.

    A value is known by its identity, which all members of a grid share: some cannot be compared.
    """
    values = {name: id(value) for name, value in item.callspec.params.items()}
    together: list[tuple[str, ...]] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.split(",") if isinstance(names, str) else names
        together.append(tuple(name.strip() for name in names))
    set_by_marks = {name for names in together for name in names}
    alone = [(name,) for name in values if name not in set_by_marks]
    return tuple(tuple(values[name] for name in names) for names in [*together, *alone])


class _Short:
    """Leaves out what is slow and members of grids, after all that the command line leaves out."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = {item for item in items if item.get_closest_marker("slow")}
        if left_out == set(items):
            return  # asked for by name
        grids: dict[tuple, list[pytest.Item]] = {}
        for item in items:
            if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
                gpu = item.get_closest_marker("gpu") is not None
                grids.setdefault((item.parent, item.originalname, gpu), []).append(item)
        for grid in grids.values():
            if grid[0].nodeid.startswith(GRIDS) and not grid[0].get_closest_marker("whole"):
                kept = thinning.covering([_values(item) for item in grid])
                left_out.update(set(grid) - {grid[place] for place in kept})
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item in left_out])
            items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """What is imported by now stays: no collection of garbage goes through it again, 0.2 s each."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # of what tests make, thousands are garbage at a time
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """A short run, unless told otherwise."""
    thinning.is_short = not config.getoption("--all")
    if thinning.is_short:
        config.pluginmanager.register(_Short())
    if path := config.getoption("--costs"):
        config.pluginmanager.register(Costs(Path(path)))


@pytest.fixture(autouse=True, scope="module")
def _what_a_file_leaves() -> Iterator[None]:
    """Nothing: no process group that the next file would find; its memory goes to the system."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    gc.freeze()  # compilers and libraries that this file imported: 0.7 s a walk through them
    pa.default_memory_pool().release_unused()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not at {folder}")
    return folder


@pytest.fixture(scope="session")
def funnel_table() -> pa.Table:
    """4,000 impressions: click depends on user × item and on price; buy follows some clicks."""
    rng = np.random.default_rng(7)
    rows = 4_000
    user, item = rng.integers(0, 40, rows), rng.integers(0, 15, rows)
    price = rng.lognormal(size=rows)
    taste = rng.normal(size=(40, 15))
    click = rng.random(rows) < 1 / (1 + np.exp(-(taste[user, item] - np.log(price))))
    buy = click & (rng.random(rows) < 0.2 + 0.5 * (user % 2))
    tags = [[f"t{item[n]}", f"t{user[n] % 7}"][: n % 3] for n in range(rows)]
    return pa.table(
        {
            "row": np.arange(rows),
            "user": user,
            "item": [f"i{i}" for i in item],
            "price": price,
            "tags": tags,
            "click": click.astype(int),
            "buy": buy.astype(int),
        }
    )


@pytest.fixture(scope="session")
def funnel_config() -> dict[str, Any]:
    """A raw config for `funnel_table`, small enough to train in a second."""
    return {
        "name": "funnel",
        "seed": 3,
        "data": {"group_column": "user"},
        "features": [
            {"kind": "categorical", "name": "user"},
            {"kind": "categorical", "name": "item", "dim": 8},
            {"kind": "numeric", "name": "price", "log": True, "buckets": 8, "dim": 4},
            {"kind": "list", "name": "tags", "dim": 4},
        ],
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "buy", "label": "buy", "observed_when": "click"},
        ],
        "model": {
            "embedding_dim": 4,
            "num_experts": 3,
            "expert": {"hidden": [16, 8], "dropout": 0.1},
            "tower": {"hidden": [8]},
        },
        "training": {
            "epochs": 3,
            "batch_size": 384,
            "eval_batch_size": 512,
            "embedding_backend": "plain",
        },
    }


@pytest.fixture(scope="module")
def train_funnel(funnel_table, tmp_path_factory):
    """Trains a config on most of a log (default: `funnel_table`); returns the run."""
    from mmoe.config import config_from_dict
    from mmoe.datasets.rows.splits import Splits
    from mmoe.train import train_run

    def train(raw: dict[str, Any], log: pa.Table = funnel_table):
        splits = Splits(train=log[:3000], validation=log[3000:3300], test=log[3300:], origin="log")
        folder = tmp_path_factory.mktemp("run") / "run"
        return train_run(config_from_dict(raw), folder, splits=splits).directory

    return train


@pytest.fixture(scope="module")
def s3_endpoint():
    """An S3 on loopback: moto's server."""
    moto_server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint, monkeypatch):
    """The address of a new bucket there, which this process and those it starts reach."""
    import fsspec

    for name, value in (
        ("AWS_ENDPOINT_URL", s3_endpoint),
        ("AWS_ACCESS_KEY_ID", "nobody"),
        ("AWS_SECRET_ACCESS_KEY", "nothing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid4().hex}"
    fsspec.filesystem("s3").clear_instance_cache()
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


@pytest.fixture
def mmoe(capsys, monkeypatch):
    """Runs a command in this process: (exit code, standard output, standard error)."""
    from mmoe import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mmoe", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory):
    """`run_ranks(module, ranks, *arguments)` → what each rank's `main` of tests.MODULE returns."""
    return lambda *given: ranks.run_ranks(tmp_path_factory.mktemp("world"), *given)

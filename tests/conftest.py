"""Fixtures shared by all tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from mmoe.embeddings import torchrec_problem

# One thread: the tests' tensors are too small to share out, and a busy machine would wait for both.
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked torchrec is skipped where that cannot be used."""
    problem = torchrec_problem()
    for item in items if problem else ():
        if item.get_closest_marker("torchrec"):
            item.add_marker(pytest.mark.skip(reason=str(problem)))


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
            "batch_size": 256,
            "eval_batch_size": 512,
            "embedding_backend": "plain",
        },
    }


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
def run_ranks(tmp_path_factory, repository):
    """`run_ranks(script, ranks, patience)` → what each rank wrote into its report.

    The script, a path below tests/, gets RANK WORLD_SIZE STORE REPORT; a world that hangs is ended
    after `patience` seconds.
    """

    def run(script: str, num_ranks: int, patience: float) -> list:
        folder = tmp_path_factory.mktemp("world")
        reports = [folder / f"{rank}.json" for rank in range(num_ranks)]
        path = Path(__file__).parent / script
        environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [
                    *(sys.executable, "-W", "error:::mmoe", str(path)),
                    *(str(rank), str(num_ranks), str(folder / "store"), str(report)),
                ],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, report in enumerate(reports)
        ]
        try:
            errors = [rank.communicate(timeout=patience)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(errors)
        assert not any("WARNING:" in error for error in errors), errors[0]
        return [json.loads(report.read_text()) for report in reports]

    return run

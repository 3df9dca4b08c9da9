"""Worlds of gloo ranks: processes that run one script together."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory, repository):
    """`run_ranks(script, ranks, patience)` → what each rank wrote into its report.

    The script, beside this file, gets RANK WORLD_SIZE STORE REPORT; a world that hangs is ended
    after `patience` seconds.
    """

    def run(script: str, num_ranks: int, patience: float) -> list:
        folder = tmp_path_factory.mktemp("world")
        reports = [folder / f"{rank}.json" for rank in range(num_ranks)]
        path = Path(__file__).with_name(script)
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
        return [json.loads(report.read_text()) for report in reports]

    return run

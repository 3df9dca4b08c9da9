"""Tasks of every kind on two ranks: the numbers of one process."""

import numpy as np
import pytest

from mmoe.parallel import ensure_process_group
from tests.train.kinds_world import trained

pytestmark = [pytest.mark.torchrec, pytest.mark.xdist_group("ranks")]


def test_two_ranks_are_one_process(run_ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    first, _ = run_ranks("train/kinds_world.py", 2, 200)
    ensure_process_group()
    alone = trained(tmp_path / "alone")
    assert first["tasks"].keys() == alone["tasks"].keys()
    np.testing.assert_allclose(first["means"][0], alone["means"][0], rtol=2e-3)
    for task, values in alone["tasks"].items():
        for metric in ("rmse", "logloss"):
            if values.get(metric) is not None:
                assert first["tasks"][task][metric] == pytest.approx(values[metric], rel=2e-3)

"""The log of `benchmarks.new_task`: five labels of known rates, as alike as is asked for."""

import numpy as np
import pytest

from benchmarks.new_task import NEW, OLD, TASKS, task_log
from mmoe.datasets.bundled.synthetic import generate_funnel


@pytest.fixture(scope="module", name="logs")
def _logs():
    sizes = {"users": 300, "items": 100, "seed": 4}
    return {rho: task_log(20_000, correlation=rho, **sizes) for rho in (0.0, 0.98)}


def test_its_rows_are_those_of_the_funnel(logs):
    funnel = generate_funnel(20_000, users=300, items=100, seed=4).table
    names = funnel.column_names[:-2]
    assert logs[0.98].select(names).equals(funnel.select(names))
    assert logs[0.98].column_names == [*names, *TASKS] and [*OLD, NEW] == list(TASKS)


def test_labels_have_their_rates_and_correlation(logs):
    phi = {}
    for rho, log in logs.items():
        labels = np.stack([log[name].to_numpy() for name in TASKS])
        assert labels.mean(axis=1) == pytest.approx(list(TASKS.values()), abs=0.015)
        phi[rho] = np.corrcoef(labels)[np.triu_indices(len(TASKS), 1)]
    # Labels are drawn, so they are less alike than their logits
    assert abs(phi[0.0].mean()) < 0.06 and phi[0.98].min() > 0.15

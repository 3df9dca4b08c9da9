"""What every pool answers, also one that says nothing of it."""

import pytest
import torch

from mmoe.mixture import ExpertPool, MixedExperts, MLPExperts, Pool
from mmoe.mixture.inputs import Inputs, RequestColumns
from mmoe.ops.row_sums import Owners

COLUMNS = RequestColumns([0, 3], 4)


class Twice(MLPExperts):
    """Reads its input otherwise than the pool it is derived from, and says nothing of requests."""

    def dense(self, inputs, record=None):
        return [2 * y for y in super().dense(inputs, record)]


class Own(Pool):
    """Says what it has to, and nothing else."""

    output_dim = 3

    def __len__(self):
        return 2

    def dense(self, inputs):
        return [inputs[0][:, :3], inputs[-1][:, 1:]]


def modules(number):
    return ExpertPool([torch.nn.Linear(4, 3) for _ in range(number)])


POOLS = {
    "equal": lambda: MLPExperts(2, 4, [5, 3]),
    "derived": lambda: Twice(2, 4, [5, 3]),
    "modules": lambda: modules(2),
    "stacked": lambda: ExpertPool([torch.nn.Linear(4, 3) for _ in range(2)], stacked=True),
    "own": Own,
    "of kinds": lambda: MixedExperts([MLPExperts(2, 4, [3]), modules(1)]),
    "of stages": lambda: MixedExperts([MLPExperts(2, 4, [3]), modules(1)], columns=[None] * 2),
    "of requests": lambda: MixedExperts(
        [MLPExperts(1, 2, [3]), MLPExperts(2, 4, [3])], requests=COLUMNS
    ),
    "empty": lambda: MLPExperts(2, 4, [3]).part([]),
}


@pytest.fixture(name="rows")
def _rows():
    owners = Owners(torch.tensor([0, 1, 1]), 2)
    return Inputs(x_QP=torch.randn(2, 2), x_BR=torch.randn(3, 2), owners=owners, columns=COLUMNS)


@pytest.mark.parametrize("name", POOLS)
def test_every_pool_computes_rows_of_requests(name, rows):
    pool = POOLS[name]()
    expected = pool.dense([rows.whole])
    torch.testing.assert_close(pool.of_requests(rows), expected)
    shared = pool.shared_outputs(rows)
    assert len(shared) == pool.shared_work(rows).experts == (1 if name == "of requests" else 0)
    torch.testing.assert_close(shared, expected[: len(shared)])


@pytest.mark.parametrize("name", POOLS)
def test_every_pool_says_what_its_experts_are(name):
    pool = POOLS[name]()
    assert sum(pool.expert_sizes()) == sum(weight.numel() for weight in pool.parameters())
    assert [e for _, own in pool.expert_kinds(len(pool)) for e in own] == list(range(len(pool)))
    assert pool.expert_stages == ((range(2), range(2, 3)) if name == "of stages" else ())
    assert (pool.expert_modules is not None) == (name == "modules")


def test_what_a_class_says_itself_of_requests_stays():
    class Sharing(MLPExperts):
        def shared_work(self, rows):
            return "mine"

    assert Sharing.of_requests is Pool.of_requests
    assert Sharing.shared_work is not Pool.shared_work

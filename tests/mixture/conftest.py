import pytest

from mmoe.mixture import Pool


class _Counts(Pool):
    """A pool that gives rows back, and remembers how many each expert got."""

    output_dim = None

    def __init__(self, num_experts):
        super().__init__()
        self.num_experts, self.rows_E = num_experts, []

    def __len__(self):
        return self.num_experts

    def dense(self, inputs):
        raise AssertionError("not asked for")

    def grouped(self, rows, offsets_E1):
        self.rows_E = offsets_E1.diff().tolist()
        return rows


@pytest.fixture(scope="session")
def counts():
    """Of a number of experts: a pool that counts the rows of each."""
    return _Counts

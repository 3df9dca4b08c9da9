from itertools import product

import pytest

from tests.thinning import covering


@pytest.mark.parametrize("sizes", [(1,), (19, 3), (4, 11, 4), (2, 2, 2, 2), (3, 1, 5)])
def test_every_value_of_every_parameter_stays(sizes):
    grid = list(product(*map(range, sizes)))
    kept = [grid[place] for place in covering(grid)]
    for place, size in enumerate(sizes):
        assert {member[place] for member in kept} == set(range(size))
    assert len(kept) < sum(sizes) or len(kept) == len(grid)


def test_values_are_shared_out_evenly():
    grid = list(product("abcdef", ("fp32", "bf16", "fp64")))
    kept = [dtype for _, dtype in (grid[place] for place in covering(grid))]
    assert sorted(kept) == ["bf16"] * 2 + ["fp32"] * 2 + ["fp64"] * 2


def test_a_list_of_rows_stays_whole():
    """As refusals are: each has arguments and a text that no other has."""
    rows = [((number, 0), f"text {number}") for number in range(9)]
    assert covering(rows) == list(range(9))
    assert covering([]) == []


class _Kept:
    """A plugin that remembers which tests would run."""

    def pytest_collection_finish(self, session):
        self.nodes = [item.nodeid for item in session.items]


@pytest.mark.parametrize(
    ("test", "members"),
    [
        ("mixture/test_checks.py::test_inputs", 11 * 2),
        ("ops/test_exchange.py::test_every_operator_is_its_reference", 30 * 11),
    ],
)
def test_what_each_pair_shows_alone_stays_whole(repository, test, members):
    """What each implementation refuses, each operator's own cases."""
    kept = _Kept()
    path = str(repository / "tests" / test)
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", path], plugins=[kept])
    assert len(kept.nodes) == members

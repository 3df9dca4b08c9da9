"""`benchmarks.network`: what it tells of its times."""

import pytest

from benchmarks.network import AUTO, FIXED, _results
from benchmarks.racing.spread import sums_of


def test_regret_and_gain_of_a_choice():
    def row(name, best, auto, rows, weights):
        ms = {**dict.fromkeys(FIXED, 100.0), "rows": rows, "weights": weights, AUTO: auto}
        return {"setting": name, "ms": ms, "best": best, "regret": auto / ms[best]}

    rows = [row("a", "rows", 10.0, 10.0, 40.0), row("b", "weights", 11.0, 40.0, 10.0)]
    regret, worst, gain = _results(rows)
    assert regret.spread.median == pytest.approx(1.05)
    assert (worst.spread.median, worst.note) == (pytest.approx(1.1), "b")
    # One mode everywhere: 20 in the geometric mean, over that of 10 and 11
    assert gain.spread.median == pytest.approx(20 / 110**0.5)


def test_what_was_sent_is_what_is_told():
    answer = {"told": 3, "counted": 3, "bound": 2}
    assert sums_of("bytes", [answer, answer]) == {"told": 6, "counted": 6, "bound": 4}
    with pytest.raises(ValueError, match="bytes: expected the 3 bytes that were sent, got 4"):
        sums_of("bytes", [{**answer, "told": 4}])

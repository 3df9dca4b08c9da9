"""The benchmark of explanations, small."""

from benchmarks.explain import largest_error, race_passes
from benchmarks.racing.harness import Clock


def test_a_race_and_the_error_have_their_keys():
    (passes,) = race_passes(Clock(device="cpu", rounds=1, seconds=0), 200)
    assert passes.key == "explain_passes" and passes.spread.median > -1
    error = largest_error(200)
    assert error.key == "explain_error" and error.spread.median <= 1e-6
    assert [one["model"] for one in error.details] == ["mmoe", "ple", "top_k"]

"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "hierarchical_bytes_over_bound": Target(1.05, at_most=True),
    "hierarchical_gain_2x2": Target(1.2),
    "hierarchical_gain_2x4": Target(1.3),
    "pipelined_gain": Target(1.25),
    "pipelined_over_own_rows": Target(1.0),
    "adaptive_regret": Target(1.05, at_most=True),
    "adaptive_regret_worst": Target(1.25, at_most=True),
    "adaptive_gain": Target(1.2),
    "shadow_gain": Target(1.4),
    "placement_gain": Target(1.25),
    "step_gain": Target(1.1),
}

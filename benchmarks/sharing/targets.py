"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "joint_step_gain": Target(1.9),
    "budget_step_gain": Target(2.8),
    "joint_quality": Target(0.0),
    "joint_quality_low": Target(-1.0),
    "budget_quality": Target(0.0),
    "budget_quality_low": Target(-1.0),
    "domains_16_over_1": Target(1.2, at_most=True),
    "small_domain_gain": Target(0.0),
}

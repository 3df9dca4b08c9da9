"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "joint_step_gain": Target(1.9),
    "budget_step_gain": Target(2.8),
    "tasks_64_over_2": Target(2.1, at_most=True),
    "vs_rechub_form_T64": Target(2.0),
    "vs_tzrec_form_T64": Target(3.0),
    "joint_quality": Target(0.0),
    "joint_quality_low": Target(-1.0),
    "budget_quality": Target(0.0),
    "budget_quality_low": Target(-1.0),
    "request_train_gain": Target(1.6),
    "request_train_gain_exact": Target(1.35),
    "request_score_gain": Target(1.7),
    "request_score_gain_exact": Target(1.35),
    "request_equal": Target(1.0),
    "domains_16_over_1": Target(1.2, at_most=True),
    "small_domain_gain": Target(0.0),
}

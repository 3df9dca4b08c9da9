"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "wire_bytes_over_bound": Target(1.03, at_most=True),
    "vs_t_dispatches": Target(2.5),
    "two_rank_efficiency_fp32": Target(0.85),
    "two_rank_efficiency_bf16": Target(0.85),
    "weak_scaling": Target(0.80),
}

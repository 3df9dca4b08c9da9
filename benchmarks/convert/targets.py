"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "lines": Target(1, at_most=True),
    "equal_at_start": Target(1e-5, at_most=True),
    "equal_at_start_fp64": Target(1e-10, at_most=True),
    "vs_naive_index_E16": Target(1.2),
    "vs_naive_mask_E16": Target(4),
    "steps_to_dense_loss": Target(0.85, at_most=True),
}
# Without a target
BESIDE = ("swin_accuracy",)

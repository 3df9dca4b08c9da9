"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "gemm_share_train_big_bf16": Target(0.60),
    "gemm_share_train_big_fp32": Target(0.55),
    "vs_plain_torch_big_bf16": Target(1.5),
    "vs_plain_torch_big_fp32": Target(1.8),
    "vs_plain_torch_ranker_bf16": Target(1.3),
    "vs_torch_rechub_big": Target(9),
    "vs_deepctr_big": Target(12),
    "big_over_small": Target(0.85),
    "auc_gap": Target(0.001, at_most=True),
    "ne_gap": Target(0.001, at_most=True),
    "peak_rss_ratio_stream": Target(1.15, at_most=True),
    "startup_seconds": Target(8, at_most=True),
    "help_seconds": Target(0.5, at_most=True),
}

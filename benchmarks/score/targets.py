"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "gemm_share_score_bf16": Target(0.50),
    "gemm_share_score_fp32": Target(0.60),
    "vs_before": Target(1.3),
    "vs_torch_rechub_score": Target(3.2),
    "vs_deepctr_score": Target(2.2),
    "peak_rss_ratio": Target(1.15, at_most=True),
    "cores_gain": Target(1.7),
    "ray_overhead": Target(1.25, at_most=True),
    "spark_rss_ratio": Target(1.3, at_most=True),
}

"""What every key should reach."""

from collections.abc import Mapping

from benchmarks.racing.results import Target

TARGETS: Mapping[str, Target] = {
    "gemm_share_dense_bf16": Target(0.75),
    "gemm_share_dense_fp32": Target(0.70),
    "vs_loop_dense_bf16": Target(1.3),
    "vs_loop_dense_fp32": Target(2.0),
    "vs_grouped_mm_E8_fp32": Target(1.8),
    "vs_grouped_mm_E64_fp32": Target(1.8),
    "vs_grouped_mm_E256_fp32": Target(1.8),
    "vs_grouped_mm_E8_bf16": Target(1.15),
    "vs_grouped_mm_E64_bf16": Target(1.15),
    "vs_grouped_mm_E256_bf16": Target(1.15),
    "vs_naive_mask_E64": Target(30),
    "vs_naive_index_E256": Target(3),
    "vs_t_layers_independent": Target(1.25),
    "vs_t_layers_correlated": Target(2.5),
    "vs_merged_independent": Target(0.95),
    "vs_merged_correlated": Target(1.6),
    "vs_best_trained": Target(1.2),
    "vs_capacity_padded": Target(1.2),
    "planning_share": Target(0.15, at_most=True),
    "auto_regret": Target(1.15, at_most=True),
}

"""Pictures of a run and one self-contained HTML page; reads the run's JSON files only."""

from mmoe.report.comparison import comparison_figure, write_comparison_page
from mmoe.report.explanation import explanation_figure, write_explanation_page
from mmoe.report.figures import (
    calibration_figure,
    gate_heatmap_figure,
    learning_curve_figure,
    roc_figure,
)
from mmoe.report.page import write_report

__all__ = [
    "calibration_figure",
    "comparison_figure",
    "explanation_figure",
    "gate_heatmap_figure",
    "learning_curve_figure",
    "roc_figure",
    "write_comparison_page",
    "write_explanation_page",
    "write_report",
]

"""The pictures: what they show, nothing overlapping, no pyplot."""

import sys
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mmoe.report import calibration_figure, gate_heatmap_figure, learning_curve_figure, roc_figure
from mmoe.report.figures import best_epoch, expert_groups, wilson_interval
from mmoe.report.style import columns_for, themed_svg


def _texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def _overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes cut into each other by more than a point."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for axes in figure.axes
        for text in [*axes.texts, axes.title]
        if text.get_text() and text.get_visible() and text.get_rotation() == 0
    ]
    point = figure.dpi / 72
    return [
        (a, b)
        for (a, one), (b, two) in combinations(boxes, 2)
        if min(one.x1, two.x1) - max(one.x0, two.x0) > point
        and min(one.y1, two.y1) - max(one.y0, two.y0) > point
    ]


def _level(gates, experts, level=1, visible=None):
    weights = np.random.default_rng(0).gamma(0.7, size=(len(gates), len(experts)))
    visible = np.ones(weights.shape, bool) if visible is None else visible
    weights = np.where(visible, weights, 0)
    weights /= weights.sum(1, keepdims=True)
    return {
        "level": level,
        "gates": gates,
        "experts": experts,
        "mean_weight": weights.tolist(),
        "entropy": [0.5] * len(gates),
        "effective_experts": [1.65] * len(gates),
        "visible": visible.tolist(),
    }


def _history(tasks, epochs=5):
    entries = [
        {
            "epoch": epoch,
            "loss": {task: 0.5 / epoch for task in tasks},
            "validation": {
                task: {"auc": 0.7 + 0.01 * epoch, "logloss": 0.6 / epoch} for task in tasks
            },
            "best": epoch <= 3,
        }
        for epoch in range(1, epochs + 1)
    ]
    return {"epochs": entries, "monitor": "mean.auc"}


@pytest.mark.parametrize(("gates", "experts"), [(1, 1), (3, 20), (12, 64)])
def test_heat_map_of_any_size_has_no_overlapping_text(gates, experts):
    level = _level([f"task_{i}" for i in range(gates)], [f"expert {i + 1}" for i in range(experts)])
    figure = gate_heatmap_figure([level])
    assert _overlaps(figure) == []
    width, height = figure.get_size_inches() * 72
    canvas = FigureCanvasAgg(figure)
    for text in figure.axes[0].texts:
        box = text.get_window_extent(canvas.get_renderer()).transformed(
            figure.dpi_scale_trans.inverted()
        )
        assert box.x0 * 72 >= -1, text
        assert box.y0 * 72 >= -1, text
        assert box.x1 * 72 <= width + 1, text
        assert box.y1 * 72 <= height + 1, text


def test_heat_map_writes_each_weight_and_strikes_out_what_a_gate_may_not_see():
    visible = np.array([[True, False, True], [False, True, True]])
    level = _level(["click", "buy"], ["click 1", "buy 1", "shared 1"], visible=visible)
    figure = gate_heatmap_figure([level])
    texts = _texts(figure)
    for row, seen in zip(level["mean_weight"], visible, strict=True):
        for weight, shown in zip(row, seen, strict=True):
            assert (f"{weight:.2f}" in texts) == shown
    cells, struck, _ = figure.axes[0].collections
    assert len(cells.get_paths()) == visible.sum()
    assert len(struck.get_paths()) == (~visible).sum()
    assert {"click", "buy", "shared", "0.50", "1.65"} <= set(texts)
    before = "matplotlib.pyplot" in sys.modules
    with pytest.raises(ValueError, match="this model has no gates"):
        gate_heatmap_figure([])
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_the_strongest_cell_of_all_levels_has_the_full_colour():
    levels = [_level(["a", "b"], ["x", "y"], level=1), _level(["a", "b"], ["x", "y", "z"], level=2)]
    figure = gate_heatmap_figure(levels)
    alphas = np.concatenate([c.get_facecolor()[:, 3] for c in figure.axes[0].collections[:4:2]])
    weights = np.concatenate([np.ravel(level["mean_weight"]) for level in levels])
    np.testing.assert_allclose(alphas, 0.04 + 0.96 * weights / weights.max(), atol=1e-9)
    assert {"level 1", "level 2"} <= set(_texts(figure))


def test_effective_experts_of_the_mean_are_worked_out_where_absent():
    level = _level(["click"], ["expert 1", "expert 2"])
    level["mean_weight"] = [[0.5, 0.5]]
    assert "2.00" in _texts(gate_heatmap_figure([level]))
    level["effective_experts_of_mean"] = [1.77]
    assert "1.77" in _texts(gate_heatmap_figure([level]))


def test_long_names_are_tilted_or_cut_not_overlapping():
    tasks = [f"a_rather_long_task_name_{i}" for i in range(6)]
    experts = [f"{task} {i}" for task in tasks for i in (1, 2)] + ["shared 1", "shared 2"]
    figure = gate_heatmap_figure([_level(tasks, experts, level=n) for n in (1, 2)])
    assert _overlaps(figure) == []
    assert any(text.get_rotation() == 45 for text in figure.axes[0].texts)


def test_expert_groups_are_neighbours_that_differ_in_the_number():
    names = ["click 1", "click 2", "shared 1", "bottom", "7"]
    assert expert_groups(names) == [
        ("click", ["1", "2"]),
        ("shared", ["1"]),
        ("bottom", [""]),
        ("7", [""]),
    ]


@pytest.mark.parametrize("num_tasks", [1, 5])
def test_learning_curves_draw_every_task(num_tasks):
    tasks = [f"task_{i}" for i in range(num_tasks)]
    figure = learning_curve_figure(_history(tasks))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title] == tasks
    assert sum(axes.get_visible() for axes in figure.axes) == 2 * num_tasks
    assert _texts(figure).count("0.7300") == num_tasks
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["training", "validation", "best epoch"]


def test_learning_curves_leave_gaps_where_a_metric_is_unknown():
    history = _history(["click"])
    for entry in history["epochs"]:
        entry["validation"]["click"]["auc"] = None
    assert "could not be computed\n(one class only?)" in _texts(learning_curve_figure(history))
    history["epochs"][3]["validation"]["click"]["auc"] = 0.7
    lower = learning_curve_figure(history).axes[1]
    assert list(lower.get_lines()[0].get_xdata()) == [4]
    for entry in history["epochs"]:
        entry["validation"]["click"]["ne"] = 0.9
    history["monitor"] = "click.ne"
    assert learning_curve_figure(history).axes[1].get_ylabel() == "validation NE"


def test_the_best_epoch_is_the_last_one_that_improved():
    assert best_epoch(_history(["click"])["epochs"]) == 3
    assert best_epoch([{"epoch": 1, "best": False}]) is None
    with pytest.raises(ValueError, match="there is no epoch to draw"):
        learning_curve_figure({"epochs": []})


def test_roc_shows_model_and_oracle_with_their_areas():
    roc = {"fpr": [0, 0.2, 1], "tpr": [0, 0.7, 1]}
    figure = roc_figure(
        {"click": {"roc": roc, "oracle_roc": roc}, "buy": {"roc": None, "oracle_roc": None}},
        {"click": {"auc": 0.7512, "oracle_auc": 0.8}, "buy": {"auc": None}},
    )
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["model 0.751", "oracle 0.800"]
    assert _texts(figure) == ["one class only:\nthere is no ROC"]


def test_calibration_draws_points_intervals_and_histogram():
    bins = [{"mean_prediction": p, "positive_rate": p, "rows": 100} for p in (0.1, 0.2, 0.3)]
    curves = {"calibration": bins, "histogram": {"edges": [0, 0.2, 0.4], "rows": [150, 150]}}
    empty = {"calibration": [], "histogram": {"edges": [], "rows": []}}
    never = {"calibration": [bins[0] | {"positive_rate": 0}], "histogram": curves["histogram"]}
    figure = calibration_figure(
        {"click": curves, "nothing": empty, "never": never},
        {"click": {"calibration": 1.0, "ece": 0.01}},
    )
    upper = figure.axes[0]
    np.testing.assert_allclose(upper.get_lines()[-1].get_xdata(), [0.1, 0.2, 0.3])
    assert len(upper.collections[0].get_paths()) == 3
    assert upper.get_xlim() == upper.get_ylim()
    texts = _texts(figure)
    assert "calibration 1.000 · ECE 0.0100" in texts
    assert "no observed row" in texts
    assert "no positive row\nto compare with" in texts


def test_wilson_interval_matches_a_textbook_value():
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611.
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_panels_fit_into_four_columns_at_most():
    for panels in range(1, 20):
        columns = columns_for(panels)
        assert 1 <= columns <= 4
        assert -(-panels // columns) * columns - panels < columns


def test_svg_follows_the_theme_and_repeats_itself_exactly():
    level = _level(["<b>&"], ["expert 1", "expert 2"])
    svg = themed_svg(gate_heatmap_figure([level]), "gates", 'a "picture"')
    assert svg == themed_svg(gate_heatmap_figure([level]), "gates", 'a "picture"')
    assert 'aria-label="a &quot;picture&quot;"' in svg
    assert "fill: var(--heat, #084a91)" in svg
    assert "&lt;b&gt;&amp;" in svg
    assert "<script" not in svg
    assert 'id="gates-' in svg

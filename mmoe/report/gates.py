"""The gate heat map: how much of each expert each task uses."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mmoe.report import style

# All lengths are points: the picture is set by hand, so that nothing can overlap.
_WIDTH = 770.0
_ROW = 24.0
_GAP = 1.5
_WIDEST_CELL = 66.0
_GROUP_GAP = 7.0
_LETTER = 0.6  # mean width of a letter, in parts of the type size
_HEADINGS = ("entropy\n(nats)", "experts\nper sample", "experts\nover all")
_STATISTIC = 58.0
_LEGEND = 34.0
# Beyond this share of the darkest cell, light text is easier to read than dark text (either theme).
_LIGHT_TEXT_FROM = 0.7


def gate_heatmap_figure(
    gates: Sequence[Mapping[str, Any]], *, figure: Figure | None = None
) -> Figure:
    """Draws mean gate weights by task and expert, one map a level, and how many experts that makes.

    Args:
        gates: The `gates` section of curves.json, or `GateStatistics.summary()`: for each level
            `gates`, `experts`, `mean_weight` [G, E], `entropy` [G] in nats, `effective_experts`
            [G], `visible` [G, E]; `effective_experts` and `effective_experts_of_mean` are worked
            out where they are absent, and a `title` is written in the place of the level's number.
        figure: To draw into, without axes, such as pyplot's; None: a new one, outside its state.

    Returns:
        The matplotlib Figure. The darkest cell is the largest mean weight of
        all levels; a struck-through cell is an expert which the gate may not see.

    Raises:
        ValueError: There is no level.

    Example:
        >>> level = {
        ...     "level": 1, "gates": ["click", "buy"], "experts": ["expert 1", "expert 2"],
        ...     "mean_weight": [[0.9, 0.1], [0.4, 0.6]], "entropy": [0.3, 0.6],
        ...     "effective_experts": [1.35, 1.82], "visible": [[True, True], [True, True]],
        ... }
        >>> figure = gate_heatmap_figure([level])
        >>> "0.90" in [text.get_text() for text in figure.axes[0].texts]
        True
    """
    if not gates:
        raise ValueError(
            "gates: there is no level to draw; this model has no gates, or no expert is trained: "
            "the best weights are those before the first epoch"
        )
    levels = [_Level(entry, len(gates)) for entry in gates]
    width = max(level.right for level in levels)
    height = sum(level.height for level in levels) + _LEGEND + 14.0 * (len(levels) - 1)
    figure = style.new_figure(width / 72, height / 72, figure, layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    largest = max(max(float(level.weight_GE.max(initial=0)) for level in levels), 1e-12)
    top = 0.0
    for level in levels:
        level.draw(axes, top, largest)
        top += level.height + 14.0
    _draw_scale(axes, levels[0].left, height - 14.0, largest)
    return figure


def expert_groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Groups neighbours whose names differ in the last number only: `("click", ["1", "2"])`."""
    split = [
        (head, tail) if tail.isdigit() and head else (name, "")
        for name in names
        for head, _, tail in [name.rpartition(" ")]
    ]
    return [(head, [tail for _, tail in group]) for head, group in groupby(split, lambda s: s[0])]


class _Level:
    """One level of gates as arrays, and where its parts lie."""

    def __init__(self, entry: Mapping[str, Any], levels: int) -> None:
        self.weight_GE = np.array(entry["mean_weight"], dtype=float)
        share_GE = self.weight_GE / np.maximum(self.weight_GE.sum(axis=1, keepdims=True), 1e-300)
        logs_GE = np.log(np.where(share_GE > 0, share_GE, 1.0))
        over_all = entry.get("effective_experts_of_mean", np.exp(-(share_GE * logs_GE).sum(axis=1)))
        per_sample = entry.get("effective_experts", np.exp(entry["entropy"]))
        self.statistics_G3 = np.stack([entry["entropy"], per_sample, over_all], axis=1)
        self.title = entry.get("title", f"level {entry.get('level', 1)}" if levels > 1 else "")
        self.gates = [style.shorten(name, 24) for name in entry["gates"]]
        self.visible_GE = np.array(entry["visible"], dtype=bool)
        self.groups = [
            (style.shorten(head, 24), numbers) for head, numbers in expert_groups(entry["experts"])
        ]
        experts, letter = len(entry["experts"]), _LETTER * style.SIZE_TEXT
        self.left = 14 + letter * max(map(len, self.gates))
        room = _WIDTH - self.left - _STATISTIC * 3 - _GROUP_GAP * (len(self.groups) - 1)
        self.cell = min(room / experts, _WIDEST_CELL)
        sizes = [len(numbers) for _, numbers in self.groups]
        group_of_E = np.repeat(np.arange(len(self.groups)), sizes)
        self.x_E = self.left + self.cell * np.arange(experts) + _GROUP_GAP * group_of_E
        self.right = max(self.x_E[-1] + self.cell + _STATISTIC * 3 + 4, self.left + 240)
        self.tilted = any(
            letter * len(head) > self.cell * len(numbers) + _GROUP_GAP
            for head, numbers in self.groups
        )
        # The headings of the statistics take two lines, tilted names as much as the longest needs.
        longest = letter * max(len(head) for head, _ in self.groups)
        self.heading = 34.0 + 0.72 * longest * self.tilted
        self.first = (20.0 if self.title else 0.0) + self.heading  # of the rows, below the top
        self.height = self.first + _ROW * len(self.gates)

    def draw(self, axes: Axes, top: float, largest: float) -> None:
        if self.title:
            bold = {"fontsize": style.SIZE_TITLE, "fontweight": "bold", "ha": "left"}
            _write(axes, 2, top + 10, self.title, **bold)
        first, edge = top + self.first, self.x_E[-1] + self.cell
        self._draw_expert_names(axes, first)
        for column, heading in enumerate(_HEADINGS):
            x = edge + _STATISTIC * (column + 0.55)
            _write(axes, x, first - 6, heading, **_SMALL, va="bottom")
            for row, value in enumerate(self.statistics_G3[:, column]):
                _write(axes, x, first + _ROW * (row + 0.5), f"{abs(value):.2f}")
        for row, name in enumerate(self.gates):
            _write(axes, self.left - 8, first + _ROW * (row + 0.5), name, ha="right")
        self._draw_cells(axes, first, largest)

    def _draw_cells(self, axes: Axes, first: float, largest: float) -> None:
        gap, wide = min(_GAP, self.cell / 8), self.cell >= 27
        cells, colours, struck = [], [], []
        for (row, expert), weight in np.ndenumerate(self.weight_GE):
            x, y = float(self.x_E[expert]), first + _ROW * row
            right, bottom = x + self.cell - gap, y + _ROW - gap
            if not self.visible_GE[row, expert]:
                reach = 0.2 * self.cell
                struck.append([(x + reach, bottom - 4), (right - reach, y + 4)])
                continue
            strength = float(weight) / largest
            cells.append(Rectangle((x, y), right - x, bottom - y))
            # Even weight 0 gets a trace of colour: it is a cell, unlike a struck-through one.
            colours.append((style.HEAT, 0.04 + 0.96 * strength))
            if self.cell >= 17:
                text = f"{weight:.2f}" if wide else f"{weight:.2f}".removeprefix("0")
                colour = style.ON_HEAT if strength > _LIGHT_TEXT_FROM else style.INK
                size = style.SIZE_TEXT if wide else 6.5
                middle = (x + right) / 2, (y + bottom) / 2
                _write(axes, *middle, text, fontsize=size, color=colour)
        axes.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="none"))
        axes.add_collection(LineCollection(struck, colors=style.TRAIN, linewidths=0.9, alpha=0.6))

    def _draw_expert_names(self, axes: Axes, first: float) -> None:
        # Where cells are narrow only every so many experts carry their number.
        every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**9) if step * self.cell >= 15)
        tilt = {"ha": "left", "rotation": 45} if self.tilted else {}
        start = 0
        for head, numbers in self.groups:
            last = start + len(numbers) - 1
            middle = (self.x_E[start] + self.x_E[last] + self.cell) / 2
            bottom = first - (18 if numbers != [""] else 6)
            _write(axes, middle, bottom, head, va="bottom", **tilt)
            for offset, number in enumerate(numbers):
                if offset == 0 or (offset + 1) % every == 0:
                    x = self.x_E[start + offset] + self.cell / 2
                    _write(axes, x, first - 6, number, **_SMALL, va="bottom")
            start = last + 1


def _draw_scale(axes: Axes, left: float, y: float, largest: float) -> None:
    steps, step = 7, 17.0
    boxes = [Rectangle((left + step * i, y - 5), step - _GAP, 10) for i in range(steps)]
    colours = [(style.HEAT, 0.04 + 0.96 * i / (steps - 1)) for i in range(steps)]
    axes.add_collection(PatchCollection(boxes, facecolors=colours, edgecolors="none"))
    _write(axes, left - 6, y, "0", **_SMALL, ha="right")
    _write(axes, left + step * steps + 6, y, f"{largest:.2f}  mean weight", **_SMALL, ha="left")


_SMALL: dict[str, Any] = {"fontsize": style.SIZE_SMALL, "color": style.MUTED}


def _write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    usual = {"fontsize": style.SIZE_TEXT, "color": style.INK, "ha": "center", "va": "center"}
    axes.text(x, y, text, **{**usual, "rotation_mode": "anchor", **how})

"""The gate heat map: how much of each expert each task uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class _Level:
    """One level of gates, as arrays."""

    title: str
    gates: list[str]
    experts: list[str]
    weight_GE: np.ndarray
    visible_GE: np.ndarray
    statistics_G3: np.ndarray


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a level's parts lie."""

    left: float
    cell: float
    x_E: np.ndarray
    heading: float
    tilted: bool
    right: float

    def height(self, level: _Level) -> float:
        return _title(level) + self.heading + _ROW * len(level.gates)


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
        raise ValueError("gates: there is no level to draw; this model has no gates")
    levels = [_level(entry, len(gates)) for entry in gates]
    layouts = [_layout(level) for level in levels]
    width = max(layout.right for layout in layouts)
    height = sum(layout.height(level) for layout, level in zip(layouts, levels, strict=True))
    height += _LEGEND + 14.0 * (len(levels) - 1)
    figure = style.new_figure(width / 72, height / 72, figure, layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    largest = max(max(float(level.weight_GE.max(initial=0)) for level in levels), 1e-12)
    top = 0.0
    for level, layout in zip(levels, layouts, strict=True):
        _draw_level(axes, level, layout, top, largest)
        top += layout.height(level) + 14.0
    _draw_scale(axes, layouts[0].left, height - 14.0, largest)
    return figure


def _level(entry: Mapping[str, Any], levels: int) -> _Level:
    weight_GE = np.array(entry["mean_weight"], dtype=float)
    share_GE = weight_GE / np.maximum(weight_GE.sum(axis=1, keepdims=True), 1e-300)
    logs_GE = np.log(np.where(share_GE > 0, share_GE, 1.0))
    over_all = entry.get("effective_experts_of_mean", np.exp(-(share_GE * logs_GE).sum(axis=1)))
    per_sample = entry.get("effective_experts", np.exp(entry["entropy"]))
    return _Level(
        title=entry.get("title", f"level {entry.get('level', 1)}" if levels > 1 else ""),
        gates=list(entry["gates"]),
        experts=list(entry["experts"]),
        weight_GE=weight_GE,
        visible_GE=np.array(entry["visible"], dtype=bool),
        statistics_G3=np.stack([entry["entropy"], per_sample, over_all], axis=1),
    )


def expert_groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Groups neighbours whose names differ in the last number only: `("click", ["1", "2"])`."""
    split = [
        (head, tail) if tail.isdigit() and head else (name, "")
        for name in names
        for head, _, tail in [name.rpartition(" ")]
    ]
    return [(head, [tail for _, tail in group]) for head, group in groupby(split, lambda s: s[0])]


def _title(level: _Level) -> float:
    return 20.0 if level.title else 0.0


def _layout(level: _Level) -> _Layout:
    groups = expert_groups(level.experts)
    left = 14 + max(_text_width(style.shorten(name, 24), style.SIZE_TEXT) for name in level.gates)
    room = _WIDTH - left - _STATISTIC * 3 - _GROUP_GAP * (len(groups) - 1)
    cell = min(room / len(level.experts), _WIDEST_CELL)
    sizes = [len(numbers) for _, numbers in groups]
    group_of_E = np.repeat(np.arange(len(groups)), sizes)
    x_E = left + cell * np.arange(len(level.experts)) + _GROUP_GAP * group_of_E
    fits = all(
        _text_width(style.shorten(head, 24), style.SIZE_TEXT) <= cell * len(numbers) + _GROUP_GAP
        for head, numbers in groups
    )
    longest = max(_text_width(style.shorten(head, 24), style.SIZE_TEXT) for head, _ in groups)
    return _Layout(
        left=left,
        cell=cell,
        x_E=x_E,
        tilted=not fits,
        # The headings of the statistics take two lines, tilted names as much as the longest needs.
        heading=34.0 if fits else 34.0 + 0.72 * longest,
        right=max(x_E[-1] + cell + _STATISTIC * 3 + 4, left + 240),
    )


def _draw_level(axes: Axes, level: _Level, layout: _Layout, top: float, largest: float) -> None:
    if level.title:
        _write(axes, 2, top + 10, level.title, size=style.SIZE_TITLE, weight="bold", ha="left")
    first = top + _title(level) + layout.heading
    _draw_expert_names(axes, level, layout, first)
    edge = layout.x_E[-1] + layout.cell
    for column, heading in enumerate(_HEADINGS):
        x = edge + _STATISTIC * (column + 0.55)
        _write(axes, x, first - 6, heading, size=style.SIZE_SMALL, colour=style.MUTED, va="bottom")
        for row, value in enumerate(level.statistics_G3[:, column]):
            _write(axes, x, first + _ROW * (row + 0.5), f"{abs(value):.2f}")
    for row, name in enumerate(level.gates):
        label = style.shorten(name, 24)
        _write(axes, layout.left - 8, first + _ROW * (row + 0.5), label, ha="right")
    _draw_cells(axes, level, layout, first, largest)


def _draw_cells(axes: Axes, level: _Level, layout: _Layout, first: float, largest: float) -> None:
    gap = min(_GAP, layout.cell / 8)
    cells, colours, struck = [], [], []
    for (row, expert), weight in np.ndenumerate(level.weight_GE):
        x, y = float(layout.x_E[expert]), first + _ROW * row
        right, bottom = x + layout.cell - gap, y + _ROW - gap
        if not level.visible_GE[row, expert]:
            struck.append([(x + 0.2 * layout.cell, bottom - 4), (right - 0.2 * layout.cell, y + 4)])
            continue
        strength = float(weight) / largest
        cells.append(Rectangle((x, y), right - x, bottom - y))
        # Even weight 0 gets a trace of colour: it is a cell, unlike a struck-through one.
        colours.append((style.HEAT, 0.04 + 0.96 * strength))
        text = _cell_text(weight, layout.cell)
        if text:
            _write(
                axes, (x + right) / 2, (y + bottom) / 2, text,
                size=style.SIZE_TEXT if layout.cell >= 27 else 6.5,
                colour=style.ON_HEAT if strength > _LIGHT_TEXT_FROM else style.INK,
            )  # fmt: skip
    axes.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="none"))
    axes.add_collection(LineCollection(struck, colors=style.TRAIN, linewidths=0.9, alpha=0.6))


def _draw_expert_names(axes: Axes, level: _Level, layout: _Layout, first: float) -> None:
    start = 0
    for head, numbers in expert_groups(level.experts):
        x_from = layout.x_E[start]
        x_to = layout.x_E[start + len(numbers) - 1] + layout.cell
        numbered = len(numbers) > 1 or numbers[0] != ""
        bottom = first - (18 if numbered else 6)
        if layout.tilted:
            _write(
                axes, (x_from + x_to) / 2, bottom, style.shorten(head, 24),
                ha="left", va="bottom", rotation=45,
            )  # fmt: skip
        else:
            _write(axes, (x_from + x_to) / 2, bottom, style.shorten(head, 24), va="bottom")
        # Where cells are narrow only every so many experts carry their number.
        every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**9) if step * layout.cell >= 15)
        for offset, number in enumerate(numbers):
            if offset == 0 or (offset + 1) % every == 0:
                x = layout.x_E[start + offset] + layout.cell / 2
                _write(
                    axes, x, first - 6, number, size=style.SIZE_SMALL, colour=style.MUTED,
                    va="bottom",
                )  # fmt: skip
        start += len(numbers)


def _draw_scale(axes: Axes, left: float, y: float, largest: float) -> None:
    steps, step = 7, 17.0
    boxes = [Rectangle((left + step * i, y - 5), step - _GAP, 10) for i in range(steps)]
    colours = [(style.HEAT, 0.04 + 0.96 * i / (steps - 1)) for i in range(steps)]
    axes.add_collection(PatchCollection(boxes, facecolors=colours, edgecolors="none"))
    _write(axes, left - 6, y, "0", size=style.SIZE_SMALL, colour=style.MUTED, ha="right")
    _write(
        axes, left + step * steps + 6, y, f"{largest:.2f}  mean weight",
        size=style.SIZE_SMALL, colour=style.MUTED, ha="left",
    )  # fmt: skip


def _cell_text(weight: float, cell: float) -> str:
    if cell >= 27:
        return f"{weight:.2f}"
    text = f"{weight:.2f}".removeprefix("0")
    return text if cell >= 17 else ""


def _text_width(text: str, size: float) -> float:
    return _LETTER * size * len(text)


def _write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = style.SIZE_TEXT,
    colour: str = style.INK,
    ha: str = "center",
    va: str = "center",
    weight: str = "normal",
    rotation: float = 0,
) -> None:
    axes.text(
        x, y, text, fontsize=size, color=colour, ha=ha, va=va, fontweight=weight,
        rotation=rotation, rotation_mode="anchor",
    )  # fmt: skip

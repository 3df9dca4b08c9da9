"""Style of the pictures: colours by role, type sizes, axes, SVG that follows the page's theme."""

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Each role has its own colour, so that `themed_svg` can swap it for a CSS variable of the page.
# Blue against orange stays apart for every kind of colour blindness; line styles differ as well.
INK = "#1b1f24"
MUTED = "#5d6670"
_GRID = "#e2e6ea"
MODEL = "#0b66c2"
ORACLE = "#c2570c"
TRAIN = "#87909a"
HEAT = "#084a91"
ON_HEAT = "#fefefe"
PAPER = "#ffffff"
_ROLES = {
    "ink": INK,
    "muted": MUTED,
    "grid": _GRID,
    "model": MODEL,
    "oracle": ORACLE,
    "train": TRAIN,
    "heat": HEAT,
    "on-heat": ON_HEAT,
}
# Points. The page shows one point as 4/3 CSS pixels, so 9 pt reads as 12 px.
SIZE_TITLE, SIZE_TEXT, SIZE_SMALL = 10.0, 9.0, 8.0
# Inches: the page's column, and panels about as high as wide that fit into it by their columns.
PAGE_WIDTH = 10.7
SQUARE = {1: 3.9, 2: 3.9, 3: 3.5, 4: 2.675}
_TITLE_LETTERS = {1: 40, 2: 40, 3: 34, 4: 24}


def columns_for(panels: int) -> int:
    """Chooses 1–4 columns for a grid of small panels, with no lonely last one if avoidable."""
    if panels <= 4:
        return max(panels, 1)
    return 3 if panels in (5, 6, 9) else 4


def few_ticks(most: int, integer: bool = False) -> MaxNLocator:
    """Chooses round tick values: steps of 1, 2, 2.5 or 5."""
    steps = [1, 2, 5, 10] if integer else [1, 2, 2.5, 5, 10]
    return MaxNLocator(nbins=most, integer=integer, steps=steps, min_n_ticks=1)


def new_figure(
    width: float, height: float, figure: Figure | None = None, *, layout: str = "constrained"
) -> Figure:
    """Makes a figure that lays itself out and belongs to no pyplot state; or sets up the one given.

    Args:
        width: Inches.
        height: Inches.
        figure: Without axes; None: a new one.
        layout: Of matplotlib; none: every part is placed by hand.
    """
    figure = Figure() if figure is None else figure
    figure.set_size_inches(width, height)
    figure.set_layout_engine(layout)  # type: ignore[arg-type]  # stubs list the names as literals
    figure.set_facecolor(PAPER)
    return figure


def dress(
    axes: Axes,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    *,
    columns: int = 1,
    pad: float = 6,
) -> None:
    """Gives axes a light grid, no box, a bold title at the left that fits into one of `columns`."""
    axes.set_facecolor("none")
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    axes.tick_params(colors=MUTED, labelsize=SIZE_SMALL, length=0, pad=4)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set(color=MUTED, fontsize=SIZE_SMALL)
    if title:
        axes.set_title(
            shorten(title, _TITLE_LETTERS[columns]), loc="left", fontsize=SIZE_TITLE,
            fontweight="bold", color=INK, pad=pad,
        )  # fmt: skip
    axes.set_xlabel(xlabel, fontsize=SIZE_SMALL, color=MUTED)
    axes.set_ylabel(ylabel, fontsize=SIZE_SMALL, color=MUTED)


def say_nothing_to_draw(axes: Axes, reason: str) -> None:
    """Draws an empty panel that says why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(
        0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center",
        fontsize=SIZE_SMALL, color=MUTED,
    )  # fmt: skip


def shorten(text: str, limit: int) -> str:
    """Cuts text with an ellipsis where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def themed_svg(figure: Figure, name: str, description: str) -> str:
    """Returns the figure as SVG for one HTML page: colours are CSS variables, text stays text.

    Args:
        figure: Drawn in the colours of this module.
        name: Prefix of the ids inside, unique on the page.
        description: What it shows, for those who cannot see it.
    """
    out = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "mmoe"}
    # Without a date and with a fixed salt the same run gives the same page.
    with mpl.rc_context(settings):  # type: ignore[arg-type]  # stubs list rcParams as literals
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for role, colour in _ROLES.items():
        svg = svg.replace(colour, f"var(--{role}, {colour})")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    label = escape(description, quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

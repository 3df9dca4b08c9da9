"""Where the communication of training went: bytes of a step by kind of link, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from mmoe.report import style
from mmoe.report.tables import NONE

_NAMES = {"experts": "experts", "gradients": "sums of gradients"}
_LINKS = {"megabytes_inside_hosts": "inside hosts", "megabytes_between_hosts": "between hosts"}
_COLOURS = {"experts": style.MODEL, "gradients": style.TRAIN}
# What crosses between hosts is the darker one
_OPACITY = {"megabytes_inside_hosts": 0.45, "megabytes_between_hosts": 1.0}


def communication_rows(epochs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Makes the rows of a table: of each epoch and road bytes, time and mode; none on one rank.

    Example:
        >>> sent = {"megabytes_inside_hosts": 1.5, "megabytes_between_hosts": 0.25,
        ...         "seconds_under_way": 0.02, "seconds_waited": 0.005, "share_hidden": 0.75}
        >>> entry = {"steps": 9, "modes": ["rows travel"], "experts": sent}
        >>> communication_rows([{"epoch": 1, "communication": entry}])
        [['1', 'experts', '1.5', '0.25', '20', '75 %', 'rows travel']]
    """
    return [
        [str(entry["epoch"]), _NAMES[road], *_numbers(sent[road]), _mode(sent, road)]
        for entry in epochs
        if (sent := entry.get("communication"))
        for road in _NAMES
        if road in sent
    ]


def choice_rows(epochs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Makes the rows of a table: how rows and experts met over time, where that was chosen.

    Example:
        >>> made = {"level": 1, "call": 10, "mode": "rows travel", "why": "predicted 2 ms"}
        >>> choice_rows([{"epoch": 1, "communication": {"choices": [made]}}])
        [['1', '1', '10', 'rows travel', 'predicted 2 ms']]
    """
    return [
        [str(entry["epoch"]), *(str(made[key]) for key in ("level", "call", "mode", "why"))]
        for entry in epochs
        for made in (entry.get("communication") or {}).get("choices", [])
    ]


def communication_figure(
    epochs: Sequence[Mapping[str, Any]], *, figure: Figure | None = None
) -> Figure:
    """Draws the megabytes that a step sends as stacked bars, a bar for each epoch.

    Args:
        epochs: Entries of history.json; those without `communication` are left out.
        figure: To draw into, without axes; None: a new one.

    Returns:
        The matplotlib Figure.

    Raises:
        ValueError: No epoch says what was sent.
    """
    told = [
        (entry["epoch"], entry["communication"]) for entry in epochs if entry.get("communication")
    ]
    if not told:
        raise ValueError("epochs: none says what was sent; it is told of several ranks only")
    figure = style.new_figure(style.PAGE_WIDTH, 2.2, figure)
    axes = figure.subplots()
    style.dress(axes, xlabel="epoch", ylabel="MB a step", columns=1)
    numbers = [epoch for epoch, _ in told]
    below = [0.0] * len(told)
    for road, name in _NAMES.items():
        for key, link in _LINKS.items():
            amounts = [sent.get(road, {}).get(key, 0.0) for _, sent in told]
            if any(amounts):
                look = {"color": _COLOURS[road], "alpha": _OPACITY[key]}
                axes.bar(numbers, amounts, 0.5, bottom=below, label=f"{name}, {link}", **look)
                below = [a + b for a, b in zip(below, amounts, strict=True)]
    axes.xaxis.set_major_locator(style.few_ticks(10, integer=True))
    axes.set_ylim(0, max([*below, 1e-9]) * 1.35)  # room for the legend
    axes.legend(
        loc="upper left", ncols=2, frameon=False, fontsize=style.SIZE_SMALL, labelcolor=style.MUTED
    )
    return figure


def _numbers(sent: Mapping[str, Any]) -> list[str]:
    hidden = sent.get("share_hidden")
    return [
        f"{sent['megabytes_inside_hosts']:.3g}",
        f"{sent['megabytes_between_hosts']:.3g}",
        f"{1e3 * sent['seconds_under_way']:.3g}",
        NONE if hidden is None else f"{100 * hidden:.0f} %",
    ]


def _mode(sent: Mapping[str, Any], road: str) -> str:
    return "; ".join(dict.fromkeys(sent["modes"])) if road == "experts" else NONE

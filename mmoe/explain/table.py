"""An explanation in words, and as explain.json with a page of it."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from mmoe.report import write_explanation_page
from mmoe.run import write_json


def summary_lines(result: Mapping[str, Any], run: str) -> list[str]:
    """Says in words which experts no task needs, and what to do about it."""
    unneeded = [one for one in result["experts"] if one["number"] in result["unneeded"]]
    within = f"(tolerance {result['tolerance']:g})"
    if not unneeded:
        unsure = any(one["unsure_of"] and not one["needed_by"] for one in result["experts"])
        more = ", or more rows (--data) have to tell" * unsure
        return [f"each expert is needed by some task{more} {within}"]
    several = result["levels"] > 1
    titles = ", ".join(
        f"level {one['level']}, {one['name']}" if several else one["name"] for one in unneeded
    )
    # One at a time: those that know the same stand in for each other
    least = min(unneeded, key=lambda one: sum(one["shares"].values()))
    again = "; mmoe explain RUN2" * (len(unneeded) > 1)
    return [
        f"needed by no task {within}{', each alone' * (len(unneeded) > 1)}: {titles}",
        f"next: mmoe prune {quote(run)} --experts {least['number']} --out RUN2{again}",
    ]


RESULT, PAGE = "explain.json", "explain.html"


def check_new_place(folder: Path) -> None:
    """Refuses a folder that holds an explanation already, or is a file.

    Raises:
        ValueError: It is so.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: is a file; name a folder")
    for name in (RESULT, PAGE):
        if (folder / name).exists():
            raise ValueError(
                f"--out {folder}: holds {name} already; remove it first, or name another folder"
            )


def write_explanation(result: Mapping[str, Any], folder: Path) -> Path:
    """Writes explain.json and explain.html, each whole or not at all, replacing what is there.

    Args:
        result: Of `explain_run`.
        folder: Is made where there is none.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, dict(result))
    return write_explanation_page(folder / RESULT, folder / PAGE)

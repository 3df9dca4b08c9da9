"""Where an explanation is written: explain.json, and a page of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmoe.report.explanation import write_explanation_page
from mmoe.run.atomic_files import write_json

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

"""The files of a run that the report draws."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmoe.config import RunConfig, load_config
from mmoe.config.json_files import read_stored
from mmoe.report.shapes import Curves, History, Metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """config.yaml, metrics.json, history.json and curves.json of one finished run."""

    folder: Path
    config: RunConfig
    metrics: dict[str, Any]
    history: dict[str, Any]
    curves: dict[str, Any]
    finished: datetime


def read_run(run_dir: str | Path) -> Run:
    """Reads what the report needs.

    Raises:
        ValueError: It is not a run directory, or a file is absent or damaged.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; name one that `mmoe train` wrote")
    if (folder / "compare.json").is_file():
        raise ValueError(
            f"{folder}: is a comparison, whose page is {folder / 'compare.html'}; name one of its "
            "runs, a folder inside it"
        )
    if not (folder / "config.yaml").is_file():
        raise ValueError(
            f"{folder}: is not a run directory, for it holds no config.yaml; "
            f"name a folder that `mmoe train` wrote"
        )
    config = load_config(folder / "config.yaml", of_run=True)
    metrics = _read_json(folder, "metrics.json", Metrics)
    history = _read_json(folder, "history.json", History)
    curves = _read_json(folder, "curves.json", Curves)
    written = (folder / "metrics.json").stat().st_mtime
    return Run(
        folder=folder,
        config=config,
        metrics=metrics,
        history=history,
        curves=curves,
        finished=datetime.fromtimestamp(written, tz=UTC),
    )


def _read_json(folder: Path, name: str, shape: type) -> dict[str, Any]:
    path = folder / name
    again = f"`mmoe train {folder / 'config.yaml'} --out {folder} --resume`"
    if not path.is_file():
        diverged = _diverged(folder)
        if diverged is not None:
            raise ValueError(
                f"{path}: is missing, because training diverged ({diverged}); train with another "
                "--out"
            )
        raise ValueError(f"{path}: is missing, so the run is not finished; finish it with {again}")
    return read_stored(path, shape, f"write it again with {again}")


def _diverged(folder: Path) -> str | None:
    """What the run's mark says of an end that a --resume would only come to again."""
    try:
        return json.loads((folder / "mmoe.json").read_text(encoding="utf-8"))["diverged"]
    except (OSError, ValueError, TypeError, KeyError):
        return None

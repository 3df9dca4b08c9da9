"""The files of a run that the report draws."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mmoe.config import RunConfig, load_config


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
    if not (folder / "config.yaml").is_file():
        raise ValueError(
            f"{folder}: is not a run directory, for it holds no config.yaml; "
            f"name a folder that `mmoe train` wrote"
        )
    config = load_config(folder / "config.yaml")
    metrics = _read_json(folder, "metrics.json", {"tasks": dict})
    history = _read_json(folder, "history.json", {"epochs": list})
    curves = _read_json(folder, "curves.json", {"tasks": dict})
    written = (folder / "metrics.json").stat().st_mtime
    return Run(
        folder=folder,
        config=config,
        metrics=metrics,
        history=history,
        curves=curves,
        finished=datetime.fromtimestamp(written, tz=UTC),
    )


def _read_json(folder: Path, name: str, expected: dict[str, type]) -> dict[str, Any]:
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
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path}: cannot be read ({reason}); write it again with {again}"
        ) from None
    for key, kind in expected.items():
        value: Any = content.get(key) if isinstance(content, dict) else None
        entries = list(value.values() if isinstance(value, dict) else value or [])
        if not isinstance(value, kind) or not all(isinstance(entry, dict) for entry in entries):
            wanted = "a mapping" if kind is dict else "a list"
            raise ValueError(f"{path}: `{key}` must be {wanted} of mappings; write it with {again}")
    return content


def _diverged(folder: Path) -> str | None:
    """What the run's mark says of an end that a --resume would only come to again."""
    try:
        return json.loads((folder / "mmoe.json").read_text(encoding="utf-8"))["diverged"]
    except (OSError, ValueError, TypeError, KeyError):
        return None

"""Data sets that a recipe names: Census-Income, Hillstrom, and the synthetic funnel.

Each module has `load`, which returns splits, and `files`, what it reads; `generate_funnel` draws
the synthetic log.
"""

from pathlib import Path

from mmoe.config import RunConfig


def raw_path(config: RunConfig, data: Path | None, how_to_get: str) -> Path:
    """Returns where the raw files of `data.source` are said to be.

    Raises:
        ValueError: Nobody says it.
    """
    if data is None and isinstance(config.data.path, str):
        data = Path(config.data.path)
    if data is None:
        raise ValueError(
            f"{config.data.source}: needs --data (or data.path in the config); {how_to_get}"
        )
    return data

"""The config that a command runs with."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmoe.plugins import import_modules
from mmoe.terminal import readable

if TYPE_CHECKING:
    from mmoe.config import RunConfig


def config_of_command(
    found: str | Path, overrides: Sequence[str] | None, imports: Sequence[str] | None
) -> "RunConfig":
    """Reads a config, after importing what the command line names; the config names it then too.

    Args:
        found: A recipe's name or a file's, as somebody wrote it; or `own_config`, a run's.
        overrides: Of `--set`.
        imports: Of `--import`.

    Raises:
        ValueError: A module cannot be imported, or the config cannot be used.
    """
    import_modules(imports or [])
    from mmoe.config import load_config
    from mmoe.datasets.recipes import load_recipe

    if isinstance(found, Path):
        config = load_config(found, overrides or [], of_run=True, say=_note)
    else:
        config = load_recipe(found, overrides or [], say=_note)
    return with_imports(config, imports)


def _note(line: str) -> None:
    """On standard error, where no result stands."""
    sys.stderr.write(f"note: {readable(line)}\n")


def with_imports(config: "RunConfig", imports: Sequence[str] | None) -> "RunConfig":
    """Returns the config with these modules among its `imports`: a run says what it needs."""
    named = list(dict.fromkeys([*config.imports, *(imports or [])]))
    return config.model_copy(update={"imports": named})


def own_config(resumed: Path | None, warm_start: str | Path | None) -> Path:
    """Returns the config file of the run that is resumed or continued.

    Raises:
        ValueError: There is none.
    """
    from mmoe.run import RunDirectory, open_run

    if resumed is not None and RunDirectory(resumed).config_file.exists():
        return RunDirectory(resumed).config_file
    if warm_start is not None:
        return open_run(warm_start, tensors=()).config_file
    if resumed is not None:
        raise ValueError(
            f"--resume: {resumed} holds no config of a run; give RECIPE_OR_CONFIG.yaml too"
        )
    raise ValueError("RECIPE_OR_CONFIG.yaml is missing; only --warm-start and --resume know one")


def frozen_values(freeze: Sequence[str] | None) -> list[str]:
    """Returns what `--freeze` says as `--set` would say it.

    Example:
        >>> frozen_values(["experts", "towers.*"])
        ['training.freeze=["experts", "towers.*"]']
    """
    return [f"training.freeze={json.dumps(list(freeze))}"] if freeze else []

"""What the names of `training.freeze` say: tables, the encoder, and patterns over dotted names."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate

from mmoe.config.freezing.stages import StageConfig

ENCODER = "encoder"
TABLES = "tables"
# What a pattern begins with that means neither experts nor gates
_BESIDE = (
    TABLES,
    ENCODER,
    "towers",
    "inputs",
    "sequences",
    "interaction",
    "crossing",
    "transfer",
    "imputation",
    "bias",
    "bias_tower",
)


def names_part(pattern: str, name: str) -> bool:
    """Returns whether a pattern names a part that a dotted name lies in, or is.

    Example:
        >>> from mmoe.config.freezing.names import names_part
        >>> [names_part(p, "towers.click.mlp.weight") for p in ("towers", "towers.cl*", "*.buy")]
        [True, True, False]
    """
    return any(fnmatchcase(part, pattern) for part in accumulate(name.split("."), "{}.{}".format))


def frozen_tables(freeze: Sequence[str], stages: Sequence[StageConfig]) -> set[str]:
    """Returns the tables that were there before and are frozen.

    Example:
        >>> from mmoe.config.freezing import StageConfig
        >>> from mmoe.config.freezing.names import frozen_tables
        >>> stage = StageConfig(tasks=["click"], features=["user"], tables=["user", "item"])
        >>> sorted(frozen_tables(["tables"], [stage])), frozen_tables(["tables.u*"], [stage])
        (['item', 'user'], {'user'})
    """
    tables = stages[-1].tables if stages else []
    return {t for t in tables if any(names_part(pattern, f"{TABLES}.{t}") for pattern in freeze)}


def keeps_pool(freeze: Iterable[str]) -> bool:
    """Returns whether patterns may name experts or gates, so that new ones stand beside them."""
    return any(pattern.split(".")[0] not in _BESIDE for pattern in freeze)


def keeps_towers(freeze: Iterable[str]) -> bool:
    """Returns whether patterns may name towers, which then stay as they are in new domains."""
    return keeps_pool(freeze) or any(pattern.split(".")[0] == "towers" for pattern in freeze)


def unmatched(pattern: str, parts: Sequence[str]) -> ValueError:
    """Returns the error of a pattern that names nothing.

    Args:
        pattern: As somebody wrote it.
        parts: What there is, by the names that it could have had.
    """
    near = get_close_matches(pattern, parts, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ValueError(
        f"training.freeze: {pattern!r} matches no parameter of the --warm-start run; there are: "
        f"{', '.join(parts)}{hint}"
    )

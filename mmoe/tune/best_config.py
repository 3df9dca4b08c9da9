"""The config that a search ends with, as commented YAML."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from mmoe.config import RunConfig, dump_config


def commented_config(config: RunConfig, was: Mapping[str, Any], header: Sequence[str]) -> str:
    """Writes a config with every default spelled out, and a comment where a key has changed.

    Args:
        config: Complete; read back the text gives the same.
        was: Changed key, with dots → its value before.
        header: Lines at the top.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}], "seed": 7,
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> print(commented_config(config, {"seed": 0}, ["Tuned."]).splitlines()[:3])
        ['# Tuned.', 'name: run', 'seed: 7  # was 0']
    """
    text = dump_config(config)
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, before in was.items():
        line = _line_of(root, key.split("."))
        lines[line] += f"  # was {_inline(before)}"
    return "\n".join([*(f"# {line}" for line in header), *lines]) + "\n"


def _line_of(node: Any, names: Sequence[str]) -> int:
    line = 0
    for name in names:
        key, node = next(pair for pair in node.value if pair[0].value == name)
        line = key.start_mark.line
    return line


def _inline(value: Any) -> str:
    plain = yaml.safe_dump(value, default_flow_style=True).strip()
    return plain.removesuffix("...").strip()

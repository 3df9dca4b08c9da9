"""A config as YAML for people: what differs from the defaults, and the reason for each line."""

import json
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from mmoe.config import FeatureConfig, RunConfig, TableSettings
from mmoe.config.kinds import HasKinds
from mmoe.datasets.infer.config import Reasons

_WIDEST = 10**6  # one line for a feature, however long its column's name


def write_commented_yaml(
    path: str | Path, config: RunConfig, reasons: Reasons, *, overwrite: bool = False
) -> None:
    """Writes the config under a temporary name, then renames it.

    Raises:
        ValueError: The file exists already, and is not to be replaced.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise ValueError(f"{target}: exists already; remove it, or name another file with --out")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(commented_yaml(config, reasons), encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def commented_yaml(config: RunConfig, reasons: Reasons) -> str:
    """Returns the config as commented YAML; read back it gives the same config."""
    lines = [
        "# Inferred from the data; change what you know better. Keys that are not here keep their",
        "# defaults, and a misspelt key is refused.",
        f"name: {_inline(config.name)}",
        f"split_seed: {config.split_seed}",
        *([f"imports: {_inline(config.imports)}"] if config.imports else []),
        *_data(config, reasons),
        "",
        "features:",
        *(_feature(feature, reasons) for feature in config.features),
        *_left_out(reasons),
        "",
        "tasks:",
    ]
    for task in config.tasks:
        lines += [f"  # {_one_line(reason)}" for reason in reasons.tasks.get(task.name, [])]
        lines.append(f"  - {_inline(_changed(task))}")
        if task.name in reasons.consequences:
            cause = reasons.consequences[task.name]
            lines.append(
                f"  # {task.name} is 0 except where {cause} is 1: with `observed_when: {cause}` it "
                "is learned from those rows alone"
            )
    lines += ["", f"# {reasons.sizes}" if reasons.sizes else "#"]
    for section in ("model", "training"):
        changed = _changed(getattr(config, section))
        if changed:
            lines += [f"{section}:", *(f"  {key}: {_inline(v)}" for key, v in changed.items())]
    return "\n".join(lines) + "\n"


def _data(config: RunConfig, reasons: Reasons) -> list[str]:
    lines = ["data:"]
    if config.data.path is not None:
        lines.append(f"  path: {_inline(config.data.path)}")
    lines += [f"  {key}: {_inline(getattr(config.data, key))}" for key in config.data.csv_keys]
    if reasons.split:
        lines.append(f"  # {_one_line(reasons.split)}")
    lines.append(f"  split: {_inline({'by': config.data.split.by} | _changed(config.data.split))}")
    if reasons.repeated:
        mend = "copies stay in one split; drop counts each row once"
        lines.append(f"  # {_one_line(reasons.repeated)}: {mend}")
        lines.append(f"  repeated_rows: {config.data.repeated_rows}")
    if config.data.group_column is not None:
        comment = f"  # {_one_line(reasons.group)}" if reasons.group else ""
        lines.append(f"  group_column: {_inline(config.data.group_column)}{comment}")
    if config.data.requests is not None:
        lines.append(f"  requests: {_inline(_changed(config.data.requests))}")
    return lines


def _feature(feature: FeatureConfig, reasons: Reasons) -> str:
    changed = _changed(feature)
    first = {key: changed[key] for key in ("name", "column") if key in changed}
    values = {"kind": feature.kind} | first | changed
    comment = reasons.features.get(feature.name, "")
    return f"  - {_inline(values)}" + (f"  # {_one_line(comment)}" if comment else "")


def _left_out(reasons: Reasons) -> list[str]:
    if not reasons.left_out:
        return []
    lines = ["  # left out:"]
    for column, reason in reasons.left_out:
        lines.append(f"  #   {_one_line(column)}: {_one_line(reason)}")
        offered = reasons.offered.get(column, [])
        lines += [f"  #   {_feature(feature, reasons).strip()}" for feature in offered]
    return lines


def _changed(section: BaseModel) -> dict[str, Any]:
    """Returns what differs from the defaults, in nested sections too."""
    fields, found = type(section).model_fields, section.model_dump(mode="json")
    defaults = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
    if isinstance(section, HasKinds):
        defaults[section.registry.key] = section.registry.default
    values = {key: getattr(section, key) for key in fields}
    first = _changed(section.table_encoding) if isinstance(section, TableSettings) else {}
    return first | {
        key: _changed(value) if isinstance(value, BaseModel) else found[key]
        for key, value in values.items()
        if value != defaults[key]
    }


def _inline(value: Any) -> str:
    """YAML in one line: `{kind: numeric, name: age}`."""
    plain = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDEST
    )
    plain = plain.strip().removesuffix("...").strip()
    if plain.isprintable():
        return plain
    # A name with line breaks or control characters: JSON is YAML too, and escapes them.
    return _printable(json.dumps(value, ensure_ascii=False))


def _one_line(text: str) -> str:
    return _printable(" ".join(str(text).split()))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)

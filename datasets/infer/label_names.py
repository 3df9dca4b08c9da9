"""Labels as people write them: `click,buy` is two."""

import ast
import shlex
from collections.abc import Sequence

from mmoe.datasets.labels.formula import parse
from mmoe.datasets.rows.locations import missing_column


def separate_labels(labels: Sequence[str], columns: Sequence[str], origin: str) -> list[str]:
    """Returns the labels one by one: `click,buy` is two where no column has that name.

    Args:
        labels: As they were given: columns, expressions, or several columns with commas between.
        columns: That there are.
        origin: What the user calls the data; starts error messages.

    Raises:
        ValueError: Some of what stands between commas is a column, and some is not.

    Example:
        >>> separate_labels(["click, buy", "a,b"], ["click", "buy", "a,b"], "log.csv")
        ['click', 'buy', 'a,b']
    """
    found: list[str] = []
    for label in labels:
        parts = [part.strip() for part in label.split(",") if part.strip()]
        if label in columns or len(parts) < 2 or _is_expression(label):
            found.append(label)
            continue
        known = [part for part in parts if part in columns]
        if known and len(known) < len(parts):
            other = next(part for part in parts if part not in columns)
            right = " ".join(f"--label {shlex.quote(part)}" for part in parts)
            raise ValueError(
                f"{missing_column(other, columns, origin, f'--label {label!r}')} (labels one by "
                f"one: {right})"
            )
        found += known or [label]
    return found


def _is_expression(label: str) -> bool:
    """A comma inside brackets or quotes belongs to a formula."""
    try:
        return not isinstance(parse(label)[0], ast.Tuple)
    except ValueError:
        return False

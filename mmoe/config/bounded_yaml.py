"""Loads YAML whose aliases cannot stand for more than a config needs."""

from typing import Any, cast

import yaml

_MOST_REPEATED = 100_000  # values; a config of a thousand features has about ten thousand


class RepeatsTooMuchError(yaml.YAMLError):
    """Refusal of aliases within aliases: a few hundred bytes for millions of values."""


class BoundedLoader(yaml.SafeLoader):
    """A SafeLoader that refuses documents with too many values, before it makes any.

    A value that looks like a date and is none, or that a tag calls what it is not, is a YAMLError
    too (PyYAML lets whatever Python says of it through).

    YAML itself keeps what an alias names once, but whoever copies or checks the values walks
    through each repetition.
    """

    def compose_document(self) -> yaml.Node | None:
        """Returns the document's nodes, counted.

        Raises:
            RepeatsTooMuchError: Written out, aliases would add more values than a config may have.
        """
        node = super().compose_document()
        if node is not None:
            sizes: dict[yaml.Node, int] = {}
            repeated = _written_out(node, sizes) - len(sizes)
            if repeated > _MOST_REPEATED:
                raise RepeatsTooMuchError(
                    f"its aliases (*name) repeat {_readable(repeated)} values, expected at most "
                    f"{_MOST_REPEATED:,}; remove aliases to lists of aliases"
                )
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns a node's value."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            kind = str(node.tag).rsplit(":", 1)[-1]
            why = f" ({error})" if isinstance(error, ValueError) else ""
            raise yaml.YAMLError(
                f"{str(node.value)[:60]!r} in line {node.start_mark.line + 1} is no {kind}{why}; "
                "if it is text, write it in quotes"
            ) from None


def _written_out(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Nodes under `node`, each as often as aliases name it; `sizes` takes that of every node.

    One that contains itself counts as nothing there: whoever walks through it will notice.
    """
    known = sizes.get(node)
    if known is None:
        sizes[node] = 0
        known = sizes[node] = 1 + sum(_written_out(child, sizes) for child in _children(node))
    return known


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        return [child for pair in pairs for child in pair]
    return cast("list[yaml.Node]", node.value) if isinstance(node, yaml.SequenceNode) else []


def _readable(count: int) -> str:
    return f"{count:,}" if count < 10**12 else "more than a trillion"

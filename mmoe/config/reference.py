"""Writes every key of a run config as tables of Markdown, for README.md of this folder.

    python -m mmoe.config.reference           # prints the tables
    python -m mmoe.config.reference --write   # puts them into README.md

A test compares README.md with the models, and names a key that has no description.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mmoe.config.kinds import HasKinds, Kinds, Name, kinds_of
from mmoe.config.loading import models_in
from mmoe.config.run import RunConfig
from mmoe.config.tables import ENCODINGS, TableSettings

README = Path(__file__).parent / "README.md"
_BEGIN, _END = "<!-- begin of the keys -->", "<!-- end of the keys -->"

Section = tuple[str, type[BaseModel]]
_TOP = "The top level"
_WORTH_NAMING = 4  # keys that two sections share

_LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "a multiple of"}
_TYPES = {str: "text", int: "whole number", float: "number", bool: "true, false", Any: "any value"}


def reference(config: type[BaseModel] = RunConfig) -> str:
    """Returns the tables of all keys: links, then a heading and a table for each section and kind.

    Args:
        config: The model at the top.

    Raises:
        ValueError: A key has no description; names it.

    Example:
        >>> reference().splitlines()[2]
        '### The top level'
    """
    parts: list[str] = []
    known: dict[str, list[str]] = {}
    for path, model in sections(config):
        if path in known:
            continue  # of an inlined noun, which several sections take
        kinds = kinds_of(model)
        lines = [_kind_line(told) for told in (kinds, _inlined(model)) if told is not None]
        fields = (model if kinds is None else kinds.classes()[0]).model_fields
        lines += [
            _line(path, name, field)
            for name, field in fields.items()
            # A `kind` that can have one value only: the heading says it
            if get_origin(field.annotation) is not Literal or len(get_args(field.annotation)) > 1
        ]
        what = " ".join((model.__doc__ or "").split("\n\n")[0].split()) + _is_default(model)
        parts.append(f"### {path or _TOP}\n\n{what}\n\n{_table(lines, known)}")
        known[path] = lines
    return "\n\n".join([" · ".join(map(_link, known)), *parts])


def _link(path: str) -> str:
    """Links to a heading, by the name that GitHub gives it."""
    anchor = re.sub(r"[^\w\- ]", "", (path or _TOP).lower()).replace(" ", "-")
    return f"[{path or _TOP}](#{anchor})"


def _table(lines: Sequence[str], known: Mapping[str, Sequence[str]]) -> str:
    """The lines of a section, without those that it shares with an earlier one."""
    alike = max(known, key=lambda path: len(set(known[path]) & set(lines)), default="")
    shared = [line for line in known.get(alike, ()) if line in lines]
    if len(shared) < _WORTH_NAMING:
        shared = []
    own = [line for line in lines if line not in shared]
    keys = ", ".join(line.split(" | ")[0].removeprefix("| ") for line in shared)
    also = f"Also, as in {_link(alike)}: {keys}." if shared else ""
    head = ["| key | takes | default | what it says |", "|---|---|---|---|"] if own else []
    return "\n\n".join(part for part in ("\n".join([*head, *own]), also) if part)


def sections(config: type[BaseModel], path: str = "") -> Iterator[Section]:
    """Yields the model of every section, with its path: itself, then what its keys hold.

    Kinds that have the same keys are one section, with the class of their noun. Kinds whose keys
    stand in other sections have one path wherever they do; what keys of all kinds hold comes once.
    """
    kinds = kinds_of(config)
    if kinds is not None and not _alike(kinds):
        shared = _of_several(kinds)
        for name, model in zip(kinds.names(), kinds.classes(), strict=True):
            of_kind = f"{path}: {kinds.key} {name}"
            of_all = tuple(f"{of_kind}.{key}" for key in shared)
            yield from (each for each in sections(model, of_kind) if not each[0].startswith(of_all))
        yield from _inside(shared, path)
        return
    yield path, config
    inlined = _inlined(config)
    if inlined is not None:
        for name in inlined.names():
            yield f"{inlined.key} {name}", inlined.config_class(name)
    model = config if kinds is None else kinds.classes()[0]
    yield from _inside(model.model_fields, path)


def _of_several(kinds: Kinds[Any]) -> dict[str, FieldInfo]:
    """The keys that several kinds have."""
    found, several = dict[str, FieldInfo](), dict[str, FieldInfo]()
    for model in kinds.classes():
        several |= {key: found[key] for key in model.model_fields if key in found}
        found = {**model.model_fields, **found}
    return several


def _inside(fields: Mapping[str, FieldInfo], path: str) -> Iterator[Section]:
    """The sections that keys hold."""
    for name, field in fields.items():
        for inner in models_in(field.annotation, expand=False):
            yield from sections(inner, f"{path}.{name}" if path else name)


def _inlined(model: type[BaseModel]) -> Kinds[Any] | None:
    return ENCODINGS if issubclass(model, TableSettings) else None


def _alike(kinds: Kinds[Any]) -> bool:
    own = [set(model.model_fields) for model in kinds.classes()]
    return all(keys == own[0] for keys in own) and kinds.default is not None


def _is_default(model: type[BaseModel]) -> str:
    if not issubclass(model, HasKinds) or kinds_of(model) is not None:
        return ""
    kinds = model.registry
    is_default = kinds.default is not None and kinds.config_class(kinds.default) is model
    return " The default." if is_default else ""


def _kind_line(kinds: Kinds[Any]) -> str:
    names = ", ".join(f"`{name}`" for name in kinds.names())
    description = kinds.base.model_fields[kinds.key].description
    return f"| `{kinds.key}` | {names} | `{kinds.default}` | {description} |"


def rewritten(page: str) -> str:
    """Returns the page with its tables made anew.

    Raises:
        ValueError: The page does not say where they begin and end.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{README}: expected the lines {_BEGIN!r} and {_END!r}; put them back")
    return f"{before}{_BEGIN}\n\n{reference()}\n\n{_END}{after}"


def _line(path: str, name: str, field: FieldInfo) -> str:
    if not field.description:
        where = f"{path}.{name}" if path else name
        raise ValueError(f"{where}: has no description; give its Field one")
    cells = [f"`{name}`", _takes(field), _default(field), field.description]
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def _takes(field: FieldInfo) -> str:
    limits = [
        f"{words} {_number(getattr(limit, key))}"
        for limit in field.metadata
        for key, words in _LIMITS.items()
        if getattr(limit, key, None) is not None
    ]
    return ", ".join([_words(field.annotation), *limits])


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation == Name:
        return "name"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return _words(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        if models_in(arguments[0]) or kinds_of(arguments[0]):
            return "list of sections"
        return f"list: {_words(arguments[0])}"
    if origin is dict:
        return f"mapping: name → {_words(arguments[1])}"
    if origin is tuple:
        return f"{len(arguments)} of: {_words(arguments[0])}"
    if arguments:  # a union
        return " or ".join(dict.fromkeys(_words(a) for a in arguments if a is not NoneType))
    return "section" if models_in(annotation) else _TYPES[annotation]


def _number(limit: float) -> str:
    powers = {2**power - 1: f"2^{power} − 1" for power in (31, 63)} | {2**31 - 8: "2^31 − 8"}
    powers |= {2**power: f"2^{power}" for power in (24, 32, 62)}
    return powers.get(limit, f"{limit:,}") if isinstance(limit, int) else f"{limit:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its own defaults"
    if value is None:
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Prints the tables, or writes them into the page."""
    if "--write" in arguments:
        README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(reference())


if __name__ == "__main__":
    main()

"""YAML in, `RunConfig` out; errors name the key and the nearest valid one."""

import difflib
import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from mmoe.config.effects import refuse_without_effect, sections_of
from mmoe.config.kinds import NAME, HasKinds, Kinds, kinds_of
from mmoe.config.run import RunConfig
from mmoe.config.tables import ENCODINGS, TableSettings
from mmoe.plugins import MODULE_NAME, import_for_run, import_modules, installed_modules

# Characters, levels of lists and sections, values that aliases repeat: a config of a thousand
# features has a few hundred thousand, ten, and about ten thousand
_LONGEST, _DEEPEST, _MOST_REPEATED = 1 << 26, 100, 100_000
_TOO_DEEP = "its lists or sections are nested too deeply"
_MERGE = "tag:yaml.org,2002:merge"
# libyaml's, in a third of the time, where PyYAML has it
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _read_yaml(text: str) -> Any:
    """Reads YAML that has at most so much in it."""
    try:
        _check_bounds(text)
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in str(error.problem):  # where libyaml looks ahead it finds it first
            raise ValueError(_TOO_DEEP) from None
        raise
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


def _check_bounds(text: str) -> None:
    """Refuses what would take too much to read, by its events alone: no value is made of them.

    YAML itself keeps what an alias names once, but whoever copies or checks the values walks
    through each repetition: a few hundred bytes can stand for millions of values.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text):,} characters, expected at most {_LONGEST:,}")
    begun: list[tuple[str | None, int]] = []  # anchor of each section, values written out before it
    sizes: dict[str | None, int] = {}  # values of each anchor, written out; in itself it has none
    values = repeated = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        match event:
            case yaml.AliasEvent():
                repeated += sizes.get(event.anchor, 0)
                values += sizes.get(event.anchor, 0)
            case yaml.ScalarEvent():
                sizes[event.anchor] = 1
                values += 1
            case yaml.CollectionStartEvent():
                begun.append((event.anchor, values))
                values += 1
                if len(begun) > _DEEPEST:
                    raise ValueError(_TOO_DEEP)
            case yaml.CollectionEndEvent():
                anchor, before = begun.pop()
                sizes[anchor] = values - before
    if repeated > _MOST_REPEATED:
        count = f"{repeated:,}" if repeated < 10**12 else "more than a trillion"
        raise ValueError(
            f"its aliases (*name) repeat {count} values, expected at most {_MOST_REPEATED:,}; "
            "remove aliases to lists of aliases"
        )


class _Loader(_SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently keep the last.

    A key that `<<` merges in may be given again: so it is overridden. A value that looks like a
    date and is none, or that a tag calls what it is not, is a YAMLError too (PyYAML lets whatever
    Python says of it through).
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen: set[tuple[str, str]] = set()
        own = [] if id(node) in self._checked else node.value  # later with what it merges in
        self._checked.add(id(node))
        for key, _ in own:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                mend = "; merge several with <<: [*a, *b]" if key.tag == _MERGE else ""
                line = node.start_mark.line + 1
                raise yaml.YAMLError(
                    f"key {key.value!r} is given twice in the section from line {line}{mend}"
                )
            seen.add((key.tag, str(key.value)))
        super().flatten_mapping(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            kind = str(node.tag).rsplit(":", 1)[-1]
            why = f" ({error})" if isinstance(error, ValueError) else ""
            raise yaml.YAMLError(
                f"{str(node.value)[:60]!r} in line {node.start_mark.line + 1} is no {kind}{why}; "
                "if it is text, write it in quotes"
            ) from None


def load_config(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    of_run: bool = False,
    say: Callable[[str], None] = warnings.warn,
) -> RunConfig:
    """Reads a YAML config and applies `key.path=value` overrides.

    Args:
        path: A YAML file.
        overrides: Such as `["training.epochs=3", "seed=1"]`; values are YAML.
        of_run: As for `config_from_dict`; so is any config that lies in a run's folder.
        say: As for `set_values`.

    Raises:
        ValueError: The file cannot be read, is no mapping, or a key or value is wrong. The message
            names the file, the key and, for an unknown key, the nearest valid one.
    """
    path = Path(path)
    if path.is_dir():
        inside = path / "config.yaml"
        mend = f"say {inside}" if inside.is_file() else "name a YAML file"
        raise ValueError(f"{path}: is a folder, not a config; {mend}")
    if not path.exists():
        raise ValueError(f"{path}: no such file; name a config in YAML (mmoe init writes one)")
    try:
        raw = _read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"{path}: cannot be read as a config: {why}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: cannot be read as a config: it is not UTF-8 text") from error
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as a config: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not valid YAML: {_one_line(error)}") from None
    if not isinstance(raw, dict):
        came = "an empty file" if raw is None else f"a {type(raw).__name__}"
        raise ValueError(f"{path}: expected `key: value` lines at the top, got {came}")
    try:
        raw = set_values(raw, overrides, say)
    except RecursionError:
        raise ValueError(f"{path}: a value contains itself (an alias to its own anchor)") from None
    return config_from_dict(raw, origin=str(path), of_run=of_run or _lies_in_run(path))


def _lies_in_run(path: Path) -> bool:
    marks = (path.with_name("mmoe.json"), path.parent / "vocabulary" / "encoder.json")
    return path.name == "config.yaml" and any(mark.exists() for mark in marks)


def config_from_dict(
    raw: Mapping[str, Any], origin: str = "config", *, of_run: bool = False
) -> RunConfig:
    """Validates a plain mapping; what it names under `imports` is imported first.

    Args:
        raw: As YAML gives it.
        origin: A file name; starts every error message.
        of_run: It is a file of a run's folder, which may be anybody's: nothing is imported then
            that has not been imported already, or installed as a plugin (`mmoe.plugins`); keys
            without effect are kept.

    Raises:
        ValueError: A key or value is wrong, or a module is not allowed or cannot be imported.
    """
    names = raw.get("imports") if isinstance(raw, Mapping) else None
    # Others than names of modules are refused below
    if (
        names
        and isinstance(names, list)
        and all(isinstance(name, str) and re.fullmatch(MODULE_NAME, name) for name in names)
    ):
        (import_for_run if of_run else import_modules)(names, origin)
    try:
        config = RunConfig.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"{origin}: {_explain(error)}{_hint(error, names)}") from None
    if not of_run:
        try:
            refuse_without_effect(config)
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from None
    used = [name for expert, _ in config.model.expert_kinds for name in expert.needed_modules]
    if used:
        (import_for_run if of_run else import_modules)(used, origin)
    return config


def dump_config(config: RunConfig) -> str:
    """Writes the config as YAML, every default spelled out, so that it reads back the same."""
    out = io.StringIO()
    # libyaml's where PyYAML has it: the one in Python takes as long as an epoch of a small log
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    raw = config.model_dump(mode="json")
    yaml.dump(raw, out, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return out.getvalue()


def set_values(
    raw: Mapping[str, Any], overrides: Iterable[str], say: Callable[[str], None] = warnings.warn
) -> dict[str, Any]:
    """Returns a copy of `raw` with `key.path=value` assignments made.

    Items of a list are named by number or by name: `tasks.0.weight=2`, `tasks.click.weight=2`. A
    feature of another kind (`features.price.kind=categorical`) keeps the keys that this kind has.

    Args:
        raw: A config.
        overrides: The assignments.
        say: Told of keys that are dropped so, where they said something else than their default.

    Raises:
        ValueError: An assignment is none, or leads nowhere.
    """
    result = _copy(raw)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"--set {override!r}: expected key.path=value, such as training.epochs=3"
            )
        try:
            value = _read_yaml(text)
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(f"--set {override!r}: bad value: {_one_line(error)}") from None
        keys = key.strip().split(".")
        if dropped := _assign(result, keys, value, override):
            say(f"--set {override}: dropped {', '.join(dropped)}, which this kind has not")
    return result


def _assign(raw: dict[str, Any], keys: list[str], value: Any, override: str) -> list[str]:
    """Sets a value; returns the keys that it drops, as its section's new kind has them not."""
    annotations: list[Any] = [RunConfig]  # what a config may hold where `node` is
    node: Any = raw
    *parents, last = keys
    for depth, key in enumerate(parents):
        at = _place(node, keys[:depth], key, override)
        annotations = _inside_of(annotations, node, key)
        if isinstance(node, dict) and not isinstance(node.get(key), dict | list):
            node[key] = _spelt_out(node.get(key), annotations)
        node = node[at]
    node[_place(node, parents, last, override)] = value
    return _drop_keys(node, last, annotations)


def _place(node: Any, parents: list[str], key: str, override: str) -> Any:
    """A key, or the number of an item."""
    if not isinstance(node, dict | list):
        raise ValueError(f"--set {override!r}: {'.'.join(parents)} holds no keys")
    return _list_index(node, key, override) if isinstance(node, list) else key


def _inside_of(annotations: list[Any], node: Any, key: str) -> list[Any]:
    """What a config may hold at a key of `node`; of sections that name their kind, that kind's."""
    inside: list[Any] = []
    for annotation in annotations:
        kinds = kinds_of(annotation)
        if kinds is None or kinds.default is not None:
            inside += _inside(annotation, key)
        elif isinstance(node, dict) and kinds.knows(node.get(kinds.key)):
            inside += _inside(kinds.config_class(node[kinds.key]), key)
    return inside


def _spelt_out(value: Any, annotations: list[Any]) -> dict[str, Any]:
    """What a bare name is short for, where a section has kinds of that name."""
    for kinds in filter(None, map(kinds_of, annotations)):
        if isinstance(value, str) and kinds.knows(value):
            return {kinds.key: value}
    return {}


def _drop_keys(section: Any, key: str, annotations: list[Any]) -> list[str]:
    """Takes keys away that a section's new kind has not; names those that said something."""
    found = dict.fromkeys(noun for noun in map(kinds_of, annotations) if noun is not None)
    # Keys of encodings stand in a table's section
    models = [model for annotation in annotations for model in models_in(annotation)]
    nouns = [*found] + [ENCODINGS] * any(issubclass(model, TableSettings) for model in models)
    dropped: list[str] = []
    for kinds in nouns:
        if key != kinds.key or not kinds.knows(section[key]):
            continue  # an unknown kind is refused when all is read
        known, theirs = keys_in(kinds.config_class(section[key])), _defaults_of(kinds)
        gone = [name for name in section if name in theirs and name not in known]
        dropped += [name for name in gone if section.pop(name) not in theirs[name]]
    return dropped


def _list_index(items: list[Any], key: str, override: str) -> int:
    """A position, or the `name` of an item (`tasks.click.weight=2`)."""
    if key.isdigit() and int(key) < len(items):
        return int(key)
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if key in names:
        return names.index(key)
    known = ", ".join(str(name) for name in names if name) or f"0 to {len(items) - 1}"
    raise ValueError(f"--set {override!r}: no item {key!r} in that list; there are: {known}")


def _copy(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _copy(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_copy(value) for value in node]
    return node


def _explain(error: ValidationError) -> str:
    """The first problem in one line: the key's path, what was expected, what came."""
    problem = _first_problem(error)
    # Of a number or a word pydantic names the branch as well, which is no key
    where = ".".join(str(part) for part in problem["loc"] if part != "constrained-int")
    if problem["type"] == "extra_forbidden":
        return _unknown_key(problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if not where:
        return message
    if problem["type"].startswith("union_tag_"):
        return _wrong_kind(where, problem)
    if problem["type"] == "missing":
        return f"{where}: is required, but missing"
    if problem["type"] == "value_error":
        return f"{where}: {message}"
    if problem["type"] == "string_pattern_mismatch" and problem["ctx"]["pattern"] == NAME:
        return _refused_name(problem["loc"], problem["input"])
    if problem["type"] in ("model_type", "model_attributes_type"):
        message = "expected a mapping {key: value, …}"
    came = repr(problem["input"])
    is_choice = problem["type"] == "literal_error" and isinstance(problem["input"], str)
    close = _nearest(problem["input"], problem["ctx"]["expected"]) if is_choice else ""
    return f"{where}: {message}, got {came if len(came) < 80 else came[:77] + '...'}{close}"


def _refused_name(location: tuple[int | str, ...], came: str) -> str:
    """A column may be called what a feature may not: then the feature says both."""
    name = re.sub(r"[^A-Za-z0-9_\-]+", "_", came).strip("_-") or "x"
    mend = f"{location[-1]}: {name if name[0].isalpha() else f'_{name}'}"
    if location[0] == "features" and location[-1] == "name":
        mend += f", column: {came!r}"
    return (
        f"{'.'.join(map(str, location))}: expected a letter or _, then letters, digits, _ and -, "
        f"got {came!r}; say {mend}"
    )


def _nearest(came: str, expected: str) -> str:
    """Asks for the nearest of the names in quotes; nothing where none is near."""
    names = {_letters(name): name for name in re.findall(r"'([^']*)'", expected)}
    close = difflib.get_close_matches(_letters(came), names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def _letters(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _wrong_kind(where: str, problem: Any) -> str:
    """A section without the key that tells its kinds apart, or with one that there is not."""
    key = problem["ctx"]["discriminator"].strip("'")
    if problem["type"] == "union_tag_not_found":
        return f"{where}.{key}: is required, but missing"
    expected, tag = problem["ctx"]["expected_tags"], problem["ctx"]["tag"]
    there_are = f"expected one of {expected}" if expected else "there is none of one's own"
    return f"{where}.{key}: {there_are}, got {tag!r}{_nearest(str(tag), expected)}"


def _hint(error: ValidationError, imports: Any) -> str:
    """Hints that an unknown kind's module may not have been imported."""
    problem = _first_problem(error)
    context = problem.get("ctx", {})
    if problem["type"] == "union_tag_invalid":
        kind = problem["input"].get(context["discriminator"].strip("'"))
        known = context["expected_tags"]
    elif problem["type"] == "literal_error" and problem["loc"][-1] == "kind":
        kind, known = problem["input"], context["expected"]
    else:
        return ""
    if not isinstance(kind, str) or _nearest(kind, known):
        return ""
    if _is_meant_for_another(kind, re.findall(r"'([^']*)'", known)):
        return ""
    imported = f"imported: {', '.join(imports)}" if imports else "none is imported"
    return (
        f"; a kind of one's own needs its module under `imports`, or --import MODULE ({imported})"
    )


def _is_meant_for_another(kind: str, known: list[str]) -> bool:
    """The beginning of a known kind, or that of another noun."""
    nouns = [vars(noun).get("registry") for noun in HasKinds.__subclasses__()]
    kinds = [known for known in nouns if known is not None and known.key == "kind"]
    elsewhere = {other for known in kinds for other in known.names()}
    return any(name.startswith(kind) for name in known) or kind in elsewhere


def _first_problem(error: ValidationError) -> Any:
    """Returns the first problem; for a missing key the unknown one beside it, if any."""
    first, *others = error.errors(include_url=False)
    section = first["loc"][:-1]
    beside = (p for p in others if p["type"] == "extra_forbidden" and p["loc"][:-1] == section)
    return next(beside, first) if first["type"] == "missing" else first


def _unknown_key(location: tuple[int | str, ...]) -> str:
    *parents, key = location
    known = _known_keys(RunConfig, tuple(parents))
    close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    where = ".".join(str(part) for part in location)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"
    return f"{where}: unknown key {key!r}{hint}"


def keys_in(section: type[BaseModel]) -> list[str]:
    """Returns the keys that a section of this class takes.

    Example:
        >>> from mmoe.config import TableConfig
        >>> keys_in(TableConfig)[:2], keys_in(TableConfig)[-1]
        (['encoding', 'min_count'], 'name')
    """
    theirs = ENCODINGS.all_keys() if issubclass(section, TableSettings) else []
    return [*theirs, *section.model_fields]


def _defaults_of(kinds: Kinds[Any]) -> dict[str, list[Any]]:
    """Returns a section's defaults by kind, as YAML has them."""
    found: dict[str, list[Any]] = {}
    for section in kinds.classes():
        beside = ENCODINGS.classes() if issubclass(section, TableSettings) else []
        for key, field in (
            item for model in (section, *beside) for item in model.model_fields.items()
        ):
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            found.setdefault(key, []).append(to_jsonable_python(default))
    if ENCODINGS.key in found:
        found[ENCODINGS.key] = [ENCODINGS.default]
    return found


def _known_keys(model: type[BaseModel], parents: tuple[int | str, ...]) -> list[str]:
    """Keys of the section at `parents`, found by walking the annotations."""
    annotations: list[Any] = [model]
    for part in parents:
        annotations = [inside for annotation in annotations for inside in _inside(annotation, part)]
    sections = [section for annotation in annotations for section in models_in(annotation)]
    return sorted({key for section in sections for key in keys_in(section)})


def _inside(annotation: Any, part: int | str) -> list[Any]:
    """Returns what an annotation holds at one part of pydantic's location of an error.

    A part is a key, a position, or the kind of a section that has to name it.
    """
    kinds = kinds_of(annotation)
    if kinds is not None:
        if kinds.default is None:
            return [kinds.config_class(str(part))]
        return [inside for model in kinds.classes() for inside in _inside(model, part)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return [] if field is None else [field.annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inside(arguments[0], part)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [arguments[1]]
    if isinstance(origin, type) and issubclass(origin, list | tuple):
        return [argument for argument in arguments if argument is not ...]
    return [inside for argument in arguments for inside in _inside(argument, part)]


def models_in(annotation: Any, *, expand: bool = True) -> list[type[BaseModel]]:
    """Returns the sections that a value of this type holds; `expand`: of every kind."""
    kinds = kinds_of(annotation) if expand else None
    if kinds is not None:
        return kinds.classes()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in get_args(annotation) for m in models_in(part, expand=expand)]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def with_used_modules(config: RunConfig) -> RunConfig:
    """Returns the config with the modules of its kinds among `imports`, those that it lacks.

    Built-in kinds need none, nor do those of installed plugins; those of a notebook or script
    (`__main__`) have none that another process could import.

    Example:
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> with_used_modules(config).imports
        []
    """
    # A kind was registered where what implements it is
    used = dict.fromkeys(
        section.registry.implementation(section).__module__
        for _, section in sections_of(config)
        if isinstance(section, HasKinds) and not type(section).__module__.startswith("mmoe.")
    )
    named = list(config.imports)
    if used:
        known = [*named, *installed_modules(), "__main__"]
        named += [
            module
            for module in used
            if not any(f"{module}.".startswith(f"{name}.") for name in known)
        ]
    return config.model_copy(update={"imports": named})

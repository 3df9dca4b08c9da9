"""Base classes of config sections: strict ones, and those of which there are kinds."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import (
    CoreSchema,
    PydanticKnownError,
    SchemaValidator,
    ValidationError,
    core_schema,
)

from mmoe.plugins import MODULE_NAME, load_installed

NAME = r"^[A-Za-z_][A-Za-z0-9_\-]*$"  # a dot would part it in training.monitor
Name = Annotated[str, Field(pattern=NAME, max_length=200)]
ModuleName = Annotated[str, Field(pattern=MODULE_NAME, max_length=200)]


class Strict(BaseModel):
    """A config section that refuses unknown keys, so that no misspelt one passes in silence.

    Its methods called `_ensure_…` are run when a section is made, a base class's first: they refuse
    values that do not go together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        """Refuses a key that a base class says of its kinds: it would never be read."""
        super().__pydantic_init_subclass__(**keywords)
        for key in vars(cls).get("__annotations__", {}).keys() & cls.model_fields.keys():
            base = next((b for b in cls.__mro__ if isinstance(vars(b).get(key), property)), None)
            if base is not None:
                raise TypeError(
                    f"{cls.__name__}: expected a name for the key {key!r} that {base.__name__} "
                    "has not for itself; call it otherwise"
                )

    @model_validator(mode="after")
    def _run_checks(self) -> Self:
        return self._checked()

    def _checked(self) -> Self:
        for name in _checks_of(type(self)):
            getattr(self, name)()
        return self


@cache
def _checks_of(section: type[Strict]) -> tuple[str, ...]:
    known = (name for cls in reversed(section.__mro__) for name in vars(cls))
    return tuple(name for name in dict.fromkeys(known) if name.startswith("_ensure_"))


def _is_noun(section: type) -> bool:
    """Whether a class is a noun, by name: pydantic asks before `HasKinds` exists."""
    return any(base.__name__ == "HasKinds" for base in section.__bases__)


class HasKinds(Strict):
    """Base of a section with kinds: its direct subclasses are nouns, theirs the kinds.

    As the type of a field the noun's class takes whatever kinds there are when a value comes;
    called, it gives a section of the class of the kind asked for.

    Example:
        >>> from typing import Literal
        >>> class Lamp(HasKinds):
        ...     kind: str
        >>> class Bulb(Lamp):
        ...     kind: Literal["bulb"] = "bulb"
        ...     watts: int = 40
        >>> LAMPS = Kinds("lamp", Lamp, default="bulb")
        >>> LAMPS.add("bulb", Bulb, "builtins:print")
        >>> Lamp(watts=60)
        Bulb(kind='bulb', watts=60)
    """

    registry: ClassVar["Kinds[Any]"]  # the noun's `Kinds` puts itself here
    # Key of other kinds → why this one has none, and the mend; may name {kind}
    why_not: ClassVar[Mapping[str, str]] = {}
    not_built_with: ClassVar[frozenset[str]] = frozenset()  # keys that `keywords` leaves out

    def __new__(cls, *_: Any, **data: Any) -> "HasKinds":
        """An empty section: of a kind's class, also where the noun's was called."""
        made: Any = cls.registry.class_of(data) if _is_noun(cls) else cls
        return super().__new__(made)

    def keywords(self) -> dict[str, Any]:
        """Returns what its implementation is built with, beside sizes: keys but for the kind's."""
        without = {self.registry.key, *self.not_built_with}
        return {key: value for key, value in self if key not in without}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Builds pydantic's schema; every key of a kind's class is written."""
        if not _is_noun(cls):
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            lambda value: cls.registry.validate(value),
            serialization=core_schema.simple_ser_schema("any"),
        )

    @model_validator(mode="before")
    @classmethod
    def _keys_are_its_own(cls, raw: Any) -> Any:
        """Refuses keys of other kinds; where a kind has to be named they are unknown keys."""
        if (
            isinstance(raw, Mapping)
            and hasattr(cls, "registry")
            and cls.registry.default is not None
        ):
            theirs = cls.registry.keys_of(cls)
            for key in filter(theirs.__contains__, raw):
                raise ValueError(cls._refused(key, raw[key], theirs[key]))
        return raw

    @classmethod
    def _refused(cls, key: str, value: Any, kinds: list[str]) -> str:
        by = cls.registry.key
        kind = cls.model_fields[by].default
        if key in cls.why_not:
            said = "set" if isinstance(value, BaseModel | Mapping | list) else value
            return f"{key} is {said}, but {cls.why_not[key].format(kind=kind)}"
        return (
            f"{key} goes with {by} {' or '.join(kinds)}, but {by} is {kind}; remove {key}, or "
            f"change {by}"
        )


Noun = TypeVar("Noun", bound=HasKinds)
# A bare name is short for {kind: name}
OrName = Annotated[Noun, BeforeValidator(lambda v: {"kind": v} if isinstance(v, str) else v)]


class Kinds(Generic[Noun]):
    """Registry of a noun's kinds: name → config class, and what it is implemented by.

    Args:
        noun: What they are kinds of, for messages.
        base: The class that all config classes derive from; a field of this type takes any kind.
        default: The kind of a section that names none; None: it has to.
        key: The key that tells the kinds apart.

    Example:
        >>> from mmoe.config.features import FEATURES
        >>> FEATURES.names()[:2], FEATURES.config_class("list").__name__
        (['numeric', 'categorical'], 'ListFeature')
    """

    def __init__(
        self, noun: str, base: type[Noun], *, default: str | None = None, key: str = "kind"
    ) -> None:
        self.noun, self.base, self.default, self.key = noun, base, default, key
        self._classes: dict[str, type[Noun]] = {}
        self._implementations: dict[str, Any] = {}
        base.registry = self

    def add(self, kind: str, config_class: type[Noun], implementation: Any) -> None:
        """Makes a kind known.

        Args:
            kind: Its name.
            config_class: What a section of this kind holds; the default of its `kind` is the name.
            implementation: What the kind is built by, or where that is, as `module:attribute`, to
                be imported when it is asked for.

        Raises:
            ValueError: There is such a kind, the name is none, or the class is not one of this noun
                and name.
        """
        what = f"{self.noun} {kind!r}"
        if not isinstance(kind, str) or re.fullmatch(NAME, kind) is None:
            raise ValueError(
                f"{what}: expected a name of letters, digits, _ and -, with a letter or _ in front"
            )
        if kind in self._classes:
            raise ValueError(
                f"{what}: there is such a kind, {self._classes[kind].__name__}; choose another name"
            )
        if not (isinstance(config_class, type) and issubclass(config_class, self.base)):
            came = getattr(config_class, "__name__", repr(config_class))
            raise ValueError(
                f"{what}: expected a config class that derives from {self.base.__name__}, got "
                f"{came}"
            )
        field = config_class.model_fields.get(self.key)
        if field is None or field.default != kind:
            raise ValueError(
                f"{what}: {config_class.__name__} says another {self.key} or none; give it "
                f'`{self.key}: Literal["{kind}"] = "{kind}"`'
            )
        self._classes[kind], self._implementations[kind] = config_class, implementation

    def remove(self, kind: str) -> None:
        """Forgets a kind that was added."""
        del self._classes[kind], self._implementations[kind]

    def knows(self, kind: Any) -> bool:
        """Returns whether there is such a kind; one that is not known may be an installed one."""
        if not isinstance(kind, str):
            return False
        if kind not in self._classes:
            load_installed()
        return kind in self._classes

    def names(self) -> list[str]:
        """Lists all kinds, in the order in which they came."""
        return list(self._classes)

    def classes(self) -> list[type[Noun]]:
        """Lists their config classes."""
        return list(self._classes.values())

    def config_class(self, kind: str) -> type[Noun]:
        """Returns the class of a kind's section.

        Raises:
            ValueError: There is no such kind.
        """
        self._check(kind)
        return self._classes[kind]

    def implementation(self, config: Noun | str) -> Any:
        """Returns what builds a kind, of which a section or the name is given.

        Raises:
            ValueError: There is no such kind.
        """
        kind = config if isinstance(config, str) else getattr(config, self.key)
        self._check(kind)
        found = self._implementations[kind]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self._implementations[kind] = getattr(import_module(module), attribute)
        return found

    def keys_of(self, own: type[Noun]) -> dict[str, list[str]]:
        """Returns the keys that kinds have and the class `own` has not, each with its kinds."""
        found: dict[str, list[str]] = {}
        for kind, other in self._classes.items():
            for key in other.model_fields:
                if key not in own.model_fields:
                    found.setdefault(key, []).append(kind)
        return found

    def all_keys(self) -> list[str]:
        """Lists the keys of all kinds, the one that tells them apart first."""
        return [*self.base.model_fields, *self.keys_of(self.base)]

    def validate(self, value: Any) -> Noun:
        """Makes a section out of a mapping; returns the section that came.

        Raises:
            ValidationError: As pydantic's unions raise it; where a kind need not be named, as a
                model with a `Literal` does.
        """
        if isinstance(value, self.base):
            return value
        if self.default is None:
            if isinstance(value, Mapping):
                self.knows(value.get(self.key))
            return self._tagged().validate_python(value)
        if not isinstance(value, Mapping):
            raise PydanticKnownError("model_type", {"class_name": self.base.__name__})
        return self.class_of(value).model_validate(value)

    def class_of(self, section: Mapping[str, Any]) -> type[Noun]:
        """Returns the class of the kind that a raw section names.

        Raises:
            ValidationError: It names none that there is.
        """
        kind = section.get(self.key, self.default)
        if self.knows(kind):
            return self._classes[kind]
        context = {"expected": _alternatives(self._classes)}
        wrong = {"type": "literal_error", "loc": (self.key,), "input": kind, "ctx": context}
        if kind is None and self.key not in section:
            wrong = {"type": "missing", "loc": (self.key,), "input": section}
        raise ValidationError.from_exception_data(self.base.__name__, [wrong])  # type: ignore[list-item]

    def _tagged(self) -> SchemaValidator:
        choices: dict[Any, CoreSchema] = {
            kind: core_schema.no_info_plain_validator_function(config_class.model_validate)
            for kind, config_class in self._classes.items()
        }
        return SchemaValidator(core_schema.tagged_union_schema(choices, self.key))

    def _check(self, kind: str) -> None:
        if kind not in self._classes:
            raise ValueError(
                f"{self.noun} {kind!r}: there is no such kind; expected one of "
                f"{', '.join(self._classes)}"
            )


def kinds_of(annotation: Any) -> "Kinds[Any] | None":
    """Returns the kinds of a noun whose class it is, or None.

    Example:
        >>> from mmoe.config import Feature, NumericFeature
        >>> kinds_of(Feature).noun, kinds_of(NumericFeature)
        ('feature', None)
    """
    return annotation.registry if isinstance(annotation, type) and _is_noun(annotation) else None


def _alternatives(names: Iterable[str]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last

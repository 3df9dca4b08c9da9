"""`Inlines`: a section among whose keys those of one kind of a noun stand."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import (
    BaseModel,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from mmoe.config.base import Strict
from mmoe.config.kinds import HasKinds, Kinds


class Inlines(Strict):
    """Base of a section that takes and writes the keys of a noun's kind beside its own.

    Its own keys come last when it is written. All of them can be read as its attributes.

    Attributes:
        inlines: The kinds of the noun.

    Example:
        >>> from mmoe.config import TableSettings
        >>> settings = TableSettings(encoding="hash", hash_size=64, dim=8)
        >>> settings.table_encoding, settings.hash_size
        (HashEncoding(encoding='hash', hash_size=64), 64)
        >>> settings.model_dump()
        {'encoding': 'hash', 'hash_size': 64, 'dim': 8, 'learning_rate': None}
    """

    inlines: ClassVar[Kinds[Any]]

    _inlined: HasKinds = PrivateAttr()

    if TYPE_CHECKING:

        def __init__(self, **keys: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        """Reads a key of the inlined section."""
        if name in self.inlines.all_keys():
            return getattr(self._inlined, name)
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic shows checkers none

    def __repr_args__(self) -> Any:
        """With the keys of the inlined section, which come first."""
        yield from self._inlined.__repr_args__()
        yield from super().__repr_args__()

    @property
    def inlined(self) -> HasKinds:
        """The section that the inlined keys are of."""
        return self._inlined

    @model_validator(mode="wrap")
    @classmethod
    def _collect(cls, raw: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Makes the inlined section of its keys; errors name them where they stand."""
        if not isinstance(raw, Mapping):
            return handler(raw)
        known = cls.inlines.all_keys()
        theirs = {key: raw[key] for key in raw if key in known}
        own = {key: raw[key] for key in raw if key not in theirs}
        try:
            inlined = cls.inlines.validate(theirs)
        except ValidationError as error:
            if not error.errors()[0]["loc"]:
                handler(own)  # a wrong key is refused before keys that do not go together
            raise
        section = handler(own)
        section._inlined = inlined
        return section

    @model_serializer(mode="wrap")
    def _write(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        exclude: Any = info.exclude
        return self._inlined.model_dump(mode=info.mode, exclude=exclude) | handler(self)


def keys_in(section: type[BaseModel]) -> list[str]:
    """Returns the keys that a section of this class takes.

    Example:
        >>> from mmoe.config import TableConfig
        >>> keys_in(TableConfig)[:2], keys_in(TableConfig)[-1]
        (['encoding', 'min_count'], 'name')
    """
    theirs = section.inlines.all_keys() if issubclass(section, Inlines) else []
    return [*theirs, *section.model_fields]


def defaults_of(section: type[BaseModel]) -> dict[str, Any]:
    """Returns the defaults of the same keys; `PydanticUndefined` where a key is needed.

    Example:
        >>> from mmoe.config import NumericFeature
        >>> defaults_of(NumericFeature)["buckets"]
        0
    """
    theirs = section.inlines.classes() if issubclass(section, Inlines) else []
    fields = [item for model in (*theirs, section) for item in model.model_fields.items()]
    return {key: field.get_default(call_default_factory=True) for key, field in fields}

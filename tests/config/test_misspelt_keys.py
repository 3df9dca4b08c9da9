"""A misspelt key is answered with the key that was meant, in every section of every kind."""

from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from mmoe.config import config_from_dict
from mmoe.config.kinds import kinds_of
from mmoe.config.loading import keys_in
from mmoe.config.run import RunConfig

CLICK = {"name": "click", "label": "click"}
SMALL = {"features": [{"kind": "numeric", "name": "age"}], "tasks": [CLICK]}
# What a section needs beside the misspelt key, by its class
NEEDED: dict[str, dict[str, Any]] = {
    "TableConfig": {"name": "t"},
    "NumericFeature": {"kind": "numeric", "name": "age"},
    "CategoricalFeature": {"kind": "categorical", "name": "age"},
    "ListFeature": {"kind": "list", "name": "age"},
    "CrossFeature": {"kind": "cross", "name": "age", "columns": ["a", "b"]},
    "DatetimeFeature": {"kind": "datetime", "name": "age", "parts": ["hour"]},
    "SequenceFeature": {"kind": "sequence", "name": "age", "columns": ["a"]},
    "BinaryTask": CLICK,
    "RegressionTask": {**CLICK, "kind": "regression"},
    "HuberTask": {**CLICK, "kind": "huber"},
    "WatchTimeTask": {**CLICK, "kind": "watch_time"},
    "ZilnTask": {**CLICK, "kind": "ziln"},
    "MulticlassTask": {**CLICK, "kind": "multiclass", "classes": ["a", "b"]},
    "OrdinalTask": {**CLICK, "kind": "ordinal", "lowest": 1, "highest": 5},
    "D2QTask": {**CLICK, "kind": "d2q", "duration": "seconds"},
    "CGCConfig": {"kind": "cgc"},
    "PLEConfig": {"kind": "ple"},
    "EntireSpaceTask": {**CLICK, "kind": "entire_space"},
    "BprTask": {**CLICK, "kind": "bpr", "group": "session"},
    "SoftmaxTask": {**CLICK, "kind": "softmax", "group": "session"},
    "JrcTask": {**CLICK, "kind": "jrc", "group": "session"},
}


def _sections(annotation: Any, wrap: Any = lambda section: section):
    """Every model within an annotation, with what puts a raw section of it into a raw config."""
    kinds = kinds_of(annotation)
    if kinds is not None:
        for model in kinds.classes():
            yield from _sections(model, wrap)
        return
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, wrap
        for name, field in annotation.model_fields.items():

            def nested(section, name=name, outer=annotation):
                return wrap({**NEEDED.get(outer.__name__, {}), name: section})

            yield from _sections(field.annotation, nested)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        arguments = arguments[:1]
    elif origin is list:
        yield from _sections(arguments[0], lambda section: wrap([section]))
        return
    elif origin is dict:
        yield from _sections(arguments[1], lambda section: wrap({"age": section}))
        return
    elif origin is Literal:
        return
    for argument in arguments:
        yield from _sections(argument, wrap)


def _kinds(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The section as it is for each of its kinds."""
    needed = NEEDED.get(model.__name__, {})
    field = model.model_fields.get("kind")
    kinds = get_args(field.annotation) if field and "kind" not in needed else ()
    return [{**needed, "kind": kind} for kind in kinds] or [needed]


def test_the_key_that_was_meant_is_named():
    found = {}
    for model, wrap in _sections(RunConfig):
        for section in _kinds(model):
            found[model.__name__] = keys = keys_in(model)
            for key in keys:
                with pytest.raises(ValueError, match=rf"key '{key}_'; did you mean '{key}'\?"):
                    config_from_dict({**SMALL, **wrap({**section, f"{key}_": 1})})
    assert {"RunConfig", "CrossFeature", "CosineGateConfig", "TableConfig"} <= found.keys()


@pytest.mark.parametrize(("feature", "says"), [
    ({"kind": "cross", "colums": ["a", "b"]}, r"unknown key 'colums'; did you mean 'columns'"),
    ({"kind": "cross"}, "columns: is required, but missing"),
    ({"kind": "datetime", "qqqq": 1, "parts": ["hour"]}, "known here: column, .*parts.*unit"),
    ({}, r"features\.0\.kind: is required, but missing"),
])  # fmt: skip
def test_keys_that_are_missing_or_far_from_any(feature, says):
    with pytest.raises(ValueError, match=says):
        config_from_dict({**SMALL, "features": [{"name": "x", **feature}]})

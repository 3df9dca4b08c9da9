"""A misspelt key is answered with the key that was meant, in every section of every kind."""

from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from mmoe.config import config_from_dict
from mmoe.config.kinds import kinds_of
from mmoe.config.loading import keys_in
from mmoe.config.run import RunConfig

SMALL = {
    "features": [{"kind": "numeric", "name": "age"}],
    "tasks": [{"name": "click", "label": "click"}],
}
# What a section needs beside the misspelt key, by its class
NEEDED: dict[str, dict[str, Any]] = {
    "TableConfig": {"name": "t"},
    "NumericFeature": {"kind": "numeric", "name": "age"},
    "CategoricalFeature": {"kind": "categorical", "name": "age"},
    "ListFeature": {"kind": "list", "name": "age"},
    "CrossFeature": {"kind": "cross", "name": "age", "columns": ["a", "b"]},
    "DatetimeFeature": {"kind": "datetime", "name": "age", "parts": ["hour"]},
    "SequenceFeature": {"kind": "sequence", "name": "age", "columns": ["a"]},
    "BinaryTask": {"name": "click", "label": "click"},
    "RegressionTask": {"name": "click", "label": "click", "kind": "regression"},
    "HuberTask": {"name": "click", "label": "click", "kind": "huber"},
    "WatchTimeTask": {"name": "click", "label": "click", "kind": "watch_time"},
    "ZilnTask": {"name": "click", "label": "click", "kind": "ziln"},
    "MulticlassTask": {
        "name": "click",
        "label": "click",
        "kind": "multiclass",
        "classes": ["a", "b"],
    },
    "OrdinalTask": {
        "name": "click",
        "label": "click",
        "kind": "ordinal",
        "lowest": 1,
        "highest": 5,
    },
    "D2QTask": {"name": "click", "label": "click", "kind": "d2q", "duration": "seconds"},
    "CGCConfig": {"kind": "cgc"},
    "PLEConfig": {"kind": "ple"},
    "EntireSpaceTask": {"name": "click", "label": "click", "kind": "entire_space"},
    "BprTask": {"name": "click", "label": "click", "kind": "bpr", "group": "session"},
    "SoftmaxTask": {"name": "click", "label": "click", "kind": "softmax", "group": "session"},
    "JrcTask": {"name": "click", "label": "click", "kind": "jrc", "group": "session"},
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


CASES = [
    pytest.param(wrap, section, model, id=f"{model.__name__}-{section.get('kind', '')}")
    for model, wrap in _sections(RunConfig)
    for section in _kinds(model)
]


def test_the_walk_finds_the_sections():
    found = {case.values[2].__name__ for case in CASES}
    assert {
        "RunConfig",
        "CrossFeature",
        "DatetimeFeature",
        "CosineGateConfig",
        "TableConfig",
    } <= found
    assert len(found) >= 18


@pytest.mark.parametrize(("wrap", "section", "model"), CASES)
def test_the_key_that_was_meant_is_named(wrap, section, model):
    for key in keys_in(model):
        misspelt = f"{key}_"
        raw = wrap({**section, misspelt: 1})
        with pytest.raises(ValueError, match="unknown key") as caught:
            config_from_dict({**SMALL, **raw})
        says = str(caught.value)
        assert f"unknown key {misspelt!r}; did you mean {key!r}?" in says


def test_a_needed_key_that_is_misspelt_is_not_called_missing():
    raw = {**SMALL, "features": [{"kind": "cross", "name": "x", "colums": ["a", "b"]}]}
    with pytest.raises(ValueError, match=r"unknown key 'colums'; did you mean 'columns'\?"):
        config_from_dict(raw)
    with pytest.raises(ValueError, match="columns: is required, but missing"):
        config_from_dict({**SMALL, "features": [{"kind": "cross", "name": "x"}]})


def test_far_from_any_key_all_are_listed():
    raw = {**SMALL, "features": [{"kind": "datetime", "name": "x", "qqqq": 1, "parts": ["hour"]}]}
    with pytest.raises(ValueError, match=r"known here: column, .*parts.*unit"):
        config_from_dict(raw)


def test_a_misspelt_kind_is_answered_with_all_kinds():
    with pytest.raises(ValueError, match=r"features\.0\.kind: expected one of 'numeric', 'cat.*'"):
        config_from_dict(
            {"features": [{"kind": "num", "name": "x"}], "tasks": [{"name": "y", "label": "y"}]}
        )
    with pytest.raises(ValueError, match=r"features\.0\.kind: is required, but missing"):
        config_from_dict({"features": [{"name": "x"}], "tasks": [{"name": "y", "label": "y"}]})

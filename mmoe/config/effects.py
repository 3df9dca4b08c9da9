"""Keys that do nothing beside others: a table of what each needs, by which configs are refused."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from mmoe.config.data import SplitConfig
from mmoe.config.experts import CapacityConfig, MLPExpertConfig, MLPTowerConfig
from mmoe.config.features import Feature, ListFeature, NumericFeature, SequenceFeature
from mmoe.config.gates import (
    LearnedGateConfig,
    NoisyTopKGateConfig,
    SelectingGateConfig,
    SigmoidGateConfig,
    StaticGateConfig,
)
from mmoe.config.parallel import ParallelConfig
from mmoe.config.run import RunConfig
from mmoe.config.tables import TableConfig

_ITSELF = ""
_Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Needs:
    """Keys of a section that have an effect only with certain values of other keys.

    Attributes:
        section: Class or classes of the section.
        keys: That have none otherwise; `_ITSELF` is the whole section.
        has_effect: Told the section and the run.
        why: Words for why not, and what to set; `{...}` are attributes of the section.
    """

    section: type[BaseModel] | tuple[type[BaseModel], ...]
    keys: Sequence[str]
    has_effect: Callable[[Any, RunConfig], object]
    why: str


def _balances(gate: LearnedGateConfig, _: RunConfig) -> object:
    """Whether anything evens loads out, whose scope is asked for."""
    if isinstance(gate, SigmoidGateConfig) and gate.bias_speed:
        return True
    if isinstance(gate, NoisyTopKGateConfig) and (gate.importance_loss or gate.load_loss):
        return True
    return gate.balance_loss or (gate.balance_loss is None and gate.balances)


def _drops(capacity: CapacityConfig, _: RunConfig) -> bool:
    return capacity.factor != 0 or capacity.maximum is not None


_OF_SPREAD = ("slices", "shadowed", "exchange", "chunks", "rebalance", "wire_precision")

# Not here are keys that the validators of a section refuse, and those that one command, machine or
# log of several needs: defaults of whatever tables there are (`model.embedding_dim`), how rows are
# streamed where they are (`data.streaming`, beside `--set data.input=memory`), what ranks do
NEEDS: Sequence[Needs] = (
    Needs(
        SplitConfig,
        ["validation"],
        lambda s, run: s.by != "file" or run.data.validation is None,
        "data.validation has the rows; remove one of them",
    ),
    Needs(
        SplitConfig,
        ["test"],
        lambda s, _: s.by not in ("file", "day"),
        "a split by {by} says itself which rows test; remove it",
    ),
    Needs(
        TableConfig,
        [_ITSELF],
        lambda t, run: any(t.name in feature.table_names for feature in run.features),
        "no feature uses it; say table: {name} in a feature, or remove it",
    ),
    Needs(
        Feature,
        ["level"],
        lambda f, run: f.level == "request" or run.data.requests is not None,
        "nothing says which rows are one request; set data.requests, or remove level",
    ),
    Needs(
        NumericFeature,
        ["dim"],
        lambda f, _: f.buckets,
        "it is the width of buckets, and there are none; set buckets, or remove dim",
    ),
    Needs(
        (ListFeature, SequenceFeature),
        ["separator"],
        lambda f, _: f.format != "json",
        "format: json says where items end; remove one of them",
    ),
    Needs(
        MLPTowerConfig,
        ["activation", "dropout"],
        lambda t, _: t.hidden,
        "it comes after hidden layers, and hidden is []; set hidden, or remove it",
    ),
    Needs(
        MLPExpertConfig,
        ["activation"],
        lambda e, _: len(e.hidden) > 1 or e.output_activation == "same",
        "the one layer has output_activation {output_activation}; remove one of them",
    ),
    Needs(
        LearnedGateConfig,
        ["balance_scope"],
        _balances,
        "no loss evens loads out; set balance_loss, or remove balance_scope",
    ),
    Needs(
        SelectingGateConfig,
        ["floor"],
        lambda g, _: g.budget is not None,
        "there is no budget; set budget, or remove floor",
    ),
    Needs(
        StaticGateConfig,
        ["softmax"],
        lambda g, _: g.k is not None,
        "the gate weighs all experts; set k, or remove softmax",
    ),
    Needs(
        CapacityConfig,
        ["priority"],
        _drops,
        "factor 0 drops no row; set factor or maximum, or remove it",
    ),
    Needs(
        CapacityConfig,
        ["minimum"],
        lambda c, run: _drops(c, run) or run.model.execution == "padded",
        "factor 0 drops no row; set factor or maximum, or remove it",
    ),
    Needs(
        ParallelConfig,
        _OF_SPREAD,
        lambda p, _: p.experts != "replicated",
        "experts is replicated, so that every rank has all of them; set experts: spread or auto, "
        "or remove it",
    ),
)


def refuse_without_effect(run: RunConfig) -> None:
    """Refuses a key that says something and does nothing beside the others.

    A key at its default says nothing, so that a config with every default spelled out reads back.

    Raises:
        ValueError: Names the key, what it needs, and the mend.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age", "dim": 8}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        Traceback (most recent call last):
        ValueError: config: features.age.dim is 8, which has no effect: it is the width of \
buckets, and there are none; set buckets, or remove dim
    """
    for place, key, needs in _unused(run):
        raise ValueError(_words(run, place, key, needs))


def without_unused(run: RunConfig) -> RunConfig:
    """Returns the run with such keys at their defaults, and without tables that no feature uses."""
    raw = run.model_dump(mode="json")
    for place, key, _ in reversed([*_unused(run)]):
        whole = key == _ITSELF
        _at(raw, place[:-1] if whole else place).pop(place[-1] if whole else key)
    return RunConfig.model_validate(raw)


def _unused(run: RunConfig) -> Iterator[tuple[_Place, str, Needs]]:
    for place, section in sections_of(run):
        for needs in NEEDS:
            for key in needs.keys if isinstance(section, needs.section) else ():
                if _says(section, key) and not needs.has_effect(section, run):
                    yield place, key, needs


def _says(section: BaseModel, key: str) -> bool:
    if key == _ITSELF:
        return True
    field = type(section).model_fields.get(key)
    return field is not None and getattr(section, key) != field.get_default(
        call_default_factory=True
    )


def _words(run: RunConfig, place: _Place, key: str, needs: Needs) -> str:
    """Returns one sentence, with the key as `--set` takes it."""
    section, path, node = _at(run, place), [], run
    for step in place:
        node = _at(node, (step,))
        path.append(str(getattr(node, "name", step)) if isinstance(step, int) else step)
    why = needs.why.format(**{name: getattr(section, name) for name in type(section).model_fields})
    if key == _ITSELF:
        return f"{'.'.join(path)} has no effect: {why}"
    value = getattr(section, key)
    said = "set" if isinstance(value, BaseModel) else repr(value)
    return f"{'.'.join([*path, key])} is {said}, which has no effect: {why}"


def sections_of(value: Any, place: _Place = ()) -> Iterator[tuple[_Place, BaseModel]]:
    """Yields a section and those inside it, each with the keys and numbers that lead to it."""
    inside: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, BaseModel):
        yield place, value
        inside = ((key, getattr(value, key)) for key in type(value).model_fields)
    elif isinstance(value, list | dict):
        inside = enumerate(value) if isinstance(value, list) else value.items()
    for key, item in inside:
        yield from sections_of(item, (*place, key))


def _at(node: Any, place: _Place) -> Any:
    for step in place:
        node = getattr(node, str(step)) if isinstance(node, BaseModel) else node[step]
    return node

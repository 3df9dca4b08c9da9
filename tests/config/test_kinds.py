"""Registries of kinds: what may be added, and how a kind that was added reads."""

import pickle
from typing import Literal

import pytest
import yaml
from pydantic import Field, TypeAdapter, ValidationError

from mmoe.config import FEATURES, Feature, GateConfig, config_from_dict, dump_config
from mmoe.config.features import CategoricalFeature
from mmoe.config.features import Feature as FeatureBase
from mmoe.config.kinds import HasKinds, Kinds


class Lamp(HasKinds):
    """A noun."""

    kind: str
    watts: int = Field(default=40, description="power")


class Bulb(Lamp):
    kind: Literal["bulb"] = "bulb"
    base: Literal["E14", "E27"] = "E27"


class Tube(Lamp):
    kind: Literal["tube"] = "tube"
    length: float = Field(default=1.2, gt=0)


class Geohash(FeatureBase):
    """A feature kind of somebody's."""

    kind: Literal["geohash"] = "geohash"
    name: str = Field(description="of the feature")
    digits: int = Field(default=5, ge=1, description="of the hash")

    @property
    def source_columns(self) -> list[str]:
        return [self.name]


@pytest.fixture
def lamps():
    kinds = Kinds("lamp", Lamp, default="bulb")
    kinds.add("bulb", Bulb, "builtins:len")
    kinds.add("tube", Tube, max)
    return kinds


def test_what_is_looked_up(lamps):
    assert lamps.names() == ["bulb", "tube"]
    assert lamps.config_class("tube") is Tube
    assert lamps.implementation("bulb") is len
    assert lamps.implementation(Tube()) is max
    with pytest.raises(
        ValueError, match="lamp 'neon': there is no such kind; expected one of bulb"
    ):
        lamps.implementation("neon")


@pytest.mark.parametrize(("kind", "config_class", "message"), [
    ("bulb", Bulb, "lamp 'bulb': there is such a kind, Bulb; choose another name"),
    ("", Tube, "lamp '': expected a name of letters, digits, _ and -"),
    ("my.tube", Tube, "lamp 'my.tube': expected a name"),
    (None, Tube, "lamp None: expected a name"),
    ("neon", dict, "expected a config class that derives from Lamp, got dict"),
    ("neon", Tube, """give it `kind: Literal\\["neon"\\] = "neon"`"""),
    ("neon", Lamp, "lamp 'neon': Lamp says another kind or none"),
])  # fmt: skip
def test_what_may_not_be_added(lamps, kind, config_class, message):
    with pytest.raises(ValueError, match=message):
        lamps.add(kind, config_class, print)
    assert lamps.names() == ["bulb", "tube"]


def test_a_feature_says_its_name_and_where_it_is_read_from():
    class Nameless(FeatureBase):
        kind: Literal["bare"] = "bare"
        source_columns = Geohash.source_columns

    class Rootless(FeatureBase):
        kind: Literal["bare"] = "bare"
        name: str

    for config_class, lacks in ((Nameless, "key `name`"), (Rootless, "property `source_columns`")):
        with pytest.raises(ValueError, match=f"'bare': {config_class.__name__} has no {lacks}"):
            FEATURES.add("bare", config_class, print)


@pytest.mark.filterwarnings("ignore:Field name")
def test_a_key_that_a_base_class_says_of_its_kinds_is_refused():
    """It would never be read."""
    with pytest.raises(TypeError, match="Voting: expected a name for the key 'voters' that Gate"):

        class Voting(GateConfig):
            kind: Literal["voting"] = "voting"
            voters: int = 3


def test_a_check_may_ask_for_the_encoding_of_a_table():
    class Frugal(CategoricalFeature):
        kind: Literal["frugal"] = "frugal"

        def _ensure_few(self):
            if self.table_encoding.encoding != "hash":
                raise ValueError("expected hashed ids")

    assert Frugal(name="user", encoding="hash").table_encoding.hash_size
    with pytest.raises(ValidationError, match="expected hashed ids"):
        Frugal(name="user")


def test_the_class_of_the_noun_gives_that_of_the_kind(lamps):
    assert Lamp() == Bulb() and type(Lamp(kind="tube", length=2)) is Tube
    assert type(Lamp.model_validate({"kind": "tube"})) is Tube
    read = TypeAdapter(list[Lamp]).validate_python([{"base": "E14"}, Tube()])
    assert read == [Bulb(base="E14"), Tube()]
    lamp = Lamp(kind="tube", watts=9)
    assert pickle.loads(pickle.dumps(lamp)) == lamp == lamp.model_copy()
    assert TypeAdapter(Lamp).dump_python(lamp) == {"kind": "tube", "watts": 9, "length": 1.2}


def test_keys_of_other_kinds_and_wrong_kinds_are_refused(lamps, monkeypatch):
    for base in ("E27", "E14"):  # at its default too
        with pytest.raises(ValueError, match="base goes with kind bulb, but kind is tube; remove"):
            Lamp.model_validate({"base": base, "kind": "tube"})
    with pytest.raises(ValueError, match="length goes with kind tube, but kind is bulb"):
        Lamp(length=2.0)
    for raw in ({"kind": "neon"}, {"kind": ["bulb"]}, {"kind": None}):
        for read in (Lamp.model_validate, lambda raw: Lamp(**raw)):
            with pytest.raises(ValidationError, match="Input should be 'bulb' or 'tube'") as caught:
                read(raw)
            assert caught.value.errors()[0]["loc"] == ("kind",)
    monkeypatch.setattr(Tube, "why_not", {"base": "a {kind} has two pins; remove it"})
    for base, shown in (("E14", "E14"), (["E14"], "set")):
        with pytest.raises(ValueError, match=f"base is {shown}, but a tube has two pins"):
            Lamp(kind="tube", base=base)


def test_a_feature_of_somebody_reads_and_is_written():
    raw = {
        "features": [{"kind": "geohash", "name": "place", "digits": 7}],
        "tasks": [{"name": "click", "label": "click"}],
    }
    with pytest.raises(ValueError, match=r"0\.kind: expected one of 'numeric', .*got 'geohash'"):
        config_from_dict(raw)
    FEATURES.add("geohash", Geohash, "builtins:print")
    try:
        config = config_from_dict(raw)
        assert isinstance(config.features[0], Geohash) and isinstance(config.features[0], Feature)
        assert config_from_dict(yaml.safe_load(dump_config(config))) == config
        with pytest.raises(ValueError, match=r"features\.0\.geohash\.digits: .*got 0"):
            config_from_dict({**raw, "features": [{**raw["features"][0], "digits": 0}]})
        with pytest.raises(ValueError, match=r"unknown key 'digit'; did you mean 'digits'\?"):
            config_from_dict({**raw, "features": [{**raw["features"][0], "digit": 1}]})
    finally:
        FEATURES.remove("geohash")

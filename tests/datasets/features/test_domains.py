"""Domains of rows: what is learnt of the column, and what is refused."""

import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder, extend_encoder
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.columns import UnseenIds
from mmoe.datasets.rows.projection import required_columns


def config_of(unseen="mean_gate", domains=None):
    return config_from_dict(
        {
            "features": [{"kind": "numeric", "name": "price"}],
            "tasks": [
                {"name": "click", "label": "click"},
                {"name": "buy", "label": "buy", "domains": domains},
            ],
            "model": {"domains": {"column": "scene", "unseen": unseen}},
        }
    )


def table(*scenes, kind=None):
    count = len(scenes)
    return pa.table(
        {
            "scene": pa.array(scenes, kind),
            "price": [float(n) for n in range(count)],
            "click": [n % 2 for n in range(count)],
            "buy": [n % 2 for n in range(count)],
        }
    )


def test_domains_are_numbered_by_name_and_others_stand_behind(tmp_path):
    encoder = FeatureEncoder.fit(config_of(), table("shop", "feed", "shop", None), "log")
    assert encoder.domains.names == ["feed", "shop"]
    found = encoder.encode(table("shop", "live", None, "feed", ""), "new")
    assert found.domains_N.tolist() == [1, 2, 2, 0, 2]
    unseen = UnseenIds(encoder)
    unseen.add(found)
    assert unseen.text() == "unseen ids: scene in 3 rows (60 %)"
    encoder.save(tmp_path)
    again = FeatureEncoder.load(tmp_path)
    assert again.domains == encoder.domains
    assert again.fingerprint() == encoder.fingerprint()
    today = FeatureEncoder.fit(config_of(), table("live", "feed", "ads"), "tuesday")
    extended = extend_encoder(today, encoder, "tuesday")
    assert extended.domains.names == ["feed", "shop", "ads", "live"]
    assert required_columns(config_of(), labels=False) == ["price", "scene"]


def test_numbers_and_their_texts_are_the_same_domains():
    encoder = FeatureEncoder.fit(config_of(domains=[3]), table(3, 12, 3, 12), "log")
    for again in ((3, 12), ("3", "12"), (3.0, 12.0)):
        assert encoder.encode(table(*again), "new").domains_N.tolist() == [1, 0]


def test_labels_are_unobserved_where_the_task_does_not_exist():
    labels = encode_labels(config_of(domains=["shop"]), table("shop", "feed", None, "shop"), "log")
    assert labels.observed_NT.tolist() == [[True, True], [True, False], [True, False], [True, True]]
    assert labels.weights_NT[:, 1].tolist() == [1, 0, 0, 1]


def test_durations_are_asked_for_where_the_task_exists():
    raw = config_of().model_dump(mode="json")
    raw["tasks"][1] = {"name": "seen", "label": "buy", "kind": "d2q", "duration": "length"}
    raw["tasks"][1]["domains"] = ["shop"]
    rows = table("shop", "feed", "shop").append_column("length", [[5.0, None, 7.0]])
    encoder = FeatureEncoder.fit(config_from_dict(raw), rows, "log")
    (link,) = encoder.encode(rows, "log").links.values()
    assert link.duration_N.tolist() == [5.0, 1.0, 7.0]
    with pytest.raises(ValueError, match=r"row 2: column 'length' .* is empty"):
        encoder.encode(rows.set_column(0, "scene", [["shop"] * 3]), "log")


def test_refuse_names_the_row():
    encoder = FeatureEncoder.fit(config_of("refuse"), table("shop", "feed"), "log")
    with pytest.raises(ValueError, match=r"new: row 2: column 'scene' .* is 'live', which no tr"):
        encoder.encode(table("shop", "live"), "new")
    with pytest.raises(ValueError, match=r"new: row 1: column 'scene' .* is empty; fill the cell"):
        encoder.encode(table(None, "shop"), "new")
    fit = EncoderFit(config_of("refuse"), "log")
    fit.check(table("shop", "live"))  # rows that do not train
    fit.add(table("shop", "feed"))
    with pytest.raises(
        ValueError, match=r"log: row 2: column 'scene' .* is 'live', which no train"
    ):
        fit.finish()


@pytest.mark.parametrize(("config", "rows", "says"), [
    ({"domains": ["shops"]}, table("shop", "feed"),
     r"task 'buy': domains names 'shops', .*did you mean 'sho"),
    ({"unseen": "refuse"}, table("shop", None), r"log: row 2: column 'scene' .* is empty"),
    ({}, table(None, None, kind=pa.string()), r"'scene' .* is empty in every training row"),
    ({}, table(*range(2000)), "more than 1,024 values; a domain is a scene"),
    ({}, table(["a"], ["b"]), r"'scene' .of model.domains. holds list"),
    ({}, table("a", "b").drop_columns("scene"), "no column 'scene'"),
], ids=["nearest", "refuse", "empty", "many", "lists", "none"])  # fmt: skip
def test_what_is_no_column_of_domains_is_refused(config, rows, says):
    with pytest.raises(ValueError, match=says):
        FeatureEncoder.fit(config_of(**config), rows, "log")

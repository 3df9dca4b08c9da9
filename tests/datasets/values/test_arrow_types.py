"""Every Arrow type, wherever a config can name its column: used, or refused in words."""

import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files import parquet_files
from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.values.arrow import plain, plain_type
from mmoe.train.prepare import prepare
from tests.chaos.arrow_types import ARROW_TYPES, ODD, ROLES, TypeCase, column_of
from tests.chaos.small_log import small_config, small_log

NUMBERS = [1, 2, None, 0, 5] * 4
# Python shows what these store in other words
OTHER_WORDS = {"uuid", "bool8", "list_of_uuids"}


@pytest.mark.parametrize("name", ARROW_TYPES)
def test_plain_columns_hold_the_same_values(name):
    array = column_of(name, NUMBERS)
    column = pa.chunked_array([array.slice(3, 5), array.slice(8, 0), array.slice(8, 7)])

    found = plain(column)

    found.validate(full=True)
    assert found.type == plain_type(array.type) == plain_type(found.type)
    assert plain(pa.chunked_array([], array.type)).type == found.type
    if name not in OTHER_WORDS:
        assert repr(found.to_pylist()) == repr(column.to_pylist())


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (pa.decimal32(5, -2), pa.decimal128(7, 0)),
        (pa.decimal128(5, -50), pa.decimal256(55, 0)),
        (pa.decimal256(50, -40), pa.float64()),
    ],
)
def test_decimals_of_negative_scale_are_whole_numbers(kind, wanted):
    numbers = [3 * 10**-kind.scale, None, 0]
    found = plain(pa.chunked_array([pa.array(numbers, pa.decimal256(76, 0)).cast(kind)]))
    assert found.type == wanted == plain_type(wanted)
    assert found.cast(pa.float64()).to_pylist() == pytest.approx(numbers, rel=1e-15)


def test_a_column_of_negative_scale_is_looked_at():
    odd = pa.array([100 * (n % 7) for n in range(60)], pa.decimal128(5, -2))
    log = pa.table({"odd": odd, "click": [n % 2 for n in range(60)]})
    config, _ = infer_config(log, ["click"])
    assert [feature.name for feature in config.features] == ["odd"]


def _read_everything(prepared):
    return [
        chunk for part in (prepared.train, prepared.validation, prepared.test)
        for chunk in part.chunks()
    ]  # fmt: skip


def _refusal(config):
    """What is said of the data, if anything."""
    try:
        _read_everything(prepare(config))
    except ValueError as error:
        return str(error) if type(error) is ValueError else f"raw: {error!r}"
    return None


# tests.chaos draws from all types times all roles; here each type has one of them
@pytest.mark.parametrize("n", range(len(ARROW_TYPES)), ids=list(ARROW_TYPES))
def test_any_type_anywhere_is_used_or_refused(n, tmp_path):
    role = list(ROLES)[n % len(ROLES)]
    case = TypeCase(random.Random(n), list(ARROW_TYPES)[n], role, tmp_path, n % 2 == 1)
    said = _refusal(config_from_dict(case.config(case.write_log())))
    assert said is None or ODD in said, said


@pytest.mark.parametrize(
    ("odd", "usual", "kind"),
    [
        ("string_view", "string", "categorical"),
        ("binary_view", "binary", "categorical"),
        ("runs_text", "string", "categorical"),
        ("list_of_views", "list_text", "list"),
        ("list_view_text", "list_text", "list"),
        ("list_of_binary_views", "list_of_binary", "list"),
        ("halffloat", "float", "numeric"),
        ("decimal32", "decimal128", "numeric"),
    ],
)
def test_the_same_values_in_another_type_are_the_same_input(odd, usual, kind):
    raw = {"features": [{"name": ODD, "kind": kind}], "tasks": [{"name": "t", "label": "t"}]}
    numbers = [None if n % 7 == 0 else n % 5 for n in range(90)]
    tables = [pa.table({ODD: column_of(name, numbers)}) for name in (odd, usual)]
    encoder = FeatureEncoder.fit(config_from_dict(raw), tables[1], "log")

    found, wanted = (encoder.encode(table, "log") for table in tables)

    assert np.array_equal(found.dense_NF, wanted.dense_NF)
    assert np.array_equal(found.ids_NC, wanted.ids_NC)
    for mine, theirs in zip(found.lists, wanted.lists, strict=True):
        assert all(map(np.array_equal, mine, theirs))
    again = FeatureEncoder.fit(config_from_dict(raw), tables[0], "log").encode(tables[0], "log")
    assert np.array_equal(again.ids_NC, wanted.ids_NC)


def _log(folder, column):
    table = small_log(90, seed=1).append_column(ODD, column)
    path = folder / "log.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)
    return small_config(str(path))


@pytest.mark.parametrize("streams", [False, True], ids=["memory", "stream"])
@pytest.mark.parametrize("name", ["list", "struct", "map", "interval"])
def test_a_group_column_holds_ids(tmp_path, name, streams):
    raw = _log(tmp_path, column_of(name, list(range(90))))
    raw["data"] |= {"input": "stream" if streams else "memory", "group_column": ODD}
    with pytest.raises(ValueError, match=r"'odd' \(of data.group_column\) holds .*, expected ids"):
        prepare(config_from_dict(raw))


def test_a_column_of_none_alone_is_left_out():
    frame = pd.DataFrame({"age": range(60), "none": [None] * 60, "click": [0, 1, 1] * 20})
    frame["none"] = frame["none"].astype(object)
    table = pa.Table.from_pandas(frame.assign(age=frame.age % 7))
    assert table.schema.field("none").type == pa.null()
    config, reasons = infer_config(table, ["click"])
    assert [feature.name for feature in config.features] == ["age"]
    assert ("none", "empty in every row") in reasons.left_out


@pytest.mark.parametrize("name", ["list", "struct", "map", "interval", "sparse_union", "tensor"])
def test_a_label_to_look_at_is_no_list(name):
    table = pa.table({"age": [n % 7 for n in range(20)], ODD: column_of(name, NUMBERS)})
    with pytest.raises(ValueError, match=r"label column 'odd' holds .*, expected 0 and 1"):
        infer_config(table, [ODD])


def test_what_arrow_cannot_read_is_not_called_truncated(tmp_path, monkeypatch):
    def read(*_, **__):
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked …")

    path = tmp_path / "log.parquet"
    table = small_log(90, seed=1)
    table = table.append_column(ODD, column_of("list_of_dictionaries", [1] * 90))
    pq.write_table(table, path, row_group_size=40)
    raw = small_config(str(path))
    raw["features"].append({"kind": "list", "name": ODD})
    prepare(config_from_dict(raw))  # row group by row group
    monkeypatch.setattr(parquet_files, "_plain_group", read)
    with pytest.raises(ValueError, match=r"cannot read a column as it is stored.*leave out.*odd"):
        prepare(config_from_dict(raw))

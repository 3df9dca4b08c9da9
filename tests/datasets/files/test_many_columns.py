"""Work per column that is no pass over all columns: a table is asked as often for 200 as for 5."""

import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.config.features import NumericFeature
from mmoe.datasets.features import numeric
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files import json_lines, readers, sampling
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.rows.frames import without_views
from mmoe.datasets.rows.locations import TIMES_COLUMN, times_of

MANY = 200


class Asked:
    """Stands for a table or a schema, and counts what it is asked for."""

    def __init__(self, held, counts):
        self._held, self._counts = held, counts

    def __getattr__(self, name):
        self._counts.append(name)
        found = getattr(self._held, name)
        return Asked(found, self._counts) if isinstance(found, pa.Schema) else found


def table_of(columns, kind):
    return pa.table({f"c{n}": pa.array([n, None], kind) for n in range(columns)})


def concat(columns, counts):
    tables = [Asked(table_of(columns, kind), counts) for kind in (pa.int32(), pa.uint32())]
    found = readers._concat([DataFile("a.parquet"), DataFile("b.parquet")], tables)
    assert found.schema.types == [pa.int64()] * columns
    assert found.num_rows == 4


def signed(columns, counts):
    schemas = [table_of(columns, kind).schema for kind in (pa.uint64(), pa.int64())]
    found = readers.signed_where_it_fits(
        [Asked(schema, counts) for schema in schemas], [lambda name: 7, lambda name: 7]
    )
    assert [schema.types for schema in found] == [[pa.int64()] * columns] * 2


def nulls(columns, counts):
    names = [f"c{n}" for n in range(2 * columns)]
    found = sampling._with_nulls(Asked(table_of(columns, pa.int32()), counts), names)
    assert found.column_names == names
    assert found.column(columns).null_count == 2


def views(columns, counts):
    kind = pa.string_view()
    table = pa.table({f"c{n}": pa.array(["a", None], kind) for n in range(columns)})
    found = without_views(Asked(table, counts))
    assert found.schema.types == [pa.large_string()] * columns
    assert found["c3"].to_pylist() == ["a", None]


def times(columns, counts):
    held = table_of(columns, pa.int32()).append_column(TIMES_COLUMN, pa.array([3, 1]))
    for _ in range(columns):
        assert times_of(Asked(held, counts)).tolist() == [3, 1]
    assert "column_names" not in counts
    counts[:] = sorted(set(counts))


@pytest.mark.parametrize("work", [times, concat, signed, nulls, views])
def test_tables_are_changed_at_once(work):
    asked = {}
    for columns in (5, MANY):
        work(columns, asked.setdefault(columns, []))
    assert asked[5]
    assert asked[5] == asked[MANY]


def test_types_of_json_lines_are_set_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(json_lines.pajson, "read_json", _watched(json_lines.pajson, asked))
    kind = pa.list_(pa.null())
    block = ("{" + ", ".join(f'"c{n}": [null]' for n in range(MANY)) + "}\n").encode()
    found = json_lines._arrow_table(block, pa.schema([(f"c{n}", kind) for n in range(MANY)]))
    assert found.schema.types == [kind] * MANY
    assert found["c7"].to_pylist() == [[None]]
    assert "set_column" not in asked


def test_features_ask_once_what_they_share(monkeypatch):
    asked = {"quantiles": 0, "text": 0}
    takes, texts = numeric.takes_quantiles, NumericFeature.text_columns.fget

    def counted(what, ask):
        def count(feature):
            asked[what] += 1
            return ask(feature)

        return count

    monkeypatch.setattr(numeric, "takes_quantiles", counted("quantiles", takes))
    monkeypatch.setattr(NumericFeature, "text_columns", property(counted("text", texts)))
    kinds = [{"kind": ("numeric", "categorical")[n % 2], "name": f"c{n}"} for n in range(MANY)]
    config = config_from_dict({"features": kinds, "tasks": [{"name": "t", "label": "t"}]})
    FeatureEncoder.fit(config, table_of(MANY, pa.int64()), "log")
    assert asked["quantiles"] <= 3 * MANY
    assert asked["text"] <= 3 * MANY


def _watched(module, counts):
    read = module.read_json
    return lambda *args, **options: _Columns(read(*args, **options), counts)


class _Columns(Asked):
    def __getitem__(self, name):
        return self._held[name]

"""The best rows of each key: as pandas finds them, however the rows come in."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mmoe.score import Top
from mmoe.score import top_rows as module
from mmoe.score.top_rows import TopRows


def _expected(frame, count):
    """By pandas: keys as they came, then the score, then the row."""
    frame = frame.assign(row=np.arange(len(frame)), low=frame.value.fillna(-np.inf))
    first = frame.groupby("key", dropna=False).row.transform("min")
    frame = frame.assign(first=first).sort_values(
        ["first", "low", "row"], ascending=[True, False, True], kind="stable"
    )
    rank = frame.groupby("first").cumcount() + 1
    return frame.assign(rank=rank)[rank <= count][["key", "value", "other", "rank"]]


@pytest.mark.parametrize("waiting", [10, 1_000_000])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("coded", [False, True])
def test_as_pandas_has_it(monkeypatch, waiting, count, coded):
    monkeypatch.setattr(module, "_ROWS_WAITING", waiting)
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "key": rng.choice(["ä", "b", "c", None, "e" * 40], 300),
            "value": rng.choice([0.5, 1.0, np.nan, -2.0, np.inf, 7.0], 300),
            "other": np.arange(300),
        }
    )
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if coded:
        table = table.set_column(0, "key", table["key"].dictionary_encode())
    best = TopRows(Top(count, per="key", by="value"))
    for first in range(0, 300, 37):
        best.add(table.slice(first, 37))
    found = best.rows().to_pandas()
    found["key"] = found["key"].astype(object)
    expected = _expected(frame, count)
    assert found["other"].tolist() == expected["other"].tolist()
    assert found["rank"].tolist() == expected["rank"].tolist()
    assert found["key"].fillna("-").tolist() == expected["key"].fillna("-").tolist()


def test_no_row():
    best = TopRows(Top(2, per="key", by="value"))
    best.add(pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.float32())}))
    assert best.rows().num_rows == 0
    assert best.rows().column_names == ["key", "value", "rank"]


def test_fewer_than_one_row():
    with pytest.raises(ValueError, match="--top 0: expected at least 1 row a key"):
        Top(0, per="key", by="value")

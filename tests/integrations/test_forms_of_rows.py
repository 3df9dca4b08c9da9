"""X, y and weights in whatever form they come."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mmoe import MultiTaskRanker
from tests.integrations.small import SMALL, rows

X, LABELS = rows()
Y = LABELS[["bought", "liked"]]
TABLE = pa.Table.from_pandas(X, preserve_index=False)


class Streamed:
    """A frame of another library: nothing is known of it but Arrow's interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, schema=None):
        return self.table.__arrow_c_stream__(schema)


class Exchanged:
    """Nothing but the interchange protocol of data frames."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, **options):
        return self.table.__dataframe__(**options)


@pytest.fixture(scope="module", name="ranker")
def _ranker():
    return MultiTaskRanker(**SMALL).fit(X, Y)


def _labels() -> pa.Table:
    return pa.Table.from_pandas(Y, preserve_index=False)


def _views(table: pa.Table) -> pa.Table:
    """As polars gives texts."""
    fields = [
        field.with_type(pa.string_view() if pa.types.is_large_string(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


FORMS = {
    "table": (TABLE, _labels()),
    "views": (_views(TABLE), _views(_labels())),
    "batch": (TABLE.to_batches()[0], _labels().to_batches()[0]),
    "dicts": (X.to_dict("records"), Y.to_dict("records")),
    "columns": (X.to_dict("list"), Y.to_dict("list")),
    "stream": (Streamed(TABLE), Streamed(_labels())),
    "interchange": (Exchanged(TABLE), Y.to_dict("list")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same(ranker, form):
    mine_X, mine_y = FORMS[form]
    mine = MultiTaskRanker(**SMALL).fit(mine_X, mine_y)
    assert mine.feature_names_in_.tolist() == ["user", "item", "price"]
    expected = ranker.predict_proba(X).reset_index(drop=True)
    pd.testing.assert_frame_equal(mine.predict_proba(mine_X), expected)
    pd.testing.assert_frame_equal(mine.predict_proba(X).reset_index(drop=True), expected)
    assert mine.score(mine_X, mine_y) == ranker.score(X, Y)


def test_polars(ranker):
    pl = pytest.importorskip("polars")
    frame, labels = pl.DataFrame(X.to_dict("list")), pl.DataFrame(Y.to_dict("list"))
    mine = MultiTaskRanker(**SMALL).fit(frame, labels)
    expected = ranker.predict_proba(X).reset_index(drop=True)
    pd.testing.assert_frame_equal(mine.predict_proba(frame), expected)
    assert MultiTaskRanker(**SMALL).fit(frame, labels["liked"]).task_names_ == ["liked"]


def test_arrays_are_columns_in_order(ranker):
    codes = X.assign(item=X.item.str[1:].astype(float)).to_numpy()
    assert MultiTaskRanker(**SMALL).fit(TABLE, _labels()["liked"]).task_names_ == ["label"]
    mine = MultiTaskRanker(**SMALL).fit(codes, LABELS.liked.to_numpy())
    assert not hasattr(mine, "feature_names_in_")
    assert mine.predict(codes).label.dtype == bool
    assert ranker.predict_proba(X.to_numpy()).equals(ranker.predict_proba(X).reset_index(drop=True))
    with pytest.raises(ValueError, match="X has 2 features, but MultiTaskRanker is expecting 3"):
        mine.predict(codes[:, :2])


def test_a_key_that_a_dict_lacks_is_missing(ranker):
    records = X[:3].to_dict("records")
    del records[0]["price"]
    gap = X[:3].assign(price=[np.nan, *X.price[1:3]]).reset_index(drop=True)
    pd.testing.assert_frame_equal(ranker.predict_proba(records), ranker.predict_proba(gap))


def test_numbers_and_texts_side_by_side_are_texts():
    codes = [n % 5 if n % 2 else f"c{n % 5}" for n in range(len(X))]
    mixed = X.assign(
        code=pd.Series(codes, index=X.index, dtype=object), note=["a", 1.5, None, 2] * 100
    )
    with pytest.warns(UserWarning, match="side by side in 'code', 'note', .* text") as caught:
        mine = MultiTaskRanker(**SMALL).fit(mixed, Y)
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        answers = mine.predict_proba(mixed)
    texts = mixed.assign(code=[str(code) for code in codes], note=["a", "1.5", None, "2"] * 100)
    assert mine.predict_proba(texts).equals(answers)
    whole = mixed.index[mixed.code.map(lambda code: isinstance(code, int)).astype(bool)]
    numbers = mixed.loc[whole].assign(code=mixed.code[whole].astype(float), note=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(mine.predict_proba(numbers)) == len(whole)


def test_y_is_matched_by_its_index(ranker):
    shuffled = Y.sample(frac=1, random_state=3)
    expected = ranker.predict_proba(X)
    assert MultiTaskRanker(**SMALL).fit(X, shuffled).predict_proba(X).equals(expected)
    assert ranker.score(X, shuffled) == ranker.score(X, Y)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            np.arange(400),
            r"y: its index is not that of X: 1000, 1001, 1002, … \(400 in all\) of X are not in y, "
            r"0, 1, 2, … \(400 in all\) of y not in X; give both one index, or y.to_numpy\(\)",
        ),
        ([0, *range(1001, 1400)], "1000 of X are not in y, 0 of y not in X"),
        ([1001, *range(1001, 1400)], "values stand in it more than once"),
    ],
)
def test_another_index_is_refused(index, message):
    with pytest.raises(ValueError, match=message):
        MultiTaskRanker(**SMALL).fit(X, Y.set_axis(index))


def test_a_sparse_matrix_is_refused():
    sparse = pytest.importorskip("scipy.sparse")
    for kind in (sparse.csr_matrix, sparse.dok_array):
        with pytest.raises(TypeError, match="Sparse data was passed for X"):
            MultiTaskRanker(**SMALL).fit(kind(np.eye(9)), np.arange(9) % 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "X: expected a DataFrame, .* got 'None'"),
        ("log.csv", "got 'log.csv'"),
        (X.iloc[0].to_dict(), r"got one of names to values; put a row into a list: \[row\]"),
        (X.price, "Expected a 2-dimensional container|Expected 2D array"),
        (X.drop(columns="item"), "X: there is no column 'item', which feature 'item' needs"),
        (X[:0], "X: holds no rows"),
    ],
)
def test_no_rows(ranker, rows, message):
    with pytest.raises(ValueError, match=message):
        ranker.predict(rows)

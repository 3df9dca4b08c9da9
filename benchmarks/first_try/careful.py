"""What a careful person would make of the columns, for scikit-learn's models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

from benchmarks.first_try.logs.log import EITHER, ID, LIST, TIME, VECTOR, Kinds

_FEW = 50  # values of an ordered column that are told apart
_NATIVE = 255  # categories that boosted trees take as such
_SENTINEL = -999.0
_HEAVY = 10.0  # 99th percentile over the median of what is positive


@dataclass(frozen=True)
class Columns:
    """Columns by what they are used as."""

    ids: list[str]
    ordered: list[str]  # few values in an order
    numbers: list[str]
    lists: list[str]
    vectors: list[str]

    @classmethod
    def of(cls, kinds: Mapping[str, Kinds], frame: pd.DataFrame) -> "Columns":
        """Sorts the columns of a log by the kinds that are right."""
        found: dict[str, list[str]] = {
            use: [] for use in ("ids", "ordered", "numbers", "lists", "vectors")
        }
        for name, right in kinds.items():
            if right == TIME:
                continue
            if right == EITHER and _distinct(frame, name) <= _FEW:
                use = "ordered"
            elif right in (LIST, VECTOR):
                use = "lists" if right == LIST else "vectors"
            elif right == ID or frame[name].dtype.kind not in "if":
                use = "ids"
            else:
                use = "numbers"
            found[use].append(name)
        return cls(**found)


def frame_of(table: pa.Table, without: Sequence[str] = ()) -> pd.DataFrame:
    """Returns the rows as pandas has them, without some; a sensor's −999 is a missing value."""
    frame = table.drop_columns(list(without)).to_pandas()
    for name in frame.columns:
        if frame[name].dtype.kind == "f":
            frame[name] = frame[name].mask(frame[name] == _SENTINEL)
    return frame


def for_linear(columns: Columns, frame: pd.DataFrame, bins: bool) -> ColumnTransformer:
    """One-hot ids and ordered values, scaled numbers, with quantile bins where asked."""
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    heavy = [c for c in columns.numbers if _is_heavy(frame[c].to_numpy(dtype=float))]
    plain = [c for c in columns.numbers if c not in heavy]
    steps: list[tuple[str, Any, Any]] = [("ids", one_hot, columns.ids + columns.ordered)]
    steps.append(("plain", _scaled(), plain))
    steps.append(("heavy", make_pipeline(FunctionTransformer(_log), _scaled()), heavy))
    if bins:
        steps.append(("bins", _bins(), columns.numbers))
    steps += [(name, _bag(), name) for name in columns.lists]
    steps += [
        (name, make_pipeline(FunctionTransformer(_stack), StandardScaler()), [name])
        for name in columns.vectors
    ]
    return ColumnTransformer(steps, sparse_threshold=1.0)


def for_trees(columns: Columns, frame: pd.DataFrame) -> tuple[ColumnTransformer, int]:
    """Ids of few values as categories, others by their mean label; how many come first."""
    few = [c for c in columns.ids if _distinct(frame, c) < _NATIVE]
    many = [c for c in columns.ids if c not in few]
    ordinal = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
    )
    seed: Any = 0
    by_label = TargetEncoder(target_type="binary", random_state=seed)
    steps: list[tuple[str, Any, Any]] = [
        ("few", ordinal, few),
        ("many", by_label, many),
        ("numbers", "passthrough", columns.ordered + columns.numbers),
    ]
    steps += [
        (name, make_pipeline(_bag(), FunctionTransformer(_dense, accept_sparse=True)), name)
        for name in columns.lists
    ]
    steps += [(name, FunctionTransformer(_stack), [name]) for name in columns.vectors]
    return ColumnTransformer(steps, sparse_threshold=0.0), len(few)


def _distinct(frame: pd.DataFrame, name: str) -> int:
    return len(frame[name].dropna().unique())


def _is_heavy(values_N: np.ndarray) -> bool:
    positive = values_N[values_N > 0]
    if not len(positive) or np.nanmin(values_N) < 0:
        return False
    return bool(np.quantile(positive, 0.99) > _HEAVY * np.median(positive))


def _scaled() -> Pipeline:
    return make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())


def _bins() -> Pipeline:
    cut = KBinsDiscretizer(
        20, strategy="quantile", subsample=50_000, random_state=0, quantile_method="linear"
    )
    return make_pipeline(SimpleImputer(strategy="median"), cut)


def _bag() -> CountVectorizer:
    # An analyzer of one's own leaves case and punctuation alone
    analyzer: Any = _items
    return CountVectorizer(analyzer=analyzer, binary=True, max_features=500)


def _items(text: str) -> list[str]:
    return text.replace("|", ",").split(",")


def _log(values: Any) -> Any:
    return np.log1p(values)


def _dense(values: Any) -> np.ndarray:
    return values.toarray() if sparse.issparse(values) else values


def _stack(column: pd.DataFrame) -> np.ndarray:
    return np.stack(list(column.iloc[:, 0]))

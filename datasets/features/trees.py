"""Boosted trees of the other features: what those fitted on other rows say, a number a task.

Trees find what holds together in three or four columns, and a network beside them learns the rest.
They are fitted by scikit-learn on bins, once for each part of the training rows that is left out: a
training row gets what trees say that have not seen it, any other row the mean of all of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mmoe.config import FeatureSpec, TreesFeature
from mmoe.datasets.features.codec import Codec, Coded, Place, Rules, Section, TrainingRows, missing
from mmoe.datasets.features.cross import CrossCodec
from mmoe.datasets.features.id_map import UNSEEN
from mmoe.datasets.features.numeric import NumericCodec
from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures
from mmoe.datasets.values.hashing import mix64
from mmoe.metrics import kind_of

TREES = "trees"

_BINS = 254  # of a column, as many as scikit-learn takes as they are
_LEAVES = 32  # of a tree: bits of a mask
_SMOOTHING = 10.0  # rows of the mean of all that are added to an id's
_INNER = 5  # parts in which ids' means come from the other rows
_MOST_ROWS = 400_000
_ROWS, _FEW_ROWS = 8_192, 32  # whose masks are looked up at once
_DE_BRUIJN = np.uint32(0x077CB531)  # times a power of two, its upper five bits number it


@dataclass(frozen=True)
class Input:
    """A column of encoded features that trees read.

    Attributes:
        kind: `number` of the dense columns, `codes` of few values, in the order of their rows,
            `ids` of many, in that of their mean labels, or `length` of a list.
        name: Of the column.
        column: Its number among those of its kind in `EncodedFeatures`.
    """

    kind: str
    name: str
    column: int

    def of(self, features: EncodedFeatures) -> np.ndarray:
        """Returns its values, [N]."""
        if self.kind == "number":
            return features.dense_NF[:, self.column]
        if self.kind == "length":
            return np.diff(features.lists[self.column][1])
        return features.ids_NC[:, self.column]


def _inputs(places: Iterable[Place], rules: Rules, unread: Sequence[str]) -> Iterator[Input]:
    """Yields the trees' inputs: numbers once, and ids; no crosses, which trees find themselves."""
    for codec, _, (dense, ids, lists) in places:
        if isinstance(codec, (CrossCodec, TreesCodec)) or codec.feature.name in unread:
            continue
        names = codec.dense_columns(rules)
        if isinstance(codec, NumericCodec):  # its position and its bucket have the same order
            names = names[:1]
        for column, name in enumerate(names, dense.start):
            yield Input("number", name, column)
        tables = {} if isinstance(codec, NumericCodec) else {t.name: t for t in codec.tables(rules)}
        for column, spec in enumerate(codec.lookups, ids.start):
            table = tables.get(spec.table)
            if table is not None and table.managed is None:  # else raw ids, without an end
                yield Input("ids" if table.num_rows > _BINS else "codes", spec.name, column)
        for column, spec in enumerate(codec.lists, lists.start):
            yield Input("length", spec.name, column)


def _cuts(values_N: np.ndarray) -> np.ndarray:
    """Returns where bins end: between all values, or between quantiles of them."""
    values_V = np.unique(values_N)
    if len(values_V) > _BINS:
        shares = np.linspace(0, 1, _BINS)
        values_V = np.unique(np.quantile(values_N, shares, method="lower"))
    return (values_V[:-1].astype(np.float64) + values_V[1:]) / 2


class Forest:
    """Trees over bins, added up.

    Every node that a row goes right of rules out the leaves to its left. The masks of all nodes of
    one tree and column are added up beforehand by bin, so that a row's leaf is the lowest bit that
    is left of a few masks.

    Args:
        arrays: Of all nodes of all trees, one tree after the other: `feature` (−1: a leaf), `bin`,
            `left` and `right` (numbers within the tree), `value`; `first`, where each tree begins;
            and `base`, what is added to all rows.

    Source: Lucchese et al., "QuickScorer" (SIGIR 2015).
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.base = float(arrays["base"][0])

    def of(self, bins_NF: np.ndarray) -> np.ndarray:
        """Returns the sum of each row's leaves, float64 [N].

        Args:
            bins_NF: uint8.
        """
        out_N = np.full(len(bins_NF), self.base)
        for start in range(0, len(bins_NF), _ROWS):
            rows = slice(start, start + _ROWS)
            out_N[rows] += self._sums(np.ascontiguousarray(bins_NF[rows].T, np.intp))
        return out_N

    def _sums(self, bins_FN: np.ndarray) -> np.ndarray:
        """Adds up the leaves of some rows, in the order of the trees."""
        features_K, tables_K256, first_T, values_TL = self._masks
        if bins_FN.shape[1] < _FEW_ROWS:  # all masks of a row at once: a call for each takes 1 us
            pairs_K1 = np.arange(len(features_K))[:, None]
            masks_KN = tables_K256[pairs_K1, bins_FN[features_K]]
            left_TN = np.bitwise_and.reduceat(masks_KN, first_T, axis=0)
            return np.take_along_axis(values_TL, _places(left_TN), axis=1).cumsum(axis=0)[-1]
        sums_N = np.zeros(bins_FN.shape[1])
        ends = [*first_T.tolist(), len(features_K)]
        features = features_K.tolist()
        for of_tree, first, end in zip(values_TL, ends[:-1], ends[1:], strict=True):
            left_N = tables_K256[first].take(bins_FN[features[first]])
            for pair in range(first + 1, end):
                left_N &= tables_K256[pair].take(bins_FN[features[pair]])
            sums_N += of_tree.take(_places(left_N))
        return sums_N

    @cached_property
    def _masks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Features [K] of pairs of tree and feature, masks, first pairs [T], values of leaves."""
        ends = [*self.arrays["first"].tolist(), len(self.arrays["feature"])]
        features, tables, first = [], [], []
        values = np.zeros((len(ends) - 1, _LEAVES))
        for start, end, of_tree in zip(ends[:-1], ends[1:], values, strict=True):
            nodes = {name: self.arrays[name][start:end].tolist() for name in _NODES}
            masks: dict[int, np.ndarray] = {}
            _visit(nodes, 0, masks, leaves := [])
            bits = np.uint32(1) << np.arange(len(leaves), dtype=np.uint32)
            of_tree[(bits * _DE_BRUIJN) >> np.uint32(27)] = leaves
            first.append(len(features))
            masks = masks or {0: np.full(256, _ALL)}  # of a tree that is a leaf
            features += masks
            tables += masks.values()
        masks_K256 = np.array(tables, np.uint32).reshape(-1, 256)
        return np.array(features, np.int64), masks_K256, np.array(first, np.int64), values


def _places(left_N: np.ndarray) -> np.ndarray:
    """Returns where the value of each lowest bit stands."""
    lowest_N = left_N & (~left_N + np.uint32(1))
    return ((lowest_N * _DE_BRUIJN) >> np.uint32(27)).astype(np.intp)


_NODES = ("feature", "bin", "left", "right", "value")
_ALL = np.uint32(2**32 - 1)


def _visit(
    nodes: Mapping[str, list[Any]], node: int, masks: dict[int, np.ndarray], leaves: list[float]
) -> int:
    """Numbers the leaves below a node from left to right; returns their bits."""
    feature = nodes["feature"][node]
    if feature < 0:
        leaves.append(nodes["value"][node])
        return 1 << (len(leaves) - 1)
    left = _visit(nodes, nodes["left"][node], masks, leaves)
    of_feature = masks.setdefault(feature, np.full(256, _ALL))
    of_feature[nodes["bin"][node] + 1 :] &= _ALL ^ np.uint32(left)
    return left | _visit(nodes, nodes["right"][node], masks, leaves)


@dataclass(frozen=True)
class Fitted:
    """Trees of one task, fitted on all rows but a part, and where its ids' means lie.

    Attributes:
        forest: Over the bins of all inputs.
        bins_of_ids: Input → the bin of each row of its table, uint8; ids beyond are unseen.
    """

    forest: Forest
    bins_of_ids: Mapping[str, np.ndarray]

    def of(
        self, inputs: Sequence[Input], bins_NF: np.ndarray, ids: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Returns what the trees say of rows."""
        bins_NF = bins_NF.copy()
        for place, one in enumerate(inputs):
            if one.kind == "ids":
                bins_NF[:, place] = _looked_up(self.bins_of_ids[one.name], ids[one.name])
        return self.forest.of(bins_NF)


def _looked_up(bins_R: np.ndarray, ids_N: np.ndarray) -> np.ndarray:
    return bins_R[np.where(ids_N < len(bins_R), ids_N, UNSEEN)]


@dataclass(frozen=True)
class TreesRule:
    """What training rows taught: where bins end, and the trees.

    Attributes:
        inputs: Kind and name of each column that trees read.
        cuts: Input → ends of its bins.
        tasks: Task → its trees, as many as there are folds; none of a task whose label is constant,
            or of one row in a class.
    """

    inputs: Sequence[tuple[str, str]]
    cuts: Mapping[str, np.ndarray]
    tasks: Mapping[str, Sequence[Fitted]]


class _TreesSection(Section):
    """Section of encoder.json: feature → the names of its inputs, and a file of arrays."""

    name = TREES
    tells_apart = False

    def write(self, rule: TreesRule, folder: Path, stem: str) -> Any:
        """Writes the arrays into a file of safetensors."""
        arrays = {f"cuts/{name}": cuts for name, cuts in rule.cuts.items()}
        for task, fitted in rule.tasks.items():
            for fold, one in enumerate(fitted):
                at = f"{task}/{fold}"
                arrays |= {f"{at}/nodes/{name}": a for name, a in one.forest.arrays.items()}
                arrays |= {f"{at}/ids/{name}": bins_R for name, bins_R in one.bins_of_ids.items()}
        file = f"{stem}.trees.safetensors"
        save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / file
        )
        folds = {task: len(fitted) for task, fitted in rule.tasks.items()}
        return {"file": file, "inputs": list(rule.inputs), "folds": folds}

    def read(self, entry: Any, folder: Path) -> TreesRule:
        """Reads them.

        Raises:
            ValueError: The file is damaged.
        """
        file = folder / entry["file"]
        try:
            arrays = load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file.name}: {error}") from None

        def below(start: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}

        tasks = {
            task: [
                Fitted(Forest(below(f"{task}/{fold}/nodes/")), below(f"{task}/{fold}/ids/"))
                for fold in range(folds)
            ]
            for task, folds in entry["folds"].items()
        }
        return TreesRule([(kind, name) for kind, name in entry["inputs"]], below("cuts/"), tasks)


class TreesCodec(Codec[TreesFeature]):
    """Codec of what boosted trees of the other features say: a number for each trained task.

    `encode` leaves zeros in their places, which `derive` fills when the other codecs are done.
    """

    sections = (_TreesSection(),)
    long_tailed = False
    knows_range = True

    @property
    def lookups(self) -> list[FeatureSpec]:
        """None."""
        return []

    @property
    def dense_names(self) -> list[str]:
        """A name for each task that a linear model can have."""
        return [f"{self.feature.name}[{name}]" for _, name in self._tasks]

    @property
    def _tasks(self) -> list[tuple[int, str]]:
        tasks = enumerate(self.config.tasks)
        return [(t, one.name) for t, one in tasks if one.weight and kind_of(one.kind).linear_logit]

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Returns zeros."""
        return missing(self, rules, table.num_rows)

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Keeps the trees of an earlier run, whose numbers its weights know."""
        known = earlier.get(TREES, {}).get(self.feature.name)
        if known is not None:
            rules.setdefault(TREES, {})[self.feature.name] = known

    def derive(
        self,
        features: EncodedFeatures,
        places: Sequence[Place],
        rules: Rules,
        training: TrainingRows | None = None,
    ) -> np.ndarray:
        """Computes logits (or values) of trees, float32 [N, tasks].

        Args:
            features: Encoded by all other codecs.
            places: Of all codecs.
            rules: What training rows taught.
            training: They are rows that the trees were fitted on, known again by that; None: they
                are not.

        Raises:
            ValueError: A column that the trees read is gone.
        """
        out_NT = np.zeros((len(features), len(self._tasks)), np.float32)
        rule = rules.get(TREES, {}).get(self.feature.name)
        if rule is None or not len(features):
            return out_NT
        inputs = self._known(places, rules, rule)
        bins_NF, ids = _binned(features, inputs, rule.cuts)
        parts_N = None if training is None else self._parts(bins_NF, ids, training)
        for column, (_, task) in enumerate(self._tasks):
            fitted = rule.tasks.get(task, ())
            for part, one in enumerate(fitted):
                if parts_N is None:
                    out_NT[:, column] += one.of(inputs, bins_NF, ids) / len(fitted)
                    continue
                mine = np.flatnonzero(parts_N == part)
                own = {name: ids_N[mine] for name, ids_N in ids.items()}
                out_NT[mine, column] = one.of(inputs, bins_NF[mine], own)
        return out_NT

    def learn(
        self, data: EncodedData, places: Sequence[Place], rules: Rules, by: TrainingRows
    ) -> TreesRule:
        """Fits trees of every task.

        Args:
            data: Encoded training rows with their labels.
            places: Of all codecs.
            rules: What training rows taught the others.
            by: What the rows are known again by.
        """
        assert data.labels is not None, "training rows have labels"
        inputs = self._inputs(places, rules)
        features, labels, seed = data.features, data.labels.mature(), self.config.seed
        cuts = {one.name: _cuts(one.of(features)) for one in inputs if one.kind != "ids"}
        bins_NF, ids = _binned(features, inputs, cuts)
        parts_N = self._parts(bins_NF, ids, by)
        targets_NT = labels.labels_NT if labels.targets_NT is None else labels.targets_NT
        found = {}
        for t, task in self._tasks:
            there_N = labels.observed_NT[:, t] & (labels.weights_NT[:, t] > 0)
            y_N, weights_N = targets_NT[:, t].astype(np.float64), labels.weights_NT[:, t]
            is_event = kind_of(self.config.tasks[t].kind).is_event
            fits = []
            for part in range(self.feature.folds):
                mine = _drawn(np.flatnonzero(there_N & (parts_N != part)), seed)
                if len(mine) < 2 * _INNER or _is_one_class(y_N[mine], is_event):
                    break
                own = {name: ids_N[mine] for name, ids_N in ids.items()}
                others = _Rows(bins_NF[mine], own, y_N[mine], weights_N[mine])
                fits.append(_fit(self.feature, inputs, others, is_event, seed))
            if len(fits) == self.feature.folds:
                found[task] = fits
        return TreesRule([(one.kind, one.name) for one in inputs], cuts, found)

    def _inputs(self, places: Sequence[Place], rules: Rules) -> list[Input]:
        bias = self.config.model.bias
        return list(_inputs(places, rules, () if bias is None else bias.features))

    def _known(self, places: Sequence[Place], rules: Rules, rule: TreesRule) -> list[Input]:
        """The inputs that the trees were fitted to, where they are now."""
        there = {(_family(one.kind), one.name): one for one in self._inputs(places, rules)}
        gone = [name for kind, name in rule.inputs if (_family(kind), name) not in there]
        if gone:
            raise ValueError(
                f"{self.used_by}: its trees were fitted to column {gone[0]!r}, which no feature "
                "makes now; bring it back, or give this feature another name to fit new trees"
            )
        # As they were: a table may have grown beyond the few codes that it had
        return [replace(there[_family(kind), name], kind=kind) for kind, name in rule.inputs]

    def _parts(
        self, bins_NF: np.ndarray, ids: Mapping[str, np.ndarray], by: TrainingRows
    ) -> np.ndarray:
        """The part of each row, int64 [N], by its place; or equal rows are of one part.

        By places, copies of a row tell trees of it as they tell those of new rows: prices of hotel
        rooms, of which many are alike, gain .004 to .010 of R².
        """
        hashed_N = mix64(np.arange(len(bins_NF)))
        if by == "values":
            hashed_N = np.zeros(len(bins_NF), np.uint64)
            for values_N in (*bins_NF.T, *ids.values()):
                hashed_N = mix64(hashed_N + values_N.astype(np.uint64))
        return (hashed_N % np.uint64(self.feature.folds)).astype(np.int64)


def _family(kind: str) -> str:
    return "ids" if kind == "codes" else kind


def _drawn(rows: np.ndarray, seed: int) -> np.ndarray:
    """Some of the rows, where there are more than trees are fitted on."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, _MOST_ROWS, replace=False))


def _is_one_class(y_N: np.ndarray, is_event: bool) -> bool:
    """Whether labels are constant, or all but one: scikit-learn holds rows of each class out."""
    return np.ptp(y_N) == 0 or (is_event and bool(np.bincount(y_N.astype(np.int64)).min() < 2))


def _binned(
    features: EncodedFeatures, inputs: Sequence[Input], cuts: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Bins of all inputs, uint8 [N, F], 0 of ids; and these, by input."""
    bins_NF = np.zeros((len(features), len(inputs)), np.uint8)
    ids = {}
    for place, one in enumerate(inputs):
        if one.kind == "ids":
            ids[one.name] = one.of(features)
        else:
            bins_NF[:, place] = np.searchsorted(cuts[one.name], one.of(features))
    return bins_NF, ids


@dataclass(frozen=True)
class _Rows:
    """Rows that trees of one task are fitted on."""

    bins_NF: np.ndarray
    ids: Mapping[str, np.ndarray]
    y_N: np.ndarray
    weights_N: np.ndarray


def _fit(
    feature: TreesFeature, inputs: Sequence[Input], rows: _Rows, is_event: bool, seed: int
) -> Fitted:
    """Fits trees; ids are ordered by their mean labels, a row's by those of other inner parts."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    inner_N = np.random.default_rng(seed).integers(_INNER, size=len(rows.y_N))
    x_NF, bins_of_ids = rows.bins_NF.copy(), {}
    for place, one in enumerate(inputs):
        if one.kind == "ids":
            ids_N = rows.ids[one.name]
            means_R = _means(rows, ids_N, slice(None))
            ends = _cuts(means_R[ids_N])
            bins_of_ids[one.name] = np.searchsorted(ends, means_R).astype(np.uint8)
            for inner in range(_INNER):
                mine = inner_N == inner
                others_R = _means(rows, ids_N, ~mine, len(means_R))
                x_NF[mine, place] = np.searchsorted(ends, others_R[ids_N[mine]])
    kind: Any = HistGradientBoostingClassifier if is_event else HistGradientBoostingRegressor
    model = kind(
        max_iter=feature.trees,
        max_leaf_nodes=min(feature.leaves, _LEAVES),
        learning_rate=feature.learning_rate,
        early_stopping=len(rows.y_N) >= 20 * _INNER,
        n_iter_no_change=10,
        max_bins=255,
        random_state=seed,
    )
    x_NF = x_NF.astype(np.float32)
    model.fit(x_NF, rows.y_N, sample_weight=rows.weights_N)
    said = model.decision_function if is_event else model.predict
    forest = Forest({**_nodes(model), "base": np.zeros(1)})
    base = said(x_NF[:1]) - forest.of(x_NF[:1].astype(np.uint8))
    return Fitted(Forest({**forest.arrays, "base": base}), bins_of_ids)


def _means(
    rows: _Rows, ids_N: np.ndarray, some: slice | np.ndarray, size: int | None = None
) -> np.ndarray:
    """Mean label of each id, [R], of some rows; of new ones that of all."""
    y_n, weights_n = rows.y_N[some], rows.weights_N[some].astype(np.float64)
    size = max(int(ids_N.max(initial=0)), UNSEEN) + 1 if size is None else size
    return mean_labels(ids_N[some], y_n, weights_n, size, float(np.average(y_n, weights=weights_n)))


def mean_labels(
    ids_N: np.ndarray, labels_N: np.ndarray, weights_N: np.ndarray, size: int, mean: float
) -> np.ndarray:
    """Computes the mean label of each id, drawn towards a mean by ten rows of it.

    Args:
        ids_N: Below `size`.
        labels_N: Of the same rows.
        weights_N: Of the rows.
        size: Number of ids.
        mean: That of an id without rows.

    Returns:
        float64 [size].

    Example:
        >>> ones = np.ones(10)
        >>> mean_labels(np.zeros(10, int), ones, ones, 2, 0.0).tolist()
        [0.5, 0.0]
    """
    sums_R = np.bincount(ids_N, weights_N * labels_N, size) + _SMOOTHING * mean
    return sums_R / (np.bincount(ids_N, weights_N, size) + _SMOOTHING)


def _nodes(model: Any) -> dict[str, np.ndarray]:
    """The nodes of a fitted model of scikit-learn's, as `Forest` reads them."""
    trees = [tree.nodes for of_round in model._predictors for tree in of_round]
    first = np.cumsum([0, *map(len, trees)])[:-1]
    nodes = np.concatenate(trees) if trees else np.zeros(0, [(name, "f8") for name in _OF_SKLEARN])
    feature, threshold, left, right, value, leaf = (nodes[name] for name in _OF_SKLEARN)
    inner = leaf == 0
    return {
        "feature": np.where(inner, feature, -1).astype(np.int16),
        "bin": np.where(inner, np.floor(np.where(inner, threshold, 0.0)), 0).astype(np.uint8),
        "left": left.astype(np.int16),
        "right": right.astype(np.int16),
        "value": np.where(inner, 0.0, value),
        "first": first.astype(np.int64),
    }


_OF_SKLEARN = ("feature_idx", "num_threshold", "left", "right", "value", "is_leaf")

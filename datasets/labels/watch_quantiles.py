"""Watch time as its quantile among rows of about the same duration: tasks of kind d2q."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import RunConfig, Stored
from mmoe.config.tasks import D2QTask
from mmoe.datasets.features.codec import Section
from mmoe.datasets.features.domains import domain_keys, exists_in
from mmoe.datasets.features.fit_numbers import bucket_edges
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.rows.encoded import RowLink
from mmoe.datasets.rows.locations import first_true, place
from mmoe.datasets.values.columns import to_numbers
from mmoe.datasets.values.hashing import mix64

WATCH_QUANTILES = "watch_quantiles"
SAMPLE = 262_144  # rows that tables are made of: 8,700 a group of 30
KNOTS = 1000  # of a group: a quantile is told to a thousandth


@dataclass(frozen=True, eq=False)
class WatchQuantiles:
    """Empirical distributions of watch time, one for each group of durations.

    With F_g the distribution function of group g, ties counting half:
    `quantile = F_g(watch)`, and back `watch = F_g⁻¹(quantile)`, linear between what was seen.

    Example:
        >>> watch = np.array([1.0, 2, 3, 4, 10, 20, 30, 40])
        >>> duration = np.array([5.0] * 4 + [60.0] * 4)
        >>> table = WatchQuantiles.fit(watch, duration, groups=2)
        >>> table.quantiles(np.array([2.0, 20.0, 99.0]), np.array([5.0, 60.0, 60.0])).tolist()
        [0.375, 0.375, 1.0]
        >>> table.watch(np.array([0.375, 0.5]), np.array([5.0, 60.0])).tolist()
        [2.0, 25.0]

    Source: Zhan et al., "Deconfounding duration bias in watch-time prediction for video
        recommendation" (KDD 2022), section 4.2.
    """

    edges: np.ndarray  # the longest duration of each group but the last, rising, float64
    # For each group watch times, rising, each of the same share of its rows; float64
    knots: Sequence[np.ndarray]

    @classmethod
    def fit(cls, watch_N: np.ndarray, duration_N: np.ndarray, groups: int) -> "WatchQuantiles":
        """Makes groups of about as many rows each, and their distributions.

        Args:
            watch_N: Watch times of N ≥ 1 rows.
            duration_N: Of the same rows.
            groups: At most; rows of one duration are in one group, and a duration of more than
                1 / groups of the rows has one of its own.
        """
        values, counts = np.unique(duration_N, return_counts=True)
        edges = values if len(values) <= groups else bucket_edges(values, counts, groups)
        edges = edges[edges < values[-1]]
        group_N = np.searchsorted(edges, duration_N, side="left")
        knots = []
        for group in range(len(edges) + 1):
            mine = np.sort(watch_N[group_N == group])
            if len(mine) > KNOTS:
                mine = np.quantile(mine, (np.arange(KNOTS) + 0.5) / KNOTS)
            knots.append(mine)
        return cls(edges, knots)

    def quantiles(self, watch_N: np.ndarray, duration_N: np.ndarray) -> np.ndarray:
        """Returns the quantile of each watch time within its group, float64 from 0 to 1."""
        found_N = np.zeros(len(watch_N))
        for rows, knots in self._groups(duration_N):
            below = np.searchsorted(knots, watch_N[rows], side="left")
            up_to = np.searchsorted(knots, watch_N[rows], side="right")
            found_N[rows] = (below + up_to) / 2 / len(knots)
        return found_N

    def watch(self, quantile_N: np.ndarray, duration_N: np.ndarray) -> np.ndarray:
        """Returns the watch time at each quantile of its group, float64."""
        found_N = np.zeros(len(quantile_N))
        for rows, knots in self._groups(duration_N):
            at = (np.arange(len(knots)) + 0.5) / len(knots)
            found_N[rows] = np.interp(quantile_N[rows], at, knots)
        return found_N

    def _groups(self, duration_N: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        group_N = np.searchsorted(self.edges, duration_N, side="left")
        each = [(np.flatnonzero(group_N == g), knots) for g, knots in enumerate(self.knots)]
        return [(rows, knots) for rows, knots in each if len(rows)]


class WatchQuantilesEntry(Stored):
    """One task's tables in encoder.json."""

    edges: list[float]
    knots: Annotated[list[Annotated[list[float], Field(min_length=1)]], Field(min_length=1)]


class WatchQuantilesSection(Section):
    """Tables of tasks of kind d2q, by task."""

    name = WATCH_QUANTILES
    entry = WatchQuantilesEntry

    def write(self, rule: WatchQuantiles, folder: Path, stem: str) -> Any:
        """Returns the tables as lists."""
        return {"edges": rule.edges.tolist(), "knots": [knots.tolist() for knots in rule.knots]}

    def read(self, entry: Any, folder: Path) -> WatchQuantiles:
        """Reads what `write` wrote."""
        if len(entry["knots"]) != len(entry["edges"]) + 1:
            raise ValueError(
                f"{WATCH_QUANTILES}: expected a list of knots more than there are edges"
            )
        knots = [np.asarray(of_group, np.float64) for of_group in entry["knots"]]
        return WatchQuantiles(np.asarray(entry["edges"], np.float64), knots)

    def marks(self, rules: dict[str, WatchQuantiles]) -> Iterator[bytes | memoryview]:
        """Yields where groups end; quantiles may differ in their last bits."""
        for name, rule in rules.items():
            yield repr((name, rule.edges.tolist())).encode()


class RowSample:
    """Rows of numbers that come chunk by chunk, all of up to `SAMPLE`, of more a uniform sample.

    It depends on the order of the rows alone, never on how they are cut into chunks.

    Args:
        width: Numbers a row.
    """

    def __init__(self, width: int) -> None:
        self.seen = 0
        self._held = np.zeros((0, 1 + width))

    @property
    def rows_NC(self) -> np.ndarray:
        """The rows held, [N, width], float64, in their order."""
        return self._held[:, 1:]

    def add(self, rows_NC: np.ndarray) -> None:
        """Takes more rows, [N, width]."""
        numbers = np.arange(self.seen, self.seen + len(rows_NC), dtype=np.uint64)
        self.seen += len(rows_NC)
        # 53 bits of the draw: float64 holds them exactly
        draws = (mix64(numbers) >> np.uint64(11)).astype(np.float64)
        held = np.concatenate([self._held, np.column_stack([draws, rows_NC])])
        if len(held) > SAMPLE:
            held = held[np.sort(np.argsort(held[:, 0], kind="stable")[:SAMPLE])]
        self._held = held


class WatchQuantilesFit:
    """Samples watch times and durations of training rows, chunk by chunk, as `RowSample` does.

    Args:
        config: Its tasks of kind d2q.
        origin: What the user calls the data; starts error messages.
        maturity: As for `encode_labels`; labels that can still change are left out.
    """

    def __init__(self, config: RunConfig, origin: str, maturity: Maturity | None = None) -> None:
        self.config, self.origin, self.maturity = config, origin, maturity
        self.tasks = _d2q_tasks(config)
        self._samples = {t: RowSample(2) for t in self.tasks}

    def add(self, table: pa.Table) -> None:
        """Takes more training rows."""
        if not self.tasks:
            return
        labels = encode_labels(self.config, table, self.origin, maturity=self.maturity)
        for t, task in self.tasks.items():
            rows = np.flatnonzero(labels.observed_NT[:, t])
            durations_N = _durations(task, table, self.origin, self.config)
            watch = labels.labels_NT[rows, t].astype(np.float64)
            self._samples[t].add(np.stack([watch, durations_N[rows]], axis=1))

    def check(self, table: pa.Table) -> None:
        """Refuses bad durations in rows that do not train, before training instead of after it."""
        for task in self.tasks.values():
            _durations(task, table, self.origin, self.config)

    def finish(self) -> dict[str, WatchQuantiles]:
        """Returns the tables by task; those without a label are left out: they are refused."""
        return {
            task.name: WatchQuantiles.fit(held_NC[:, 0], held_NC[:, 1], task.groups)
            for t, task in self.tasks.items()
            if len(held_NC := self._samples[t].rows_NC)
        }


def _d2q_tasks(config: RunConfig) -> dict[int, D2QTask]:
    return {t: task for t, task in enumerate(config.tasks) if isinstance(task, D2QTask)}


def _durations(task: D2QTask, table: pa.Table, origin: str, config: RunConfig) -> np.ndarray:
    """Reads the durations of a table's rows, float64, all above 0.

    In domains where there is no such task they are 1: nothing is made of them.

    Raises:
        ValueError: One is missing, 0, negative or infinite; names the row.
    """
    used_by = f"duration of task {task.name!r}"
    durations_N = to_numbers(table, task.duration, origin, used_by)
    exists_N = exists_in(task, domain_keys(config, table, origin)) if task.domains else None
    if exists_N is not None:
        durations_N = np.where(exists_N, durations_N, 1.0)
    row = first_true(~((durations_N > 0) & np.isfinite(durations_N)))
    if row is not None:
        came = "empty" if np.isnan(durations_N[row]) else f"{durations_N[row]:g}"
        raise ValueError(
            f"{place(table, origin, row)}: column {task.duration!r} ({used_by}) is {came}, "
            "expected a number above 0; mend the cell, or drop the row"
        )
    return durations_N


@dataclass(frozen=True)
class WatchLink:
    """Turns predicted quantiles of N rows into watch times."""

    table: WatchQuantiles  # the distributions
    duration_N: np.ndarray  # of the rows, float64

    @property
    def keeps_labels(self) -> bool:
        """Labels are not what is learnt."""
        return False

    def rows(self, rows: slice | np.ndarray) -> "WatchLink":
        """Returns the link of some of the rows."""
        return WatchLink(self.table, self.duration_N[rows])

    def joined(self, others: Sequence["WatchLink"]) -> "WatchLink":
        """Returns the link of these rows and the others' after them."""
        each = [link.duration_N for link in (self, *others)]
        return WatchLink(self.table, np.concatenate(each))

    def targets_of(self, watch_N: np.ndarray) -> np.ndarray:
        """Computes the quantiles of watch times, float64."""
        return self.table.quantiles(watch_N.astype(np.float64), self.duration_N)

    def of(self, quantile_N: np.ndarray) -> np.ndarray:
        """Computes the watch times, float32."""
        return self.table.watch(quantile_N.astype(np.float64), self.duration_N).astype(np.float32)


def watch_links(
    config: RunConfig, rules: Mapping[str, Mapping[str, Any]], table: pa.Table, origin: str
) -> dict[int, RowLink]:
    """Makes the links of a table's rows, by the places of tasks of kind d2q."""
    found: dict[int, RowLink] = {}
    for t, task in _d2q_tasks(config).items():
        duration_N = _durations(task, table, origin, config)
        fitted = rules.get(WATCH_QUANTILES, {}).get(task.name)
        if fitted is not None:  # else no row has its label
            found[t] = WatchLink(fitted, duration_N)
    return found

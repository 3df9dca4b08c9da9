"""Domains: which scene, market or surface each row is of, and those that training rows have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, Stored, TaskConfig
from mmoe.config.model import MOST_DOMAINS
from mmoe.datasets.features.codec import Section
from mmoe.datasets.rows.encoded import EncodedFeatures, EncodedLabels
from mmoe.datasets.rows.locations import find_column, first_true, place
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.keys import to_keys
from mmoe.datasets.values.text import without_words

DOMAINS = "domains"
_USED_BY = "model.domains"
_SHOWN = 8  # domains in a message


@dataclass(frozen=True)
class Domains:
    """The domains that a run knows.

    Example:
        >>> Domains(["feed", "live"]).codes(pa.chunked_array([["live", None, "shop"]])).tolist()
        [1, 2, 2]
    """

    # In the order of their numbers; of a run that continues another one its come first
    names: list[str]

    def codes(self, keys: pa.ChunkedArray) -> np.ndarray:
        """Numbers the domains of N rows, int32; as many as there are: missing, or not known."""
        known = pa.array(self.names, keys.type)
        found_N = pc.fill_null(pc.index_in(keys, value_set=known), len(self.names))
        return found_N.to_numpy().astype(np.int32)

    def with_new(self, others: "Domains") -> "Domains":
        """Returns the same with others' behind that are new."""
        return Domains([*self.names, *(n for n in others.names if n not in self.names)])


class DomainsEntry(Stored):
    """Names of the domains in encoder.json."""

    names: list[str]


class DomainsSection(Section):
    """The domains, by their column."""

    name = DOMAINS
    entry = DomainsEntry

    def read(self, entry: Any, folder: Path) -> Domains:
        """Reads what `write` wrote."""
        return Domains(list(entry["names"]))

    def marks(self, rules: dict[str, Domains]) -> Iterator[bytes | memoryview]:
        """Yields the names."""
        for name, rule in rules.items():
            yield repr((name, rule.names)).encode()


class DomainsFit:
    """Collects the domains of training rows, chunk by chunk.

    Args:
        config: Its `model.domains`; without them nothing is done.
        origin: What the user calls the data; starts error messages.
    """

    def __init__(self, config: RunConfig, origin: str) -> None:
        self.config, self.origin = config, origin
        self.section = config.model.domains
        self._seen: set[str] = set()
        self._beside: dict[str, str] = {}  # of rows that do not train: domain → the first such row

    def add(self, table: pa.Table) -> None:
        """Looks at more training rows."""
        if self.section is None:
            return
        keys = domain_keys(self.config, table, self.origin, fills=self.section.unseen == "refuse")
        self._seen.update(keys.unique().drop_null().to_pylist())
        if len(self._seen) > MOST_DOMAINS:
            raise ValueError(
                f"{self.origin}: column {self.section.column!r} ({_USED_BY}) has more than "
                f"{MOST_DOMAINS:,} values; a domain is a scene or a market: name such a column, "
                "and make this one a categorical feature"
            )

    def check(self, table: pa.Table) -> None:
        """Refuses missing domains of rows that do not train, and keeps the others for `finish`.

        So what their evaluation would refuse is refused before training instead of after it.
        """
        if self.section is None or self.section.unseen != "refuse":
            return
        keys = domain_keys(self.config, table, self.origin, fills=True)
        for name in keys.unique().to_pylist():
            if name not in self._beside:
                row = pc.index(keys, pa.scalar(name, keys.type)).as_py()
                self._beside[name] = place(table, self.origin, row)

    def finish(self) -> dict[str, Domains]:
        """Returns the domains by their column, in the order of their names.

        Raises:
            ValueError: No row has one, or none has one that a task names.
        """
        if self.section is None:
            return {}
        column = self.section.column
        if not self._seen:
            raise ValueError(
                f"{self.origin}: column {column!r} ({_USED_BY}) is empty in every training row; "
                "name another column, or remove model.domains"
            )
        domains = Domains(sorted(self._seen))
        for task in self.config.tasks:
            for name in [name for name in task.domains or () if name not in domains.names]:
                close = get_close_matches(name, domains.names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there: {_shown(domains)}"
                raise ValueError(
                    f"{self.origin}: task {task.name!r}: domains names {name!r}, but no training "
                    f"row has that {column!r} ({hint}); correct it, or take it out"
                )
        for name, where in self._beside.items():
            if name not in self._seen:
                raise _not_known(where, column, name, domains)
        return {column: domains}


def domain_keys(
    config: RunConfig, table: pa.Table, origin: str, *, fills: bool = False
) -> pa.ChunkedArray:
    """Reads the domain of each row as text; null where there is none.

    Whatever type the column has, `3`, `3.0` and `"3"` are one domain.

    Raises:
        ValueError: The column is not there, or holds lists or the like; `fills`: a row has none.
    """
    assert config.model.domains is not None, "there are domains"
    name = config.model.domains.column
    column = find_column(table, name, origin, _USED_BY)
    column = without_words(column, config.data.missing_words)
    keys = to_keys(column, "text", f"{origin}: column {name!r} (of {_USED_BY})")
    row = first_true(pc.is_null(keys).to_numpy()) if fills else None
    if row is not None:
        raise ValueError(
            f"{place(table, origin, row)}: column {name!r} ({_USED_BY}) is empty; fill the cell, "
            "leave the row out, or set model.domains.unseen: mean_gate"
        )
    return keys.cast(pa.large_string())


def encode_domains(
    config: RunConfig, rules: Mapping[str, Mapping[str, Any]], table: pa.Table, origin: str
) -> np.ndarray | None:
    """Numbers the domain of each row; None where the run has no domains.

    Raises:
        ValueError: A row has no domain that training rows had, and `unseen` is `refuse`.
    """
    section = config.model.domains
    if section is None:
        return None
    keys = domain_keys(config, table, origin, fills=section.unseen == "refuse")
    domains = domains_of(rules)
    assert domains is not None, "they are fitted"
    codes_N = domains.codes(keys)
    row = first_true(codes_N == len(domains.names))
    if section.unseen == "refuse" and row is not None:
        raise _not_known(place(table, origin, row), section.column, keys[row].as_py(), domains)
    return codes_N


def domains_of(rules: Mapping[str, Mapping[str, Any]]) -> Domains | None:
    """Returns the domains that were learnt; None: the run has none."""
    return next(iter(rules.get(DOMAINS, {}).values()), None)


def asked_tasks(tasks: Sequence[TaskConfig], domains: Domains) -> np.ndarray | None:
    """Returns which tasks exist in which domain, bool [M + 1, T]; None: all do everywhere.

    The last row is that of other domains: there are the tasks that name none.
    """
    if all(task.domains is None for task in tasks):
        return None
    return np.array(
        [
            [task.domains is None or name in task.domains for task in tasks]
            for name in (*domains.names, None)
        ]
    )


def exists_in(task: TaskConfig, keys: pa.ChunkedArray | None) -> np.ndarray | None:
    """Returns for each row whether a task exists in its domain; None: in every one."""
    if task.domains is None or keys is None:
        return None
    named = pa.array(task.domains, keys.type)
    return pc.is_in(keys, value_set=named).to_numpy()


def with_domains(labels: EncodedLabels, features: EncodedFeatures) -> EncodedLabels:
    """Returns the labels with the domain of each row, by which metrics are told apart."""
    return labels if features.domains_N is None else replace(labels, domains_N=features.domains_N)


def _not_known(where: str, column: str, name: str, domains: Domains) -> ValueError:
    return ValueError(
        f"{where}: column {column!r} ({_USED_BY}) is {name!r}, which no training row has (they "
        f"have {_shown(domains)}); train on such rows too, leave the row out, or train with "
        "model.domains.unseen: mean_gate"
    )


def _shown(domains: Domains) -> str:
    return ", ".join(domains.names[:_SHOWN]) + (", …" if len(domains.names) > _SHOWN else "")

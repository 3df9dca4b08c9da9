"""What a person says of columns, which counts for more than anything measured."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from mmoe.datasets.infer.profile import ColumnProfile, of_numbers
from mmoe.datasets.labels.formula import columns_of
from mmoe.datasets.rows.locations import missing_column, visible_columns
from mmoe.datasets.values.columns import to_numbers


@dataclass(frozen=True)
class Told:
    """Columns of which a person knows better.

    Attributes:
        categorical: They are ids.
        numeric: They are numbers.
        drop: They are left out.
    """

    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    drop: Sequence[str] = ()

    @classmethod
    def of_options(
        cls,
        columns: Collection[str],
        categorical: Sequence[str] | None,
        numeric: Sequence[str] | None,
        drop: Sequence[str] | None,
    ) -> "Told":
        """Reads options that may name several columns with commas between; names may hold some.

        Example:
            >>> Told.of_options(["a", "b", "c, d"], ["a,b", "c, d"], None, None).categorical
            ['a', 'b', 'c, d']
        """
        return cls(*(_names(columns, option or ()) for option in (categorical, numeric, drop)))

    def without(self, column: str, table: pa.Table, origin: str) -> "Told":
        """Returns the same, with a column that names requests, and is no input.

        Raises:
            ValueError: It is not there, or is said to be one.
        """
        if column not in visible_columns(table):
            raise ValueError(missing_column(column, visible_columns(table), origin, "--request"))
        if column in (*self.categorical, *self.numeric, *self.drop):
            raise ValueError(f"--request {column}: another option names it too; leave it out there")
        return replace(self, drop=[*self.drop, column])

    @cached_property
    def kept(self) -> set[str]:
        """Columns that are inputs, whatever speaks against it."""
        return {*self.categorical, *self.numeric}

    def unread(self, labels: Collection[str]) -> set[str]:
        """Returns columns to drop of which no label is made: nothing need be known of them."""
        return set(self.drop) - {column for label in labels for column in _columns_of(label)}

    def check(self, table: pa.Table, labels: Collection[str], origin: str) -> None:
        """Refuses columns that are not there, are labels, or are said to be two things.

        Raises:
            ValueError: As said; the message names the option and the column.
        """
        seen: dict[str, str] = {}
        there = dict.fromkeys(visible_columns(table))
        for option in ("categorical", "numeric", "drop"):
            for column in getattr(self, option):
                if column not in there:
                    raise ValueError(missing_column(column, there, origin, f"--{option}"))
                if column in labels and option != "drop":
                    raise ValueError(
                        f"--{option} {column}: a label is made of this column, so it is no input; "
                        "remove the option"
                    )
                if seen.get(column, option) != option:
                    raise ValueError(
                        f"--{option} {column}: it is under --{seen[column]} as well; say one of "
                        "the two"
                    )
                seen[column] = option

    def apply(
        self, table: pa.Table, profiles: Sequence[ColumnProfile], origin: str
    ) -> list[ColumnProfile]:
        """Returns the columns without those to drop, with the numbers of those that hold some.

        Raises:
            ValueError: Numbers are none, or ids cannot be; the message names column and row.
        """
        drop = set(self.drop)
        return [self._one(table, one, origin) for one in profiles if one.name not in drop]

    def _one(self, table: pa.Table, profile: ColumnProfile, origin: str) -> ColumnProfile:
        if profile.name in self.categorical and profile.nature in ("list", "vector", "other"):
            raise ValueError(
                f"--categorical {profile.name}: it holds {table[profile.name].type}, expected one "
                "id a row; remove the option"
            )
        read = profile.numbers_N is not None and profile.nature in ("integer", "real")
        if profile.name not in self.numeric or read:
            return profile
        numbers_N = to_numbers(table, profile.name, origin, f"--numeric {profile.name}")
        return of_numbers(profile.name, numbers_N)


def _columns_of(label: str) -> list[str]:
    try:
        return [label, *columns_of(label)]
    except ValueError:  # a column whose name is no expression, or refused later
        return [label]


def _names(columns: Collection[str], values: Sequence[str]) -> list[str]:
    found = [
        name
        for value in values
        for name in ([value] if value in columns else map(str.strip, value.split(",")))
    ]
    return [name for name in dict.fromkeys(found) if name]

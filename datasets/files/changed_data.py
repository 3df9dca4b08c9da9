"""Says how a run's rows differ from those that it began with."""

from collections import Counter
from collections.abc import Sequence

from mmoe.datasets.files.fingerprint import DataPrint, RowsPrint

_SHOWN = 3


def same_rows(before: DataPrint, now: DataPrint, split: str | None = None) -> bool:
    """Returns whether the same content comes in the same order, whatever its name and folder.

    Args:
        before: What a run began with.
        now: What there is.
        split: Only this one; None: all.
    """
    return before.kind == now.kind and _contents(before, split) == _contents(now, split)


def data_changes(before: DataPrint, now: DataPrint) -> list[str]:
    """Lists what was changed, removed, added, renamed or reordered; the first comes first.

    Where all files lie does not matter, their names below the folder that they share do.

    Example:
        >>> def print_of(**files):
        ...     rows = [RowsPrint(name=f"{n}.csv", size=9, digest=d) for n, d in files.items()]
        ...     return DataPrint(kind="files", parts={"all": rows})
        >>> data_changes(print_of(a="x", b="y"), print_of(b="y", c="z"))
        ['a.csv was removed', 'c.csv was added']
        >>> data_changes(print_of(a="x", b="y"), print_of(a="y", b="x"))
        ['a.csv now holds what b.csv held, so the rows come in another order']
    """
    if before.kind != now.kind:
        words = {"files": "files", "tables": "tables in memory"}
        return [f"the rows came from {words[before.kind]}, and now come from {words[now.kind]}"]
    tables = zip(now.versions.items(), before.versions.values(), strict=False)
    found = [
        f"{table} is at version {version}, and was at {was} (--as-of {was} reads it as it was)"
        for (table, version), was in tables
        if version != was
    ]
    for split in dict.fromkeys([*before.parts, *now.parts]):
        one, two = before.parts.get(split, []), now.parts.get(split, [])
        found += _of_tables(one, two) if now.kind == "tables" else _of_files(one, two)
    return found


def shown(changes: Sequence[str]) -> str:
    """Joins as many changes as fit into a line."""
    more = f", and {len(changes) - _SHOWN:,} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def _contents(data: DataPrint, split: str | None) -> list[tuple[str, list[tuple[int, str]]]]:
    splits = data.parts if split is None else {split: data.parts.get(split, [])}
    return [(name, [_content(one) for one in rows]) for name, rows in splits.items()]


def _content(one: RowsPrint) -> tuple[int, str]:
    return one.size, one.digest


def _of_tables(before: Sequence[RowsPrint], now: Sequence[RowsPrint]) -> list[str]:
    return [
        f"the {one.name} table holds other rows ({one.size:,} then, {two.size:,} now)"
        for one, two in zip(before, now, strict=True)
        if one != two
    ]


def _of_files(before: Sequence[RowsPrint], now: Sequence[RowsPrint]) -> list[str]:
    """In the order in which rows are numbered, so that the first is the first that differs."""
    moved = [
        (one, two) for one, two in zip(before, now, strict=False) if _content(one) != _content(two)
    ]
    if not moved and [one.name for one in before] == [two.name for two in now]:
        return []
    same_files = {one.name for one in before} == {two.name for two in now}
    if moved and same_files and Counter(map(_content, before)) == Counter(map(_content, now)):
        held = {_content(one): one.name for one in before}
        one, two = moved[0]
        change = f"{two.name} now holds what {held[_content(two)]} held"
        if held[_content(two)] == two.name:
            change = f"{two.name} now comes where {one.name} came"
        return [f"{change}, so the rows come in another order"]
    old, renamed = _old_files(before, now)
    new = [
        (place, f"{two.name} was added")
        for place, two in enumerate(now)
        if two.name not in {one.name for one in before} | renamed
    ]
    found = [words for _, words in sorted([*old, *new], key=lambda one: one[0])]
    return found or ["the files come in another order"]


def _old_files(
    before: Sequence[RowsPrint], now: Sequence[RowsPrint]
) -> tuple[list[tuple[int, str]], set[str]]:
    """What became of files that are not as they were, with their places; and names they got."""
    here = {two.name: two for two in now}
    names = {one.name for one in before}
    free = {_content(two): two.name for two in now if two.name not in names}
    found, renamed = [], set()
    for place, one in enumerate(before):
        two = here.get(one.name)
        if two is None and _content(one) in free:
            renamed.add(free[_content(one)])
            found.append((place, f"{one.name} was renamed to {free.pop(_content(one))}"))
        elif two is None:
            found.append((place, f"{one.name} was removed"))
        elif one.size != two.size:
            sizes = f"{one.size:,} bytes then, {two.size:,} now"
            found.append((place, f"{one.name} was changed ({sizes})"))
        elif one.digest != two.digest:
            found.append((place, f"{one.name} was changed (as many bytes, but others)"))
    return found, renamed

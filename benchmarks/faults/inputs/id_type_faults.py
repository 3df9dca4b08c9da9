"""Faults of how ids are written: one number in several spellings, numbers beyond a type."""

import pyarrow as pa

from benchmarks.faults.inputs.draft import Draft, Expect, either, right


def powers_of_ten(draft: Draft) -> Expect:
    """Integers as R and spreadsheets write them: 1e+02, 2.5E1."""
    for part, table in enumerate(draft.tables):
        words = [
            draft.draw.choice([f"{user}", f"{user}.0", f"{user:.6e}", f"{user / 10}E1"])
            for user in table["user"].to_pylist()
        ]
        draft.replace(part, "user", pa.array(words))
    # A log of words that are no CSV cells holds words, unless what reads it knows numbers alone
    words = not draft.is_csv and draft.command == "train"
    return right("tables" if words else "clean")


def unsigned_beside_signed(draft: Draft) -> Expect:
    """Ids of 64 bits, in one file without a sign: some of them beyond 2⁶³."""
    part = draft.part()
    users = [2**63 + user if user % 3 else user for user in draft.tables[part]["user"].to_pylist()]
    draft.replace(part, "user", pa.array(users, pa.uint64()))
    return right("files" if draft.is_csv else "tables")


def large_beside_fractions(draft: Draft) -> Expect:
    """Integers beyond 2⁵³ in one file, fractions in another: float64 would round."""
    for part, table in enumerate(draft.tables):
        users = table["user"].to_pylist()
        if part == 0:
            draft.replace(part, "user", pa.array([2**53 + user for user in users]))
        else:
            draft.replace(part, "user", pa.array([user + 0.5 for user in users]))
    alone = len(draft.tables) == 1
    return (
        right("files" if draft.is_csv else "tables") if alone else either("user", reference="none")
    )


ID_TYPE_FAULTS = (powers_of_ten, unsigned_beside_signed, large_beside_fractions)

"""Values of columns: ids, text, numbers and datetimes in one form, whatever type a file stored.

`to_numbers`, `to_times` and `local_datetimes` read columns, `to_keys` and `hash_keys` ids;
`settle` and `TextKind` find what text holds. `pc` is pyarrow.compute.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.values.arrow import check_room, may_use_threads, out_of_memory, pc
    from mmoe.datasets.values.columns import numbers_of, to_numbers, to_times
    from mmoe.datasets.values.datetimes import TimeUnits, local_datetimes
    from mmoe.datasets.values.hashing import mix64
    from mmoe.datasets.values.keys import (
        GroupCodes,
        KeyIndex,
        KeyKind,
        codes_of,
        hash_keys,
        key_kind,
        missing_mask,
        raw_ids,
        refuse_nested,
        to_keys,
    )
    from mmoe.datasets.values.text import blank_to_null, settle
    from mmoe.datasets.values.text_kind import TextKind, as_settled

__all__ = [
    "GroupCodes",
    "KeyIndex",
    "KeyKind",
    "TextKind",
    "TimeUnits",
    "as_settled",
    "blank_to_null",
    "check_room",
    "codes_of",
    "hash_keys",
    "key_kind",
    "local_datetimes",
    "may_use_threads",
    "missing_mask",
    "mix64",
    "numbers_of",
    "out_of_memory",
    "pc",
    "raw_ids",
    "refuse_nested",
    "settle",
    "to_keys",
    "to_numbers",
    "to_times",
]

__getattr__ = lazily(
    __name__,
    {
        "arrow": ["check_room", "may_use_threads", "out_of_memory", "pc"],
        "columns": ["numbers_of", "to_numbers", "to_times"],
        "datetimes": ["TimeUnits", "local_datetimes"],
        "hashing": ["mix64"],
        "keys": [
            "GroupCodes",
            "KeyIndex",
            "KeyKind",
            "codes_of",
            "hash_keys",
            "key_kind",
            "missing_mask",
            "raw_ids",
            "refuse_nested",
            "to_keys",
        ],
        "text": ["blank_to_null", "settle"],
        "text_kind": ["TextKind", "as_settled"],
    },
)

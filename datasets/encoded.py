"""Moved to `mmoe.datasets.rows.encoded`; importable here for one release."""

from typing import Any

from mmoe.moved import moved


def __getattr__(name: str) -> Any:
    return moved(name, __name__, {"EncodedData": "mmoe.datasets.rows.encoded"})

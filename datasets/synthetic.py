"""Moved to `mmoe.datasets.bundled.synthetic`; importable here for one release."""

from typing import Any

from mmoe.moved import moved


def __getattr__(name: str) -> Any:
    return moved(name, __name__, {"generate_funnel": "mmoe.datasets.bundled.synthetic"})

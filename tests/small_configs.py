"""Configs of some features and one task, the click."""

from typing import Any

from mmoe.config import RunConfig, config_from_dict

CLICK = {"name": "click", "label": "click"}


def click_config(*features: dict[str, Any], **sections: Any) -> RunConfig:
    """The config of these features, with further sections; `tasks` stand for the click."""
    return config_from_dict({"features": list(features), "tasks": [CLICK], **sections})

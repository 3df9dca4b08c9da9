"""Refuses settings that domains do not go with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmoe.config.tasks import EntireSpaceTask, TaskConfig

if TYPE_CHECKING:  # the model has a section of this package
    from mmoe.config.model import ModelConfig


def check_domains(model: "ModelConfig", tasks: Sequence[TaskConfig]) -> None:
    """Refuses domains of tasks without `model.domains`, and what these do not go with.

    Raises:
        ValueError: Names the key, and how to mend it.
    """
    domains = model.domains
    for task in tasks:
        if task.domains is not None and domains is None:
            raise ValueError(
                f"task {task.name!r}: domains says where the task exists, but no column says which "
                "domain a row is of; set model.domains.column, or remove domains"
            )
    if domains is None:
        return
    if domains.towers == "own":
        _check_own_towers(model)
    for task in tasks:
        _check_event(task, tasks)


def _check_own_towers(model: "ModelConfig") -> None:
    for key, kind, mend in (
        ("tower.kind", model.tower.kind, "mlp"),
        ("transfer", model.transfer.kind, "none"),
    ):
        if kind != mend:
            raise ValueError(
                f"model.domains.towers is own, which model.{key} {kind} does not go with; set "
                f"model.{key}: {mend}, or model.domains.towers: shared"
            )


def _check_event(task: TaskConfig, tasks: Sequence[TaskConfig]) -> None:
    """A probability that is multiplied by its event's needs that event wherever it exists."""
    if not isinstance(task, EntireSpaceTask):
        return
    events = {*task.after, task.observed_when}
    for event in tasks:
        if event.name not in events or event.domains is None:
            continue
        missing = sorted({*(task.domains or ["every domain"])} - {*event.domains})
        if missing:
            raise ValueError(
                f"task {task.name!r}: exists in {missing[0]}, but its event {event.name!r} does "
                f"not; add it to the domains of {event.name!r}, or narrow those of {task.name!r}"
            )

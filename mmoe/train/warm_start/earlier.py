"""The run that a warm start continues, and whether a config can continue it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.checkpoint.weights import check_tables
from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.data_file import is_address
from mmoe.run.addresses import open_run
from mmoe.train.warm_start.compatibility import differences, named_pairs

# What must stay of the model. Sizes show in the tensors; that a layer is gone does not.
_MODEL: tuple[tuple[str, ...], ...] = (
    ("kind",),
    ("interaction", "kind"),
    ("interaction", "layers"),
    ("interaction", "blocks"),
    ("interaction", "hidden"),
    ("interaction", "rank"),
    ("interaction", "activation"),
    ("interaction", "arrangement"),
    ("interaction", "heads"),
    ("transfer", "kind"),
    ("transfer", "dim"),
    ("wide",),
    ("bias", "hidden"),
    ("domains", "column"),
    ("domains", "towers"),
    ("expert", "kind"),
    ("expert", "activation"),
    ("expert", "arrangement"),
    ("expert", "heads"),
    ("expert", "module"),
    ("expert", "weights"),
    ("expert", "hidden"),
    ("expert", "layers"),
    ("expert", "blocks"),
    ("expert", "rank"),
    ("tower", "kind"),
    ("tower", "hidden"),
    ("tower", "activation"),
)

_OF_EACH_EXPERT = tuple(keys[1] for keys in _MODEL if keys[0] == "expert")


@dataclass(frozen=True)
class EarlierRun:
    """Run to continue, finished or interrupted: its config, encoder and best checkpoint.

    Attributes:
        path: Its folder, or the address that was given.
        config: As it was trained.
        encoder: Fitted on its training rows, and on those of the runs that it continued.
        folder: Its checkpoints.
        best: Name of the best one, when it was opened.
    """

    path: Path | str
    config: RunConfig
    encoder: FeatureEncoder
    folder: CheckpointFolder
    best: str

    @classmethod
    def open(cls, path: str | Path) -> "EarlierRun":
        """Reads config and encoder; tensors are read by `model` and `training`.

        Raises:
            ValueError: `path` is no run directory, or is damaged.
        """
        run = open_run(path, tensors=("model", "training"))
        encoder = FeatureEncoder.load(run.vocabulary)
        folder = CheckpointFolder(run.checkpoint)
        named = str(path) if is_address(str(path)) else run.path.absolute()
        found = cls(named, run.config(), encoder, folder, folder.index()["best"])
        check_tables(encoder.tables, found.model())  # the new run's are made by them
        return found

    @property
    def step(self) -> int:
        """Name of the best checkpoint's folder (`step-00000120`)."""
        return int(self.best.split("-")[1])

    def rows(self) -> dict[str, int]:
        """Returns how many rows each of its tables has."""
        return {table.name: table.num_rows for table in self.encoder.tables}

    def model(self) -> StoredTensors:
        """Weights of the best checkpoint."""
        return self.folder.tensors(self.best, "model")

    def training(self) -> StoredTensors:
        """Reads the optimizer state of the best checkpoint."""
        return self.folder.tensors(self.best, "training")

    def check(self, config: RunConfig) -> None:
        """Refuses a config that cannot continue this run, as far as configs tell.

        Features, tasks and experts may have been added or removed; those that stay must mean what
        they meant.

        Raises:
            ValueError: Names the run, the first key that differs, and the way out.
        """
        for keys in _MODEL:
            if keys[0] == "bias" and None in (self.config.model.bias, config.model.bias):
                continue  # it may come and go
            if keys[0] == "domains" and self.config.model.domains is None:
                continue  # they may come
            self._same(f"model.{'.'.join(keys)}", _at(self.config, keys), _at(config, keys))
        for key in _OF_EACH_EXPERT:
            there, here = (
                [expert.get(key) for expert in _at(c, ("experts",)) or ()]
                for c in (self.config, config)
            )
            self._same(f"{key} of model.experts", there, here)
        self._same("model.levels", self.config.model.depth, config.model.depth)
        for there, here in named_pairs(self.config, config, lambda c: c.tasks):
            self._same(f"tasks.{here.name}.kind", there.kind, here.kind)
            for key, value in here.meaning.items():
                self._same(f"tasks.{here.name}.{key}", there.meaning[key], value)
        if not named_pairs(self.config, config, lambda c: c.features):
            raise ValueError(
                f"--warm-start {self.path}: shares no feature with this config (there: "
                f"{_names(self.config.features)}; here: {_names(config.features)}); name another "
                "run, or train without --warm-start"
            )
        for key, there, here in differences(self.config, config):
            self._same(key, there, here)

    def _same(self, key: str, there: object, here: object) -> None:
        if there != here:
            raise ValueError(
                f"--warm-start {self.path}: {key} is {there!r} there and {here!r} here; keep it "
                f"as it was{_or_rename(key)}, or train without --warm-start"
            )


def _at(config: RunConfig, keys: tuple[str, ...]) -> Any:
    value: Any = config.model.model_dump()
    for key in keys:
        value = None if value is None else value.get(key)
    return value


def _names(items: list[Any]) -> str:
    return ", ".join(item.name for item in items[:8]) + (", …" if len(items) > 8 else "")


def _or_rename(key: str) -> str:
    renamed = {"features": "feature", "tasks": "task", "tables": "table"}.get(key.split(".")[0])
    return f", or give the {renamed} another name" if renamed else ""


def model_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Names the first key of the model section whose change shows in a tensor's shape."""
    shaping = (
        ("expert", "hidden"),
        ("expert", "norm"),
        ("gate", "kind"),
        ("gate", "hidden"),
        ("gate", "k"),
        ("tower", "hidden"),
        ("num_experts",),
        ("request_experts",),
        ("experts",),
        ("expert",),
        ("interaction",),
        ("bias", "hidden"),
    )
    for keys in shaping:
        one: Any = there
        two: Any = here
        for key in keys:
            one, two = (value and value.get(key) for value in (one, two))
        if one != two:
            return f"model.{'.'.join(keys)} is {one!r} there and {two!r} here"
    return ""

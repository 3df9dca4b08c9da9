"""The run that a warm start continues, its tensors, whether a config can, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from mmoe.checkpoint import CheckpointFolder, StoredTensors
from mmoe.checkpoint.weights import check_tables
from mmoe.config import RunConfig, Stored
from mmoe.datasets import FeatureEncoder
from mmoe.datasets.features.encoder import codecs_of
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.files.data_file import absolute, is_address
from mmoe.mixture.moves import NewExperts
from mmoe.run import RunDirectory, open_run, read_json

_SHOWN = 8  # names in one line; beyond that their number


class _Recorded(Stored):
    """Part of warm_start.json that is needed."""

    run: str
    new_experts: NewExperts


@dataclass(frozen=True)
class WarmStart:
    """Run to continue: training begins with its best checkpoint.

    Attributes:
        run: Its folder, or the address of one.
        new_experts: `fresh`: experts that it did not have are initialised; `copy`: they begin as
            copies of its experts (upcycling).
    """

    run: str | Path
    new_experts: NewExperts = "fresh"

    def options(self) -> dict[str, str]:
        """Returns the settings as the command line calls them, for errors."""
        return {"--warm-start": self.named, "--new-experts": self.new_experts}

    @property
    def named(self) -> str:
        """Address of the run, or whole path of its folder."""
        return absolute(self.run)

    @classmethod
    def recorded(cls, run: RunDirectory, asked: "WarmStart | None") -> "WarmStart | None":
        """Reads what a run to be resumed began with.

        Raises:
            ValueError: It began with something else than what is asked for.
        """
        begun = run.config_file.exists() and CheckpointFolder(run.checkpoint).exists()
        if not run.warm_start_file.exists():
            if begun and asked is not None:
                raise ValueError(
                    f"{run.path}: did not begin with a warm start; resume it without "
                    "--warm-start, or choose another --out"
                )
            return asked
        content = read_json(run.warm_start_file, _Recorded)
        found = cls(content["run"], content["new_experts"])
        if asked is not None and (asked.named, asked.new_experts) != (
            found.named,
            found.new_experts,
        ):
            raise ValueError(
                f"{run.path}: began with a warm start from {found.run} (new experts: "
                f"{found.new_experts}); resume it with the same, or choose another --out"
            )
        return found


@dataclass
class WarmStartReport:
    """Report of what a warm start kept and changed, a phrase each; warm_start.json.

    Attributes:
        run: The run that is continued.
        step: The step of its best checkpoint.
        new_experts: `fresh` or `copy`.
        kept: As they were.
        grown: Kept, with more rows.
        initialised: New, or kept without their optimizer state.
        dropped: Of the earlier run, and not here.
        not_carried: Names of tensors that both runs have, and whose numbers went nowhere.
    """

    run: str
    step: int
    new_experts: str = "fresh"
    kept: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    initialised: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    not_carried: list[str] = field(default_factory=list)

    def compare(self, what: str, now: Sequence[str], before: Sequence[str], note: str = "") -> None:
        """Says which names are in both, only here, only there.

        Example:
            >>> report = WarmStartReport("runs/monday", 120)
            >>> report.compare("task", ["click", "like"], ["click", "buy"])
            >>> report.kept, report.initialised, report.dropped
            (['task click'], ['task like'], ['task buy'])
        """
        kept, new, gone = both(now, before)
        for names, list_, more in (
            (kept, self.kept, ""),
            (new, self.initialised, note),
            (gone, self.dropped, ""),
        ):
            if names:
                list_.append(listed(what, names) + more)

    def lines(self) -> list[str]:
        """Returns the report as lines for people."""
        lost, more = self.not_carried[:_SHOWN], len(self.not_carried) - _SHOWN
        parts = (
            ("kept", self.kept),
            ("grown", self.grown),
            ("initialised", self.initialised),
            ("dropped", self.dropped),
            ("not carried over", [*lost, f"and {more} more tensors"] if more > 0 else lost),
        )
        lines = [f"  {name}: {'; '.join(phrases)}" for name, phrases in parts if phrases]
        return [f"warm start from {self.run}, step {self.step}", *lines]


def both(now: Sequence[str], before: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Splits names: in both, in `now` alone, in `before` alone; each in its own order."""
    return (
        [name for name in now if name in before],
        [name for name in now if name not in before],
        [name for name in before if name not in now],
    )


def listed(what: str, names: Sequence[str]) -> str:
    """Joins names: `task click`, `tasks click, buy`, `27 features`, `expert 1, expert 2`."""
    if len(names) > _SHOWN:
        return f"{len(names)} {what}s"
    if all(what in name for name in names):
        return ", ".join(names)
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}"


# What must stay of the model. Sizes show in the tensors; that a layer is gone does not.
_OF_EACH_EXPERT = (
    *("kind", "activation", "arrangement", "heads", "module", "weights"),
    *("hidden", "layers", "blocks", "rank"),
)
_MODEL = (
    *("kind", "interaction.kind", "interaction.layers", "interaction.blocks"),
    *("interaction.hidden", "interaction.rank", "interaction.activation"),
    *("interaction.arrangement", "interaction.heads", "transfer.kind", "transfer.dim", "wide"),
    *("bias.hidden", "domains.column", "domains.towers"),
    *(f"expert.{key}" for key in _OF_EACH_EXPERT),
    *("tower.kind", "tower.hidden", "tower.activation"),
)
# Of the model, in whose tensors' shapes they show
_SHAPING = (
    *("expert.hidden", "expert.norm", "gate.kind", "gate.hidden", "gate.k", "tower.hidden"),
    *("num_experts", "request_experts", "experts", "expert", "interaction", "bias.hidden"),
)

_Difference = tuple[str, object, object]  # a key, its value there, its value here


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
        for key in _MODEL:
            section = key.partition(".")[0]
            if section == "bias" and None in (self.config.model.bias, config.model.bias):
                continue  # it may come and go
            if section == "domains" and self.config.model.domains is None:
                continue  # they may come
            self._same(f"model.{key}", _at(self.config, key), _at(config, key))
        for key in _OF_EACH_EXPERT:
            there, here = (
                [expert.get(key) for expert in _at(c, "experts") or ()]
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
            mend = f"; keep it as it was{_or_rename(key)}, or train without --warm-start"
            raise self.other(key, there, here, mend)

    def other(self, key: str, there: object, here: object, mend: str) -> ValueError:
        """Makes the refusal of a key that has another value here; `mend` ends the sentence."""
        return ValueError(
            f"--warm-start {self.path}: {key} is {there!r} there and {here!r} here{mend}"
        )


def _at(config: RunConfig, key: str) -> Any:
    value: Any = config.model.model_dump()
    for name in key.split("."):
        value = value and value.get(name)
    return value


def _names(items: list[Any]) -> str:
    return ", ".join(item.name for item in items[:8]) + (", …" if len(items) > 8 else "")


def _or_rename(key: str) -> str:
    renamed = {"features": "feature", "tasks": "task", "tables": "table"}.get(key.split(".")[0])
    return f", or give the {renamed} another name" if renamed else ""


def model_difference(there: RunConfig, here: RunConfig) -> str:
    """Names the first key of the model section whose change shows in a tensor's shape."""
    for key in _SHAPING:
        one, two = _at(there, key), _at(here, key)
        if one != two:
            return f"model.{key} is {one!r} there and {two!r} here"
    return ""


def differences(there: RunConfig, here: RunConfig) -> Iterator[_Difference]:
    """Lists settings by which weights would mean something else than in the earlier run.

    Features may come and go, and so may tables. `columns` of a cross must stay, since a renamed
    column cannot be told from another one.
    """
    for section, settings_of in (("features", _of_features), ("tables", _of_tables)):
        before, now = settings_of(there), settings_of(here)
        for name in [name for name in now if name in before]:
            one, two = before[name], now[name]
            for key in two:  # the kind is first
                if one.get(key) != two[key]:
                    yield f"{section}.{name}.{key}", one.get(key), two[key]
    old_tables = _tables(there)
    for table, settings in _tables(here).items():
        before = old_tables.get(table, settings)
        for key, value in settings.items():
            if key == "dim" and key not in before:
                continue  # vectors gave it there, and the tables themselves show it
            if value != before.get(key):
                yield f"{key} of table {table!r}", before.get(key), value


def named_pairs(
    there: RunConfig, here: RunConfig, section: Callable[[RunConfig], list[Any]]
) -> list[tuple[Any, Any]]:
    """Pairs the items of a section that both configs have, by name."""
    before = {item.name: item for item in section(there)}
    return [(before[item.name], item) for item in section(here) if item.name in before]


def with_kept_targets(config: RunConfig, there: RunConfig) -> RunConfig:
    """Returns the config with the targets that the towers of a run have learnt.

    Args:
        config: Of a run that goes on; a `target` that it states itself stays.
        there: Of the run that it goes on with.
    """
    kept = {task.name: task.meaning["target"] for task in there.tasks if "target" in task.meaning}
    tasks = [
        task.model_copy(update={"target": kept[task.name]})
        if task.name in kept and "target" in task.meaning and "target" not in task.model_fields_set
        else task
        for task in config.tasks
    ]
    return config.model_copy(update={"tasks": tasks})


def _of_features(config: RunConfig) -> dict[str, dict[str, object]]:
    return {codec.feature.name: codec.meaning() for codec in codecs_of(config)}


def _of_tables(config: RunConfig) -> dict[str, dict[str, object]]:
    """Returns the settings under `tables`."""
    return {table.name: table.model_dump(exclude=set(IdCodec.free)) for table in config.tables}


def _tables(config: RunConfig) -> dict[str, dict[str, object]]:
    """Returns every table's meaning of rows, and its width, with defaults filled in."""
    meanings = (codec.table_meanings().items() for codec in codecs_of(config))
    return dict(chain.from_iterable(meanings))

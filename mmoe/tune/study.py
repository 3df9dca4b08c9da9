"""The search space, and Optuna's side of a search: what is tried next, what was found so far.

Its journal is a file of JSON lines in the search's folder; nothing is pickled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from mmoe.config import RunConfig, config_from_dict
from mmoe.metrics import higher_is_better

_WIDER = (0.25, 0.5, 1, 2)
_RATES = (0.125, 0.25, 0.5, 1, 2, 4)
# Key → what its own value is multiplied with
_TIMES: Mapping[str, Sequence[float]] = {
    "training.optimizer.learning_rate": _RATES,
    "training.embedding_optimizer.learning_rate": _RATES,
    "training.batch_size": (0.25, 0.5, 1, 2, 4),
    "model.embedding_dim": (0.25, 0.5, 1, 2, 4),
    "model.expert.hidden": _WIDER,
    "model.tower.hidden": _WIDER,
    "model.num_experts": (0.5, 1, 2),
    "model.shared_experts": (0.5, 1, 2),
    "model.task_experts": (0.5, 1, 2),
}
# Key → values beside its own. The decay of adam is an L2 penalty, that of adamw shrinks weights
# by itself, and needs far larger numbers
_DECAYS: Mapping[str, Sequence[float]] = {
    "adam": (0, 1e-6, 1e-5, 1e-4, 1e-3),
    "adamw": (0, 1e-3, 1e-2, 0.1, 0.5),
}
_LISTED: Mapping[str, Sequence[Any]] = {
    "model.wide": (False, True),
    "model.interaction": ({"kind": "none"}, {"kind": "fm"}, {"kind": "dcn_v2"}),
    "model.input_dropout": (0, 0.05, 0.1, 0.2),
    "model.expert.dropout": (0, 0.1, 0.2, 0.3, 0.5),
    "model.tower.dropout": (0, 0.1, 0.3),
}
# From so many experts on, gates that pick so many of them are tried
_LARGE_POOL, _PICKED = 16, 8
_GATE = "model.gate"
_SMALLEST: Mapping[str, int] = {"training.batch_size": 16, "model.embedding_dim": 4}
# An epoch should have so many steps, however large batches get
_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One key and the values that are tried, in order.

    Attributes:
        key: Of the config, with dots.
        values: The config's own is among them.
        own: Its place.
    """

    key: str
    values: tuple[Any, ...]
    own: int

    @property
    def name(self) -> str:
        """Its name in tables: the key without its section."""
        return self.key.partition(".")[2]


def search_space(config: RunConfig, train_rows: int | None = None) -> list[Dimension]:
    """Lists the keys to search over, with values that the config can have.

    Args:
        config: Every dimension goes around its values.
        train_rows: Batches are kept small enough for some steps an epoch; None: as many as may be.

    Example:
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> space = search_space(config, 100_000)
        >>> [dimension.values for dimension in space if dimension.name == "batch_size"]
        [(1024, 2048, 4096, 8192)]
        >>> any(dimension.name == "embedding_dim" for dimension in space)  # there is no table
        False
    """
    raw = config.model_dump(mode="json")
    dimensions = []
    for key in _keys(config):
        own = _get(raw, key)
        values = [value for value in _values(config, key, own, train_rows) if value != own]
        fitting = [value for value in values if _fits(config, key, value)]
        if fitting:
            together = sorted([own, *fitting], key=_order)
            place = together.index(own)
            dimensions.append(Dimension(key=key, values=tuple(together), own=place))
    return dimensions


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Returns the config with other values of some keys.

    Raises:
        ValueError: They do not go together.
    """
    raw = config.model_dump(mode="json")
    for key, value in values.items():
        *sections, last = key.split(".")
        section = raw
        for name in sections:
            section = section[name]
        section[last] = value
    return config_from_dict(raw, "tune")


def _keys(config: RunConfig) -> list[str]:
    """Keys that the config has and that change its model."""
    raw = config.model_dump(mode="json")
    unused: set[str] = set()
    if raw["model"].get("experts") is not None:
        unused |= {"model.num_experts", "model.expert.hidden", "model.expert.dropout"}
    tables = {name for feature in config.features for name in feature.table_names}
    if not tables:
        unused |= {key for key in _TIMES if "embedding" in key}
    keys = [*_TIMES, "training.optimizer.weight_decay", *_LISTED]
    if config.model.has_one_pool and config.model.visible_experts >= _LARGE_POOL:
        keys.append(_GATE)
    return [key for key in keys if key not in unused and _get(raw, key) not in (None, [])]


def _values(config: RunConfig, key: str, own: Any, train_rows: int | None) -> list[Any]:
    if key == "training.optimizer.weight_decay":
        return list(_DECAYS.get(config.training.optimizer.kind, (0,)))
    if key == _GATE:
        sparse = {"kind": "top_k", "select": "joint", "shared_k": _PICKED, "private_k": 0}
        both = [{"kind": "softmax"}, {**sparse, "shared_logits": True}]
        return [value for value in both if value["kind"] != own["kind"]]
    if key in _LISTED:
        return [value for value in _LISTED[key] if _order(value) != _order(own)]
    values = [_times(own, factor, _SMALLEST.get(key, 1)) for factor in _TIMES[key]]
    if key == "model.embedding_dim":
        values = [max(4, value // 4 * 4) for value in values]
    if key == "training.batch_size" and train_rows is not None:
        values = [value for value in values if value * _STEPS <= train_rows]
    return [value for n, value in enumerate(values) if value not in values[:n]]


def _order(value: Any) -> Any:
    """Sort key of a value; of a section its kind."""
    return value["kind"] if isinstance(value, dict) else value


def _times(own: Any, factor: float, smallest: int) -> Any:
    if isinstance(own, list):
        return [max(4, round(width * factor)) for width in own]
    if isinstance(own, int):
        return max(smallest, round(own * factor))
    return float(f"{own * factor:.6g}")


def _fits(config: RunConfig, key: str, value: Any) -> bool:
    try:
        with_values(config, {key: value})
    except ValueError:
        return False
    return True


def _get(raw: Mapping[str, Any], key: str) -> Any:
    """The value of a key; None where the config has none."""
    found: Any = raw
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


_JOURNAL = "trials.journal"
_NAME, _OUTCOME, _SPACE = "mmoe", "outcome", "space"
# Of the trials that have come as far, about one in so many goes on: after a ninth of the epochs
# (one at least), after three times as many, and so on
_REDUCTION = 3
# Trials before TPE has something to go by: the config itself, then some that change a few keys. A
# config is no random point: with every key drawn anew nearly all of them would be worse
_FIRST_TRIALS, _SHARE_CHANGED = 8, 0.3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """End of a trial.

    Attributes:
        state: finished, pruned, out of time or diverged.
        value: The best monitored value of its epochs; None: there is none.
        epochs: That it trained.
        seconds: That it took.
        settings: Key → value, of every key that was searched over.
    """

    state: str
    value: float | None
    epochs: int
    seconds: float
    settings: Mapping[str, Any]


class Study:
    """The trials of a search, on disk as they come.

    Args:
        folder: Of the search.
        space: What is searched over.
        config: That is tuned.

    Raises:
        ValueError: Optuna is not installed, or the journal is damaged or of another search space.
    """

    def __init__(self, folder: Path, space: Sequence[Dimension], config: RunConfig) -> None:
        self.space, training, seed = space, config.training, config.seed
        optuna = self.optuna = import_optuna()
        path = folder / _JOURNAL
        try:
            journal = import_module("optuna.storages.journal")
            storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
            self.study = optuna.create_study(
                storage=storage,
                study_name=_NAME,
                direction="maximize" if higher_is_better(training.monitor) else "minimize",
                load_if_exists=True,
            )
            trials = self.study.get_trials(deepcopy=False)
        except (ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{path}: is damaged ({reason}); choose another --out, or remove it to search anew"
            ) from None
        self._check_space(path)
        self.study.sampler = optuna.samplers.TPESampler(
            seed=seed + len(trials), n_startup_trials=_FIRST_TRIALS
        )
        self.study.pruner = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=max(1, training.epochs // _REDUCTION**2), reduction_factor=_REDUCTION
        )
        self._again = self._interrupted(trials)
        self._first = _first_trials(space, seed)

    def outcomes(self) -> list[Outcome]:
        """Lists how trials ended, in order; what was interrupted is not among them."""
        found = [
            trial.user_attrs[_OUTCOME]
            for trial in self.study.get_trials(deepcopy=False)
            if _OUTCOME in trial.user_attrs and trial.state.is_finished()
        ]
        return [Outcome(**each) for each in found]

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """Returns the next trial, and the value of each key in it."""
        done = len(self.outcomes())
        if self._again:
            self.study.enqueue_trial(self._again.pop(0))
        elif done < len(self._first):
            self.study.enqueue_trial(self._first[done])
        trial = self.study.ask()
        return trial, {
            each.key: each.values[trial.suggest_int(each.name, 0, len(each.values) - 1)]
            for each in self.space
        }

    def tell(self, trial: Any, outcome: Outcome) -> None:
        """Writes down how a trial ended."""
        trial.set_user_attr(_OUTCOME, asdict(outcome))
        states = self.optuna.trial.TrialState
        if outcome.state == "finished" and outcome.value is not None:
            self.study.tell(trial, outcome.value)
        else:  # Optuna goes by the last value that was reported; without one it was of no use
            self.study.tell(trial, state=states.PRUNED)

    def give_back(self, trial: Any) -> None:
        """Leaves a trial for the next resume, as if it had been killed."""
        self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)

    def _interrupted(self, trials: Sequence[Any]) -> list[dict[str, int]]:
        """The settings to be tried again."""
        states = self.optuna.trial.TrialState
        done = {_as_key(t.params) for t in trials if _OUTCOME in t.user_attrs}
        again: dict[Any, dict[str, int]] = {}
        for trial in trials:
            if trial.state == states.RUNNING:
                self.study.tell(trial.number, state=states.FAIL)
            elif trial.state != states.FAIL:
                continue
            if len(trial.params) == len(self.space) and _as_key(trial.params) not in done:
                again[_as_key(trial.params)] = dict(trial.params)
        return list(again.values())

    def _check_space(self, path: Path) -> None:
        now = [[each.key, list(each.values)] for each in self.space]
        before = self.study.user_attrs.get(_SPACE)
        if before is None:
            self.study.set_user_attr(_SPACE, now)
        elif before != now:
            raise ValueError(
                f"{path}: was begun by another version of mmoe, which searches over other values; "
                "choose another --out"
            )


def _as_key(params: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(params.items()))


def _first_trials(space: Sequence[Dimension], seed: int) -> list[dict[str, int]]:
    """The config itself, and others near it: name → place among the values."""
    draw, own = Random(seed), {each.name: each.own for each in space}
    trials = [own]
    while len(trials) < _FIRST_TRIALS:
        trial = dict(own)
        certain = draw.choice(space)
        for each in space:
            if each is certain or draw.random() < _SHARE_CHANGED:
                others = [place for place in range(len(each.values)) if place != each.own]
                trial[each.name] = draw.choice(others)
        trials.append(trial)
    return trials


def import_optuna() -> Any:
    """Returns the package.

    Raises:
        ValueError: It is not installed.
    """
    try:
        optuna = import_module("optuna")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ValueError(
            "mmoe tune needs Optuna, which is not installed; pip install 'mmoe[tune]', or in a "
            "clone: pip install optuna"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna

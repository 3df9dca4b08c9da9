"""Optuna's side of a search: what is tried next, which trials end early, what was found so far.

Its journal is a file of JSON lines in the search's folder; nothing is pickled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from mmoe.tune.space import Dimension

JOURNAL = "trials.journal"
_NAME, _OUTCOME, _SPACE = "mmoe", "outcome", "space"
# Of the trials that have come as far, about one in so many goes on: after a ninth of the epochs
# (one at least), after three times as many, and so on
_REDUCTION = 3
# Trials before TPE has something to go by: the config itself, then some that change a few keys. A
# config is no random point: with every key drawn anew nearly all of them would be worse
_FIRST_TRIALS, _SHARE_CHANGED = 8, 0.3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended.

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
        seed: Of what is drawn.
        epochs: Of a trial that is not cut short.
        higher_is_better: Of the monitored metric.

    Raises:
        ValueError: Optuna is not installed, or the journal is damaged or of another search space.
    """

    def __init__(
        self,
        folder: Path,
        space: Sequence[Dimension],
        seed: int,
        *,
        epochs: int,
        higher_is_better: bool,
    ) -> None:
        self.space, self.higher_is_better = space, higher_is_better
        optuna = self.optuna = import_optuna()
        path = folder / JOURNAL
        try:
            storage = _storage(optuna, path)
            self.study = optuna.create_study(
                storage=storage,
                study_name=_NAME,
                direction="maximize" if higher_is_better else "minimize",
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
            min_resource=max(1, epochs // _REDUCTION**2), reduction_factor=_REDUCTION
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
        """What is to be tried again."""
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


def _storage(optuna: Any, path: Path) -> Any:
    journal = import_module("optuna.storages.journal")
    return optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))

"""What a race is, and a run through several of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.racing.results import Result

Bench = TypeVar("Bench")


class NothingToMeasure(Exception):
    """Why a key has no value here, which is no failure (a package or a feature is not there)."""


@dataclass(frozen=True)
class Race(Generic[Bench]):
    """One race and the keys that come out of it."""

    keys: tuple[str, ...]
    run: Callable[[Bench], list[Result]]


def run_races(
    races: Sequence[Race[Bench]], bench: Bench, wanted: Collection[str], say: Callable[[str], None]
) -> tuple[list[Result], dict[str, str], dict[str, str]]:
    """Runs the races that give a wanted key.

    Args:
        races: All there are.
        bench: What each of them gets.
        wanted: Keys.
        say: Told of progress.

    Returns:
        Results, and why other keys have none: failed, skipped.
    """
    races = [race for race in races if set(race.keys) & set(wanted)]
    results: list[Result] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for number, race in enumerate(races, start=1):
        say(f"{number}/{len(races)} {', '.join(race.keys)}")
        try:
            results += race.run(bench)
        except NothingToMeasure as reason:
            say(f"skipped: {reason}")
            skipped |= dict.fromkeys(race.keys, str(reason))
        # What one race cannot do must not cost all the others.
        except (ValueError, RuntimeError, OSError) as error:
            say(f"FAILED: {error}")
            failed |= dict.fromkeys(race.keys, str(error))
    return results, failed, skipped

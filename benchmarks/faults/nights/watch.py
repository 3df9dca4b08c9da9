"""A month of nights: a run is trained, then every night is scored, with faults before some."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.faults.inputs.in_process import Ended, run_in_process
from benchmarks.faults.nights.month import NIGHTS, TRAINING_DAYS, Shop, night_config
from benchmarks.faults.nights.upstream import FAULTS, Upstream
from benchmarks.faults.scored_kills import contents, first_difference

_SECONDS = 300.0
# Of rows beyond those of any training day: what a user who looked at two weeks would allow
_FEWER, _MORE = 0.8, 1.25
# What no reader takes for scores: what waits, and what was put aside
_ASIDE = ("_staging/", "_rejected/")


@dataclass(frozen=True)
class Night:
    """One night that was scored.

    Attributes:
        number: Of the day.
        fault: What was broken; None: nothing.
        code: The exit code.
        said: Why.
        changed: What of the folder is other than it was and may not be, or None.
    """

    number: int
    fault: str | None
    code: int
    said: str
    changed: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether nothing was published: rejected, or refused as no rows at all (code 2)."""
        return self.code in (2, 3) and self.changed is None


@dataclass(frozen=True)
class Watch:
    """A folder that the nights are scored into.

    Attributes:
        folder: Of everything.
        shop: Whose log it is.
        expectations: The same ones every night.
    """

    folder: Path
    shop: Shop
    expectations: tuple[str, ...]

    @property
    def out(self) -> Path:
        """The scores."""
        return self.folder / "scored"

    def score(self, number: int, rows: pa.Table) -> Ended:
        """Scores a night in the place of the one before."""
        log = self.folder / "night.parquet"
        pq.write_table(rows.drop_columns(["click", "buy"]), log, row_group_size=2_000)
        arguments = [
            "score", str(self.folder / "run"), "--input", str(log), "--output", str(self.out),
            "--keep", "user", "item", "--mode", "overwrite", "--quiet",
            "--expect", *self.expectations,
        ]  # fmt: skip
        return run_in_process(arguments, _SECONDS)


def watch_nights(folder: Path, seed: int, say: Callable[[str], None]) -> list[Night]:
    """Scores twenty healthy nights; before twelve of them, drawn, a broken one is tried.

    Args:
        folder: To make.
        seed: Of the log, and of which fault comes in which night.
        say: Told what each night came to.
    """
    folder.mkdir()
    watch = _trained(folder, Shop(seed))
    draw = random.Random(f"nights {seed}")
    days = range(TRAINING_DAYS, TRAINING_DAYS + NIGHTS)
    # Not on the first, before which there is no night to repeat, or to leave as it was
    broken = dict(zip(sorted(draw.sample(days[1:], len(FAULTS))), _shuffled(draw), strict=True))
    nights: list[Night] = []
    for number in days:
        if number in broken:
            nights.append(_broken_night(watch, number, broken[number], draw))
            say(_told(nights[-1]))
        ended = watch.score(number, watch.shop.day(number))
        nights.append(Night(number, None, ended.code, ended.stderr.strip()))
        say(_told(nights[-1]))
    return nights


def _trained(folder: Path, shop: Shop) -> Watch:
    days = [shop.day(number) for number in range(TRAINING_DAYS)]
    pq.write_table(pa.concat_tables(days), folder / "train.parquet")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(night_config(str(folder / "train.parquet"))), "utf-8")
    run = folder / "run"
    ended = run_in_process(["train", str(config), "--out", str(run), "--quiet"], _SECONDS)
    if ended.code != 0:
        raise RuntimeError(f"training failed: {ended.stderr.strip()}")
    rows = [day.num_rows for day in days]
    low, high = int(min(rows) * _FEWER), int(max(rows) * _MORE)
    # The last one because every night is a whole day: hours are then as they were in training
    by_hand = (f"rows in [{low}, {high}]", "repeated < 0.5", "psi(time__hour) < 0.25")
    return Watch(folder, shop, ("usual", *by_hand))


def _shuffled(draw: random.Random) -> list[Callable[[Upstream], tuple[str, pa.Table]]]:
    return draw.sample(FAULTS, len(FAULTS))


def _broken_night(
    watch: Watch,
    number: int,
    fault: Callable[[Upstream], tuple[str, pa.Table]],
    draw: random.Random,
) -> Night:
    before = contents(watch.out)
    what, rows = fault(Upstream(watch.shop, number, draw))
    ended = watch.score(number, rows)
    after = contents(watch.out)
    changed = first_difference(_published(before), _published(after))
    return Night(number, f"{fault.__name__} ({what})", ended.code, ended.stderr.strip(), changed)


def _published(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith(_ASIDE)}


def _told(night: Night) -> str:
    name = f"night {night.number - TRAINING_DAYS + 1}, {night.fault or 'healthy'}"
    wrong = "" if night.changed is None else f", but {night.changed}"
    return f"{name}: {night.code}{wrong} {night.said}".rstrip()

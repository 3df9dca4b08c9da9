"""Which run a new one continues, as the user asked for it, and what came of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config.json_files import Stored as StoredFile
from mmoe.datasets.files.data_file import is_address
from mmoe.mixture.resize_experts import NewExperts
from mmoe.run.atomic_files import read_json
from mmoe.run.directory import RunDirectory

_SHOWN = 8  # names in one line; beyond that their number


class _Recorded(StoredFile):
    """What is needed of warm_start.json."""

    run: str
    new_experts: NewExperts


@dataclass(frozen=True)
class WarmStart:
    """Which run to continue: begin with its best checkpoint.

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
        text = str(self.run)
        return text if is_address(text) else str(Path(self.run).absolute())

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
        content = read_json(run.warm_start_file, shape=_Recorded)
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
    """What a warm start kept and changed, a phrase each: printed, and warm_start.json.

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
        parts = (
            ("kept", self.kept),
            ("grown", self.grown),
            ("initialised", self.initialised),
            ("dropped", self.dropped),
            ("not carried over", _first(self.not_carried)),
        )
        lines = [f"  {name}: {'; '.join(phrases)}" for name, phrases in parts if phrases]
        return [f"warm start from {self.run}, step {self.step}", *lines]

    def as_dict(self) -> dict[str, Any]:
        """Returns the content of warm_start.json."""
        return asdict(self)


def _first(names: list[str]) -> list[str]:
    """The names for one line; warm_start.json has them all."""
    more = len(names) - _SHOWN
    return names if more <= 0 else [*names[:_SHOWN], f"and {more} more tensors"]


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

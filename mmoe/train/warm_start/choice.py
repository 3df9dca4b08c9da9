"""Which run a new one continues, as the user asked for it or as the run directory recalls it."""

from dataclasses import dataclass
from pathlib import Path

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config.json_files import Stored
from mmoe.datasets.files.data_file import is_address
from mmoe.run.atomic_files import read_json
from mmoe.run.directory import RunDirectory
from mmoe.train.warm_start.places import NewExperts


class _Recorded(Stored):
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

"""What an estimator keeps with its run: estimator.json, and the run's files in a pickle."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from mmoe.config.json_files import Stored, read_model
from mmoe.datasets.rows.projection import required_columns
from mmoe.integrations.label_values import LabelValues
from mmoe.run import RunDirectory
from mmoe.run.atomic_files import write_json

_FILE = "estimator.json"


class StoredFit(Stored):
    """What the config of a run does not say of what it was fitted to.

    Attributes:
        labels: Task → the two values of its label.
        columns: Of X.
        named: They have names of their own; an array's have not.
        mixed: Those of numbers and texts, which were read as text.
        weights_before: Task → its weight column beside `sample_weight`; empty without that.
    """

    labels: dict[str, LabelValues]
    columns: list[str]
    named: bool
    mixed: list[str] = Field(default_factory=list)
    weights_before: dict[str, str | None] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes the file into the run's folder."""
        write_json(folder / _FILE, self.model_dump())

    @classmethod
    def read(cls, run: RunDirectory) -> "StoredFit":
        """Reads the file; of a run that `mmoe train` made, what the config says.

        Raises:
            ValueError: It is damaged.
        """
        if not (run.path / _FILE).is_file():
            columns = required_columns(run.config(), labels=False)
            return cls(labels={}, columns=columns, named=True)
        return read_model(run.path / _FILE, cls, "train again")


def pack_files(folder: Path) -> dict[str, bytes]:
    """Reads all files of a folder: their paths in it, and what they hold."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes such files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

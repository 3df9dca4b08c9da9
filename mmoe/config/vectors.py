"""`TableVectors`: vectors from elsewhere that a table begins with."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mmoe.config.base import Strict

if TYPE_CHECKING:
    from mmoe.config.run import RunConfig
    from mmoe.config.tables import VectorTable


class TableVectors(Strict):
    """A file of vectors by id, with which rows of a table begin, to stay so or to be trained."""

    path: str = Field(
        min_length=1,
        description="Parquet (or what else data.path takes) with a column of ids and one of lists "
        "of numbers, or .safetensors; a file, folder, glob or fsspec address",
    )
    id: str | None = Field(
        default=None,
        description="column of ids; of safetensors a tensor of whole numbers [N], without which "
        "a row's number, from 0, is its id",
    )
    vector: str = Field(
        default="vector", description="column of lists of numbers; of safetensors a tensor [N, dim]"
    )
    frozen: bool = Field(
        default=False,
        description="rows are never moved, and have no optimizer state; else they are trained as "
        "others, and the vectors are where they begin",
    )
    scale: Literal["standard", "unit", "keep"] = Field(
        default="standard",
        description="standard: mean 0 and variance 1 / √dim of each number over the file, as a "
        "feature of kind vector has them; unit: length 1; keep: as they are",
    )
    ids: Literal["all", "seen"] | None = Field(
        default=None,
        description="all: ids of the file that training has not seen have rows too, for rows to "
        "come; seen: they share that of unseen ids. Default: all where frozen, else seen",
    )
    least_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="of the ids of training, that have to have a vector; fewer are an error",
    )

    @property
    def takes_all_ids(self) -> bool:
        """Whether ids that are in the file alone have rows."""
        return self.frozen if self.ids is None else self.ids == "all"


def check_vectors(config: "RunConfig") -> None:
    """Refuses vectors for rows that stand for no one id, and keys without effect beside them.

    Raises:
        ValueError: Names the table or feature, and the way out.
    """
    for where, item, vectors in _with_vectors(config):
        encoding = item.table_encoding.encoding
        if encoding != "vocabulary":
            raise ValueError(
                f"{where} has vectors and encoding {encoding}, whose rows are shared or change "
                "hands, so that no vector stays one's own; say encoding: vocabulary, or remove "
                "vectors"
            )
        if vectors.frozen and item.learning_rate is not None:
            raise ValueError(
                f"{where}: learning_rate is {item.learning_rate}, but vectors.frozen is true, so "
                "that its rows are never moved; remove learning_rate, or say frozen: false"
            )
    begun = {table.name for table in config.tables if table.vectors is not None}
    for feature in config.features:
        if feature.id_columns > 1 and begun.intersection(feature.table_names):
            raise ValueError(
                f"features.{feature.name} is a {feature.kind} of {feature.id_columns} columns and "
                f"uses the table {feature.table_names[0]!r}, but vectors are those of the ids of "
                "one column; give it another table"
            )


def with_vector_paths(config: "RunConfig", change: Callable[[str], str]) -> "RunConfig":
    """Returns the config with another path for each file of vectors."""
    update = {}
    for section in ("tables", "features"):
        items = list(getattr(config, section))
        for n, item in enumerate(items):
            vectors = getattr(item, "vectors", None)
            if isinstance(vectors, TableVectors):
                vectors = vectors.model_copy(update={"path": change(vectors.path)})
                items[n] = item.model_copy(update={"vectors": vectors})
                update[section] = items
    return config.model_copy(update=update) if update else config


def _with_vectors(
    config: "RunConfig",
) -> "Iterator[tuple[str, VectorTable, TableVectors]]":
    """What has vectors, and where it stands."""
    for section in ("tables", "features"):
        for item in getattr(config, section):
            vectors = getattr(item, "vectors", None)
            if isinstance(vectors, TableVectors):
                yield f"{section}.{item.name}", item, vectors

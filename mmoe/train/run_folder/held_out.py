"""The rows that a run is evaluated on: its own test split, or others."""

from pathlib import Path

import numpy as np

from mmoe.config import RunConfig
from mmoe.config.data import moment_of
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.fingerprint import (
    DataPrint,
    print_data,
    print_files,
    print_splits,
    print_tables,
)
from mmoe.datasets.labels.masked import masked_counts, said_of_most
from mmoe.datasets.labels.maturity import Maturity, chunks_of, maturity_of, moment_text
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.rows.held_splits import HeldSplits
from mmoe.datasets.rows.sources import HeldOut, at_versions, generated_splits, load_test
from mmoe.datasets.stream import every_row, open_stream, wants_stream
from mmoe.parallel import from_first
from mmoe.run.console import Reporter
from mmoe.run.directory import RunDirectory
from mmoe.train.run_folder.data import RunData, RunMaturity


def is_own_split(config: RunConfig, data: str | Path | TableLike | None) -> bool:
    """Returns whether the rows are the run's own test split.

    Of a bundled source `data` is the folder of its raw files, which are split again.
    """
    return data is None or (config.data.source != "files" and not holds_rows(data))


def held_out_rows(
    run: RunDirectory,
    config: RunConfig,
    encoder: FeatureEncoder,
    data: str | Path | TableLike | None,
    as_of: str | None,
) -> tuple[BatchSource, dict[str, np.ndarray] | None, DataPrint, Maturity | None]:
    """Returns the rows to evaluate on; streamed where those of training were.

    Args:
        run: Its folder.
        config: Of the run.
        encoder: Likewise.
        data: As for `evaluate_run`.
        as_of: Likewise.

    Returns:
        The rows, the oracle's probabilities where there are any, what the rows came from, and when
        their labels were collected where that matters.

    Raises:
        ValueError: The rows cannot be read, or their labels have no times.
    """
    if holds_rows(data):
        rows, held_out, maturity = _all_rows(config, encoder, data, as_of)
        return rows, None, print_splits({"all": held_out.table}), maturity
    if not is_own_split(config, data):
        assert data is not None, "it would be the own split"
        seen = from_first(lambda: print_files({"all": data}))
        if wants_stream(config, data):
            rows, maturity = every_row(config, encoder, data, as_of)
            return rows, None, seen, maturity
        rows, _, maturity = _all_rows(config, encoder, data, as_of)
        return rows, None, seen, maturity
    if data is None and (remembered := RunData.read(run)) is not None:
        config = at_versions(config, remembered.data.versions)
    stored = RunMaturity.read(run, config)
    maturity = None if stored is None else stored.maturity()
    splits = generated_splits(config, data)
    if splits is not None:
        rows = HeldSplits(config, splits, maturity).rows("test", encoder)
        return rows, splits.oracle, print_tables(splits), maturity
    seen = from_first(lambda: print_data(config, data=data))
    if wants_stream(config, data):
        opened = open_stream(config).maturing(maturity)
        return opened.rows("test", encoder), None, seen, maturity
    held_out = load_test(config, data)
    rows = BatchSource.of_table(held_out.table, encoder, held_out.origin, config, maturity=maturity)
    return rows, held_out.oracle, seen, maturity


def _all_rows(
    config: RunConfig,
    encoder: FeatureEncoder,
    data: str | Path | TableLike | None,
    as_of: str | None,
) -> tuple[BatchSource, HeldOut, Maturity | None]:
    """Rows of other data than the run's, whose labels were collected at another time."""
    held_out = load_test(config, data)
    config = config.model_copy(update={"data": config.data.unsplit()})
    tables = chunks_of(held_out.table, held_out.origin)
    maturity = maturity_of(config, tables, as_of=as_of)
    rows = BatchSource.of_table(held_out.table, encoder, held_out.origin, config, maturity=maturity)
    return rows, held_out, maturity


def check_as_of(run: RunDirectory, config: RunConfig, as_of: str | None, *, own: bool) -> None:
    """Refuses `as_of` where it has no effect, or is no datetime.

    Raises:
        ValueError: It is so.
    """
    if as_of is None:
        return
    if not config.delayed_tasks:
        raise ValueError(
            f"{run.path}: --as-of: no task of this run has matures_after, so every label counts "
            "already; leave it out"
        )
    if own:
        raise ValueError(
            f"{run.path}: --as-of: is for rows of --data; the run's own labels were collected when "
            "maturity.json says; leave it out"
        )
    try:
        moment_of(as_of)
    except ValueError:
        raise ValueError(
            f"--as-of: expected a datetime such as 2024-01-31T00:00, got {as_of!r}"
        ) from None


def say_masked(
    config: RunConfig, labels: EncodedLabels, maturity: Maturity | None, reporter: Reporter
) -> None:
    """Says how many labels are masked, since their rows are young.

    Raises:
        ValueError: All of every task are.
    """
    if maturity is None:
        return
    counts, as_of = masked_counts(config, labels), moment_text(maturity.as_of)
    for task in config.delayed_tasks:
        mine = counts[task.name]
        if mine["masked"] and not labels.observed_NT.any():
            raise ValueError(
                f"all {mine['masked']} labels of task {task.name!r} are of rows younger than "
                f"{task.matures_after} (matures_after) as of {as_of}, so there is nothing to "
                "evaluate on; give older rows, or --as-of where labels were collected later"
            )
        if mine["masked"]:
            reporter.say(
                f"{task.name}: {mine['masked']:,} of {mine['masked'] + mine['left']:,} labels are "
                f"masked, of rows younger than {task.matures_after} as of {as_of}"
            )
        line = said_of_most(task, mine, "these rows")
        if line is not None:
            reporter.say(line)

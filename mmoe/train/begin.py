"""Beginning of a run: a fresh model and optimizer, and what comes over from elsewhere."""

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch

from mmoe.checkpoint import StoredTensors
from mmoe.checkpoint.random_state import RandomState
from mmoe.checkpoint.weights import SizeLimit, check_tables
from mmoe.config import RunConfig, TableVectors
from mmoe.datasets import FeatureEncoder
from mmoe.datasets.features.id_map import FIRST_KNOWN
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.table_vectors import vector_chunks
from mmoe.metrics import kind_of
from mmoe.models import Ranker
from mmoe.models.build import build_ranker
from mmoe.parallel import Sharded, count_loads, rank, spread_layout
from mmoe.parallel.sharded_tensors import put_rows
from mmoe.run import Reporter
from mmoe.tasks.kinds import objective_of
from mmoe.train.fit_wide import fit_wide, keep_linear_models
from mmoe.train.frozen import Frozen
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.prepare import PreparedData
from mmoe.train.run_folder.claim import same_warm_start_on_all_ranks
from mmoe.train.state import Position, TrainingState
from mmoe.train.warm_start import EarlierRun, WarmStart, WarmStartReport, transfer


def training_state(
    config: RunConfig,
    prepared: PreparedData,
    device: torch.device | None = None,
    *,
    stored: StoredTensors | None = None,
) -> TrainingState:
    """Builds the model of a run, its optimizer and its average, freshly initialised.

    Args:
        config: Of the run.
        prepared: Knows its encoder.
        device: Default: the CPU.
        stored: The checkpoint's model by which the weights are to be replaced: no file that the
            config names is read then, and nothing larger is made.

    Raises:
        ValueError: Features, tables and model do not go together, or not with what is stored.
    """
    draws = RandomState(device or torch.device("cpu"), seed=config.seed)
    built, limit = config, nullcontext()
    if stored is not None:
        built, limit = config.without_weight_files(), SizeLimit.of(stored)
        check_tables(prepared.encoder.tables, stored)
    with draws.drawing(), limit:
        ranker = build_ranker(built, prepared.encoder, device)
    _start_at_base_rates(ranker, config, prepared.encoder)
    frozen = Frozen.of(ranker, config, prepared.encoder.tables)
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    average = build_average(ranker.network, config.training.ema_decay)
    if rank() > 0:
        draws.seed(config.seed + rank())  # dropout and noise of its own rows
    if config.parallel.rebalance == "epoch":
        count_loads(ranker.network)
    layout = spread_layout(ranker.network)
    return TrainingState(ranker, optimizer, average, Position(), layout, frozen, draws)


def _start_at_base_rates(ranker: Ranker, config: RunConfig, encoder: FeatureEncoder) -> None:
    """Gives each tower the bias with which it says the same of every row, and is right on average.

    Towers of one's own kind stay as they are, unless they have a method `start_at`. A wide part
    has the base rate of the tasks that it is fitted to.
    """
    labels = encoder.labels
    for t, task in enumerate(config.trained_tasks):
        of_wide = config.model.wide and task.weight > 0 and kind_of(task.kind).linear_logit
        if task.name in labels and not of_wide:
            start = objective_of(task.kind).start(task, labels[task.name])
            ranker.network.towers.start_at(t, start)


def begin(
    earlier: EarlierRun | None,
    warm_start: WarmStart | None,
    state: TrainingState,
    config: RunConfig,
    prepared: PreparedData,
    reporter: Reporter,
) -> WarmStartReport | None:
    """Fills a new state: from an earlier run and files of vectors; a wide part is fitted.

    Args:
        earlier: The run of `warm_start`; None: there is none.
        warm_start: What to take of it.
        state: As `training_state` made it; changed in place.
        config: Of the new run.
        prepared: Its rows and encoder.
        reporter: Told of what came over.

    Returns:
        What a warm start kept; None: there was no earlier run.

    Raises:
        ValueError: The earlier run, or a file of vectors, does not fit.
    """
    report = None
    if earlier is not None and warm_start is not None:
        report = transfer(earlier, state, config, prepared.encoder, warm_start.new_experts)
        same_warm_start_on_all_ranks(report)  # before anything is written
    learnt = {} if earlier is None else earlier.rows()
    vectors = _start_from_vectors(state.ranker, prepared.encoder, learnt)
    for line in [*(report.lines() if report else ()), *vectors]:
        reporter.say(line)
    fit_wide(state.ranker.wide, config, prepared, reporter)
    keep_linear_models(state.ranker.wide, earlier, config, prepared.encoder, reporter)
    return report


_ROWS = 2**16  # of a table, that are written at once
_LARGEST_HALF = 65_504


def _start_from_vectors(
    ranker: Ranker, encoder: FeatureEncoder, learnt: Mapping[str, int]
) -> list[str]:
    """Puts vectors into the tables that begin with them, each file read piece by piece.

    Every rank reads the whole file, and writes the rows that it holds: the same on any number of
    ranks. A row without a vector keeps its first values, and where the table is frozen the mean of
    the vectors, for they are all that it will ever be. So do rows 0 and 1, of missing and unseen
    ids. Of the rows that an earlier run has `learnt`, trained ones stay as they are; frozen ones
    get today's vectors, and those that today's file has not keep theirs.
    """
    tables: Mapping[str, Sharded] = ranker.tables.table_shards()
    codecs = {
        codec.table: codec
        for codec in reversed(encoder.codecs)
        if isinstance(codec, IdCodec)
        and codec.vectors is not None
        and codec.table not in encoder.config.frozen_tables
    }
    return [
        _fill(codec, encoder, tables[name], learnt.get(name, 0))
        for name, codec in reversed(codecs.items())
    ]


def _fill(codec: IdCodec, encoder: FeatureEncoder, table: Sharded, learnt: int) -> str:
    vectors, used_by = codec.vectors, f"table {codec.table!r}"
    assert vectors is not None, "asked for of such tables alone"
    ids, scaling = codec.ids(encoder.rules), codec.scaling(encoder.rules)
    has_N = np.zeros(ids.num_rows, bool)
    for chunk in vector_chunks(vectors, used_by):
        if chunk.numbers_NL.shape[1] != len(scaling.mean):
            raise ValueError(
                f"{vectors.path}: its vectors have {chunk.numbers_NL.shape[1]} numbers, but "
                f"{len(scaling.mean)} in what table {codec.table!r} was fitted to; give the "
                "feature another name, or bring back what was there"
            )
        rows_N = ids.lookup(chunk.ids, f"{vectors.path}: ids of {used_by}").astype(np.int64)
        wanted_N = rows_N >= (FIRST_KNOWN if vectors.frozen else max(learnt, FIRST_KNOWN))
        values_RD = scaling.rows(chunk.numbers_NL[wanted_N], vectors)
        _check_half(values_RD, codec, vectors)
        put_rows(table, torch.from_numpy(rows_N[wanted_N]), torch.from_numpy(values_RD))
        has_N[rows_N[rows_N >= FIRST_KNOWN]] = True
    if vectors.frozen:
        without_R = np.flatnonzero(~has_N[learnt:]) + learnt
        other_D = torch.from_numpy(scaling.row_of_others(vectors))
        for some_R in torch.from_numpy(without_R).split(_ROWS):
            put_rows(table, some_R, other_D.expand(len(some_R), -1))
    return _said(codec.table, vectors, has_N, learnt)


def _check_half(values_RD: np.ndarray, codec: IdCodec, vectors: TableVectors) -> None:
    """Refuses what rows in fp16 cannot hold, on every rank alike."""
    precision = codec.config.parallel.placement(codec.table).precision
    if precision == "fp16" and np.abs(values_RD).max(initial=0.0) > _LARGEST_HALF:
        raise ValueError(
            f"{vectors.path}: holds numbers beyond {_LARGEST_HALF:,}, and the rows of table "
            f"{codec.table!r} are fp16; say vectors.scale: standard or unit, or precision: fp32"
        )


def _said(table: str, vectors: TableVectors, has_N: np.ndarray, learnt: int) -> str:
    known, total = int(has_N.sum()), len(has_N) - FIRST_KNOWN
    kept = min(max(learnt - FIRST_KNOWN, 0), total)
    goes_on = ""
    if kept:
        goes_on = f"; {kept:,} are those of the earlier run" + (
            ", with today's vectors" if vectors.frozen else ", as they were trained"
        )
    how = "frozen" if vectors.frozen else "and is trained"
    return (
        f"table {table} begins with {vectors.path}, {how}: {known:,} of {total:,} ids have a "
        f"vector{goes_on}"
    )

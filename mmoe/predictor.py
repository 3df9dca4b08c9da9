"""Predictions from a model, for one row or for many, from one thread or from many."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mmoe.checkpoint import CheckpointFolder, load_weights
from mmoe.checkpoint.plain_file import map_weights, weights_of_host
from mmoe.checkpoint.weights import SizeLimit, check_tables, trained_precisions
from mmoe.config import DeviceKind, RunConfig, ScoringPrecision, prediction_columns
from mmoe.config.tasks import further_columns
from mmoe.datasets import BatchSource, EncodedData, FeatureEncoder, required_columns
from mmoe.datasets.rows.frames import TableLike, as_rows, origin_of
from mmoe.embeddings import scoring_embeddings
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.models import GateRecord, NetworkOutput, Ranker
from mmoe.models.build import build_ranker
from mmoe.models.layout import resolve_device, to_score
from mmoe.models.network import LevelMixer
from mmoe.parallel import join_ranks, launched_ranks, spread_layout, world_size
from mmoe.parallel.launch.cores import bind_to_own_cores
from mmoe.process_settings import borrowed_generators
from mmoe.run import RunDirectory, Tracker
from mmoe.tasks import predictions_from_logits

# Matrix products treat the rows beyond the last whole tile of their kernel differently; with whole
# tiles a row's place in the batch plays no part. (Tried at 17 and 1000 rows, where 16 did as well.)
ROWS_PER_TILE = 64
# Rows of this library's own products do not feel each other. Not one alone: torch's sums take
# dimensions of one number for none
_OWN_TILE = 4

GateCallback = Callable[[Sequence[GateRecord], int], None]


class Predictor:
    """Scores rows in batches; evaluation, scoring and validation all go through it.

    On the CPU a row's score is the same bits whatever stands beside it, wherever in the file it
    stands, and however many rows are scored: every product there is this library's own, whose rows
    do not feel each other, nor the number of threads. Batches are as high as their rows need, in
    fours, up to `eval_batch_size`.

    Elsewhere (on a GPU, or where the operators are not built) a product of another height may take
    another kernel and round differently; so all batches have one height, and the last is padded.
    Grouped experts still have as many rows there as picked them: that number may change last bits
    of a score, and so may the number of threads.

    Making one puts the model into evaluation mode, and nothing changes the model afterwards: with
    that of `load_predictor` any number of threads may predict at a time. (Several ranks take turns
    together, so each predicts from one thread.)

    Args:
        ranker: The model, on the device that scores. To train it on, put it back into training mode
            first, and make a new predictor after that.
        config: Its config: tasks, the most rows in a batch, precision.
        encoder: Of the run; None: rows come encoded.
    """

    def __init__(
        self, ranker: Ranker, config: RunConfig, encoder: FeatureEncoder | None = None
    ) -> None:
        self.ranker, self.encoder = ranker.eval(), encoder
        self.tasks = config.tasks
        self.height = config.training.eval_batch_size
        self.bf16 = config.training.precision == "bf16"
        # Of the ranks there are now: a group that the caller makes later is none of ours
        self.ranks = world_size()
        self.any_height = HAS_KERNELS and ranker.device.type == "cpu"
        # Dispatch is shorter in it; FBGEMM's CPU tables refuse it, and a model may be trained on
        self.infers = self.ranks == 1 and scoring_embeddings(ranker.embeddings) is not None
        domains = ranker.network.domains
        asked_NT = None if domains is None else domains.asked_NT
        self.asked_NT = None if asked_NT is None else asked_NT.cpu().numpy()
        # Where the best weights are those before the first epoch, experts have nothing to add
        self.leaves_mixture_out = self.has_wide and ranker.network.is_silent

    @property
    def has_bias(self) -> bool:
        """Whether the model has a tower for the display (`model.bias`)."""
        return self.ranker.network.bias_tower is not None

    @property
    def has_wide(self) -> bool:
        """Whether the model has a wide part (`model.wide`)."""
        return self.ranker.wide is not None

    def predict(self, rows: BatchSource | EncodedData | TableLike) -> np.ndarray:
        """Returns predictions for every row, [N, tasks].

        Of several ranks each has rows of its own, and alone gets predictions for them. Tables and
        experts may be spread over the ranks, so all take part in every turn: a rank whose rows are
        done goes on with `help_others`.

        Args:
            rows: N rows: a source of them, encoded ones, or a DataFrame, Arrow table or mapping of
                names to columns; labels are not looked at.

        Returns:
            predictions_NT float32: probabilities for binary tasks, values for regression; behind
            them the further ones of tasks that have such (`prediction_columns`). NaN where a task
            does not exist in a row's domain.

        Raises:
            ValueError: The model has been put into training mode since, or a value does not fit.
        """
        if isinstance(rows, EncodedData):  # one chunk: no source around it
            return self.without_absent(rows.features.domains_N, self._predict(rows))
        predictions = [
            self.without_absent(chunk.features.domains_N, found_NT)
            for chunk, found_NT in self.predict_chunks(self._source(rows))
        ]
        return predictions[0] if len(predictions) == 1 else np.concatenate(predictions)

    def predict_chunks(
        self,
        source: BatchSource,
        first: int = 0,
        stop: int | None = None,
        *,
        tracker: Tracker | None = None,
        on_gates: GateCallback | None = None,
        with_bias: bool = False,
        with_wide: bool = False,
    ) -> Generator[tuple[EncodedData, np.ndarray]]:
        """Rows [first, stop) of a source chunk by chunk, each with its predictions.

        Where a task does not exist in a row's domain they are numbers that mean nothing, as its
        label is unobserved there.

        Args:
            source: With labels or without.
            first: The first row.
            stop: The one after the last; None: the source's end.
            tracker: Told of every batch.
            on_gates: Given each batch's gate weights and its count of real rows.
            with_bias: Add as many columns: what `model.bias` makes of them for the display as
                logged, which the rows then must hold.
            with_wide: Add, as the last, as many columns: what `model.wide` predicts alone.
        """
        with closing(source.chunks(first, stop)) as chunks:  # in any case nothing reads on
            for chunk in chunks:
                yield chunk, self._predict(chunk, tracker, on_gates, with_bias, with_wide)

    def _source(self, rows: BatchSource | TableLike) -> BatchSource:
        if isinstance(rows, BatchSource):
            return rows
        if self.encoder is None:
            raise ValueError(
                "rows: expected encoded ones, as this predictor was made without an encoder; give "
                "it one (Predictor(ranker, config, encoder)), or use load_predictor"
            )
        config = self.encoder.config
        table = as_rows(
            rows,
            config.data.requests,
            lambda there: required_columns(config, there, labels=False),
            known=required_columns(config, labels=False),
        )
        return BatchSource.of_table(table, self.encoder, origin_of(rows))

    def _predict(
        self,
        data: EncodedData,
        tracker: Tracker | None = None,
        on_gates: GateCallback | None = None,
        with_bias: bool = False,
        with_wide: bool = False,
    ) -> np.ndarray:
        self._check_mode()
        columns = len(prediction_columns(self.tasks)) * (1 + with_bias + with_wide)
        out_NT = np.zeros((len(data), columns), np.float32)
        if not len(data):
            return out_NT  # no turn: one without rows tells the others that all are done
        for turn in range(self._turns(-(-len(data) // self.height))):
            start = min(turn * self.height, len(data))
            rows = slice(start, min(start + self.height, len(data)))
            # What inference_mode makes is for nobody but this: others may compute on with theirs
            with torch.inference_mode(self.infers and on_gates is None):
                output = self._forward(data, rows, on_gates is not None, with_bias)
            wide_BT = output.wide_BT if with_wide else None
            kinds = (output.logits_BT, output.with_bias_BT, wide_BT)
            found = [self.predictions(one, data, rows) for one in kinds if one is not None]
            out_NT[rows] = np.concatenate(found, axis=1)
            if on_gates is not None and start < rows.stop:
                on_gates(output.gates, rows.stop - start)
            if tracker is not None:
                tracker.advance(rows.stop - start)
        return out_NT

    def batches(self, count: int) -> Iterator[slice]:
        """Cuts so many rows into batches."""
        for start in range(0, count, self.height):
            yield slice(start, min(start + self.height, count))

    def output(
        self,
        data: EncodedData,
        rows: slice,
        *,
        return_gates: bool = False,
        mixer: LevelMixer | None = None,
    ) -> NetworkOutput:
        """Returns what the network does of one batch of rows in memory, on one process.

        Args:
            data: The rows.
            rows: Which of them, of `batches`; rows of the output beyond theirs are padding.
            return_gates: Also record what the gates did.
            mixer: Runs each level in the network's place.
        """
        self._check_mode()
        return self._forward(data, rows, return_gates, mixer=mixer)

    def predictions(self, logits_BT: Tensor, data: EncodedData, rows: slice) -> np.ndarray:
        """Turns logits of some rows of `data`, maybe padded, into predictions, float32.

        Args:
            logits_BT: Of a batch; B may exceed the rows.
            data: Whose links belong to the rows.
            rows: Of `data`; as many predictions come back.
        """
        predictions = predictions_from_logits(logits_BT, self.tasks)[: rows.stop - rows.start]
        own_NT = predictions.float().cpu().numpy()
        for t, link in data.features.links.items():
            own_NT[:, t] = link.rows(rows).of(own_NT[:, t])
        return own_NT

    def without_absent(
        self, domains_N: np.ndarray | None, predictions_NT: np.ndarray
    ) -> np.ndarray:
        """Returns the predictions, NaN where a task does not exist in a row's domain.

        Args:
            domains_N: Of the rows, as encoded.
            predictions_NT: Of the same rows.
        """
        if self.asked_NT is None or domains_N is None:
            return predictions_NT
        asked_NT, predictions_NT = self.asked_NT[domains_N], predictions_NT.copy()
        for t in range(len(self.tasks)):
            further = range(predictions_NT.shape[1])[further_columns(self.tasks, t)]
            for column in (t, *further):
                predictions_NT[~asked_NT[:, t], column] = np.nan
        return predictions_NT

    def help_others(self, empty: EncodedData, *, with_bias: bool = False) -> None:
        """Takes part in the turns of other ranks until none of them has rows left.

        Args:
            empty: No rows, but the run's features.
            with_bias: As theirs: tables may then be asked twice.
        """
        self._check_mode()
        while turns := self._turns(0):
            for _ in range(turns):
                self._forward(empty, slice(0, 0), with_bias=with_bias)

    def _check_mode(self) -> None:
        """Dropout and batch statistics would give other scores, and change the model."""
        if self.ranker.training:
            raise ValueError(
                "ranker: expected a model in evaluation mode, as it was when this predictor was "
                "made, but it is in training mode; call ranker.eval() first"
            )

    def _turns(self, own: int) -> int:
        """The most that any rank needs."""
        if self.ranks == 1:
            return own
        most = torch.tensor(own)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    def _forward(
        self,
        data: EncodedData,
        rows: slice,
        return_gates: bool = False,
        with_bias: bool = False,
        mixer: LevelMixer | None = None,
    ) -> NetworkOutput:
        height = max(rows.stop - rows.start, 1) if self.any_height else self.height
        tile = _OWN_TILE if self.any_height else ROWS_PER_TILE
        device = self.ranker.device
        batch = data.batch(rows, pad_to=-(-height // tile) * tile)
        if device.type != "cpu":
            batch = batch.to(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            return self.ranker(
                batch,
                return_gates=return_gates,
                with_bias=with_bias,
                mixer=mixer,
                mixture=mixer is not None or not self.leaves_mixture_out,
            )


def load_predictor(
    run: RunDirectory,
    device: DeviceKind = "auto",
    *,
    table_precision: ScoringPrecision | None = None,
    budget: int | None = None,
    mapped: bool = False,
) -> tuple[Predictor, FeatureEncoder, RunConfig]:
    """Loads the best model of a run to score with, from any number of threads.

    The layer below `mmoe.load`, whose `predict` answers in the form in which rows come.

    On one process it needs no process group, and makes none: `torch.distributed` is the caller's,
    before this or after it. Where torchrun has started several ranks, they join and share tables
    and experts out; so they do in a group of several that is there already.

    Args:
        run: A trained run.
        device: To score on, whatever the run was trained on; see `resolve_device`.
        table_precision: int8 or fp16: tables in fewer bits, filled block by block from the
            checkpoint, on the CPU whatever the device; None: as they were trained.
        budget: Experts that one row computes at most; None: `score.budget` of the run's config.
        mapped: On the CPU of one process: weights are pages of a file in the host's cache, written
            by the first process that asks for it; all processes of the host share the memory.

    Raises:
        ValueError: The checkpoint does not fit the config, or cannot be read; there is no such
            device, precision or budget; or weights that are mapped do not fit into memory.
    """
    config = run.config() if budget is None else run.config().scored_within(budget)
    encoder = FeatureEncoder.load(run.vocabulary)
    several = max(launched_ranks(), world_size()) > 1
    # Tables as they were trained need FBGEMM (on a GPU that with CUDA) where ranks share them
    sharded = table_precision is None and several
    if mapped and (device == "cuda" or several):
        what = "device cuda" if device == "cuda" else "several ranks"
        raise ValueError(
            f"mapped weights are those of one process on the CPU, not of {what}; leave mapped out"
        )
    device = "cpu" if mapped else device
    place = resolve_device(device, config.training.embedding_backend if sharded else "plain")
    join_ranks(config.parallel.timeout_seconds, place)
    if several:
        bind_to_own_cores(config.parallel.bind_cores)
    stored = CheckpointFolder(run.checkpoint).tensors("best", "model")
    as_trained = table_precision is None and not several
    precision = trained_precisions(stored, encoder.tables) if as_trained else table_precision
    built = to_score(config.without_weight_files())
    weights = weights_of_host(run, stored, encoder, table_precision) if mapped else None
    check_tables(encoder.tables, stored)
    # All that is drawn here is replaced by what was learnt
    with borrowed_generators(), SizeLimit.of(stored):
        ranker = build_ranker(built, encoder, place, table_precision=precision, empty_tables=mapped)
    if weights is None:
        load_weights(ranker, stored, spread_layout(ranker.network) if several else None)
    else:
        map_weights(ranker, weights)
    if config.score.budget is not None:
        ranker.network.bound(config.score.budget)
    return Predictor(ranker, config, encoder), encoder, config

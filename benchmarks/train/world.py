"""The hidden truth behind the labels: effects and factors of ids, functions of the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.train.workloads import Ids, Workload

FACTORS = 4
SIGNALS = 3  # main effects, products of factors, functions of the numbers
CARRIERS = 24  # columns of ids that matter; a wide log has many that do not
ZIPF = 1.05
SPREAD = 1.5  # standard deviation of every logit
RATES = (-1.0, 0.0)  # intercepts of the click and of what follows it
REFERENCE_ROWS = 20_000


@dataclass(frozen=True)
class Columns:
    """N rows: ids and, for lists, where each row's begin; numbers [N, F]."""

    ids: Mapping[str, np.ndarray]
    offsets: Mapping[str, np.ndarray]
    dense_NF: np.ndarray


class World:
    """Draws rows and labels of a workload; the same seed is the same truth, whatever is drawn.

    `logit_t = intercept + SPREAD · Σ_s m_ts · z_s`, m_t of length 1, with the signals z brought to
    mean 0 and variance 1: `z_0 = Σ_c effect_c(id_c)`, `z_1 = Σ_c <factor_c, factor_c+1>`,
    `z_2 = Σ_f w_f x_f + x_f x_f+1 + sin(2 x_f)`. Lists count with the mean of their ids.

    Args:
        workload: Columns and tasks.
        seed: Of the truth.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.seed = workload, seed
        self.carriers = _carriers(workload)
        # By table: a shared one means the same in all its columns
        self.latent = {
            column.table_name: _latents(column.rows, [seed, 1, number])
            for number, column in enumerate(self.carriers)
        }
        rng = np.random.default_rng([seed, 2])
        self.number_weights_F = rng.normal(size=workload.dense)
        mix_TS = rng.normal(size=(len(workload.tasks), SIGNALS))
        mix_TS[:, 0] += 1.5  # tasks are related
        self.mix_TS = mix_TS / np.linalg.norm(mix_TS, axis=1, keepdims=True)
        reference_NS = self._signals(self.draw(REFERENCE_ROWS, [seed, 3]))
        self.mean_S, self.scale_S = reference_NS.mean(axis=0), reference_NS.std(axis=0)

    def draw(self, rows: int, seed: Sequence[int]) -> Columns:
        """Rows without labels."""
        rng = np.random.default_rng(seed)
        ids, offsets = {}, {}
        for column in self.workload.ids:
            count = rows
            if column.length is not None:
                lengths_N = rng.integers(1, 2 * column.length, rows)
                offsets[column.column] = np.concatenate([[0], lengths_N.cumsum()])
                count = int(lengths_N.sum())
            ids[column.column] = zipf_ids(rng, column.rows, count)
        dense_NF = rng.standard_normal((rows, self.workload.dense), np.float32)
        return Columns(ids, offsets, dense_NF)

    def labels(self, columns: Columns, seed: Sequence[int]) -> np.ndarray:
        """int8 [N, T]; whatever follows the click is 0 without one."""
        signals_NS = (self._signals(columns) - self.mean_S) / self.scale_S
        intercept_T = np.full(len(self.mix_TS), RATES[1])
        intercept_T[0] = RATES[0]
        logits_NT = intercept_T + SPREAD * signals_NS @ self.mix_TS.T
        dice_NT = np.random.default_rng(seed).random(logits_NT.shape)
        drawn_NT = dice_NT < 1 / (1 + np.exp(-logits_NT))
        drawn_NT[:, 1:] &= drawn_NT[:, :1]
        return drawn_NT.astype(np.int8)

    def _signals(self, columns: Columns) -> np.ndarray:
        x_NF, w_F = columns.dense_NF.astype(np.float64), self.number_weights_F
        signals_NS = np.zeros((len(x_NF), SIGNALS))
        before: np.ndarray | None = None
        for column in self.carriers:
            latent_NL = self.latent[column.table_name][columns.ids[column.column]]
            if column.length is not None:
                offsets = columns.offsets[column.column]
                lengths_N1 = np.diff(offsets)[:, None]
                latent_NL = np.add.reduceat(latent_NL, offsets[:-1]) / np.sqrt(lengths_N1)
            signals_NS[:, 0] += latent_NL[:, 0]
            if before is not None:
                signals_NS[:, 1] += (before[:, 1:] * latent_NL[:, 1:]).sum(axis=1)
            before = latent_NL
        signals_NS[:, 2] = (w_F * x_NF + np.sin(2 * x_NF)).sum(axis=1)
        signals_NS[:, 2] += (x_NF[:, 1:] * x_NF[:, :-1]).sum(axis=1)
        return signals_NS


def zipf_ids(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """int32 ids below `rows`, of probability ∝ rank ** -1.05, popular ones all over the table.

    By the inverse of the continuous distribution: a draw costs a power, not a search.
    """
    top = (rows + 1.0) ** (1 - ZIPF) - 1
    ranks = (1 + rng.random(count) * top) ** (1 / (1 - ZIPF))
    ranks = np.minimum(ranks.astype(np.int64) - 1, rows - 1)
    # A prime that divides no table's size: every rank has an id of its own
    return (ranks * 2_654_435_761 % rows).astype(np.int32)


def _carriers(workload: Workload) -> list[Ids]:
    """Every n-th column of ids, lists and sequences among them."""
    step = max(1, len(workload.ids) // CARRIERS)
    return list(workload.ids[::-step][::-1])


def _latents(rows: int, seed: Sequence[int]) -> np.ndarray:
    """Effect and factors of every id, float32 [rows, 1 + FACTORS]."""
    return np.random.default_rng(seed).standard_normal((rows, 1 + FACTORS), np.float32)

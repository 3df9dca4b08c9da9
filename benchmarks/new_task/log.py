"""Rows of `synthetic-funnel` with five labels of correlated logits, which are known."""

import numpy as np
import pyarrow as pa

from mmoe.datasets.bundled.synthetic import CLICK_SPREAD, REFERENCE_ROWS, generate_funnel
from mmoe.datasets.bundled.synthetic_world import (
    SHARES,
    Impressions,
    draw_impressions,
    draw_market,
    draw_parts,
    part_values,
)

TASKS = {"click": 0.3, "like": 0.2, "share": 0.1, "follow": 0.15, "save": 0.2}  # and their rates
NEW = "save"


def task_log(rows: int, *, correlation: float, seed: int, users: int, items: int) -> pa.Table:
    """Draws a log with a label for each of `TASKS`.

    With s₀ a signal that all share and s_t one of each task's own, both as in `synthetic-funnel`:
    `logit_t = a_t + b · (√ρ · s₀ + √(1 − ρ) · s_t)`, so that two logits have the correlation ρ.

    Args:
        rows: In order of time.
        correlation: ρ, of any two logits.
        seed: Of users, items, truth and rows.
        users: Ids that may occur.
        items: Likewise.

    Returns:
        The columns of `synthetic-funnel` without its labels, and one 0/1 column a task.
    """
    log = generate_funnel(rows, users=users, items=items, seed=seed).table
    # The rows of that log: it draws them from these streams
    market_rng, _, reference_rng, rows_rng, _ = np.random.default_rng(seed).spawn(5)
    market = draw_market(market_rng, users, items)
    reference = draw_impressions(reference_rng, market, REFERENCE_ROWS)
    seen = draw_impressions(rows_rng, market, rows)
    truth_rng, label_rng = np.random.default_rng((seed, 5)).spawn(2)
    shared_N = _signal(truth_rng, reference, seen)
    table = log.drop_columns(["click", "purchase"])
    for name, rate in TASKS.items():
        own_N = _signal(truth_rng, reference, seen)
        signal_N = np.sqrt(correlation) * shared_N + np.sqrt(1 - correlation) * own_N
        p_N = _probability(CLICK_SPREAD * signal_N, rate)
        label_N = label_rng.random(rows) < p_N
        table = table.append_column(name, pa.array(label_N.astype(np.int8)))
    return table


def _signal(rng: np.random.Generator, reference: Impressions, seen: Impressions) -> np.ndarray:
    """A new signal, of mean 0 and variance 1 on the reference rows."""
    market = reference.market
    parts = draw_parts(rng, len(market.user_id), len(market.item_id))
    total, total_seen = np.zeros(len(reference.user)), np.zeros(len(seen.user))
    for name, share in SHARES.items():
        values = part_values(name, parts[name], reference)
        scale = np.sqrt(share) / max(float(values.std()), 1e-12)
        total += scale * (values - values.mean())
        total_seen += scale * (part_values(name, parts[name], seen) - values.mean())
    return total_seen / total.std()


def _probability(logit_N: np.ndarray, rate: float) -> np.ndarray:
    """Moves logits so that the mean probability is the rate, by bisection."""
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float(np.mean(1 / (1 + np.exp(-(middle + logit_N)))))
        low, high = (middle, high) if mean < rate else (low, middle)
    return 1 / (1 + np.exp(-((low + high) / 2 + logit_N)))

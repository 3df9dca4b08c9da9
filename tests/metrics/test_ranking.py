"""PR-AUC, NDCG@k and recall@k against scikit-learn and against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

from mmoe.config.tasks import NdcgConfig, RecallConfig
from mmoe.metrics.auc import average_precision
from mmoe.metrics.named import Ndcg, Recall, grouped_ndcg, grouped_recall
from mmoe.metrics.of_tasks import task_metrics


@given(st.integers(2, 60), st.integers(1, 12), st.booleans(), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_average_precision_equals_scikit_learn(n, levels, weighted, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    labels[0] = 1
    scores = rng.integers(0, levels + 1, n) / levels  # ties are the rule
    weights = rng.integers(1, 40, n) / 7 if weighted else None
    expected = average_precision_score(labels, scores, sample_weight=weights)
    assert average_precision(labels, scores, weights) == pytest.approx(expected, abs=1e-12)


def test_average_precision_without_a_positive():
    assert average_precision(np.zeros(3), np.arange(3)) is None
    assert average_precision(np.zeros(0), np.zeros(0)) is None
    assert average_precision(np.array([1, 0]), np.array([1, 0]), np.array([0.0, 1.0])) is None


def _groups(seed, levels):
    rng = np.random.default_rng(seed)
    users = rng.integers(0, 8, 60).astype(float)
    users[rng.random(60) < 0.1] = np.nan
    return rng.random(60) < 0.3, rng.integers(0, levels, 60).astype(float), users


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_ndcg_is_the_mean_of_scikit_learns(seed, levels, k):
    labels, scores, users = _groups(seed, levels)
    values = [
        ndcg_score([labels[users == u]], [scores[users == u]], k=k)
        for u in range(8)
        if labels[users == u].any() and (users == u).sum() > 1
    ]
    alone = [u for u in range(8) if (users == u).sum() == 1 and labels[users == u].all()]
    found = grouped_ndcg(labels, scores, users, k)
    values += [1.0] * len(alone)  # which scikit-learn refuses
    assert found.groups == len(values)
    assert found.all_groups == len(np.unique(users[~np.isnan(users)]))
    if values:
        assert found.value == pytest.approx(np.mean(values), abs=1e-12)


def test_recall_counts_rows_of_one_score_by_their_share_of_the_places():
    labels = np.array([1, 0, 0, 1, 1, 0])
    scores = np.array([0.9, 0.5, 0.5, 0.5, 0.2, 0.1])
    one = np.zeros(6)
    assert grouped_recall(labels, scores, one, 1).value == pytest.approx(1 / 3)
    assert grouped_recall(labels, scores, one, 3).value == pytest.approx((1 + 2 / 3) / 3)
    assert grouped_recall(labels, scores, one, 4).value == pytest.approx(2 / 3)
    assert grouped_recall(labels, scores, one, 99).value == 1.0


def test_each_group_counts_once_and_those_without_a_positive_are_left_out_and_counted():
    labels = np.array([1, 0, 0, 0, 0, 1])
    users = np.array(["a", "a", "a", "b", None, "c"], dtype=object)
    scores = np.array([0.1, 0.9, 0.8, 0.5, 0.5, 0.5])
    named = [Ndcg(NdcgConfig(k=2)), Recall(RecallConfig(k=2))]
    values, notes = task_metrics("binary", labels, scores, groups=users, name="buy", named=named)
    assert (values["ndcg"], values["recall"]) == (0.5, 0.5)
    for name in ("ndcg@2", "recall@2"):
        assert f"buy: {name} rests on 2 of 3 groups; the others have no positive" in notes
    none = task_metrics("binary", labels * 0, scores, groups=users, name="buy", named=named)
    assert none.values["ndcg"] is None
    assert "buy: recall@2 not computed: none of 3 groups has a positive" in none.notes
    alone = task_metrics("binary", labels, scores, name="buy", named=named)
    assert "buy: ndcg not computed: there is no data.group_column" in alone.notes

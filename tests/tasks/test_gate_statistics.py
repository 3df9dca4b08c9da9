"""Gate statistics: by hand, over batches, with padding, masks and sparse gates."""

import json

import pytest
import torch

from mmoe.tasks.gate_statistics import GateRecord, GateStatistics

NAMES = {"gate_names": ("click", "buy"), "expert_names": ("expert 1", "expert 2", "expert 3")}


def record_of(weights_BGE, visibility_GE, **others):
    """A record of two gates over three experts, unless told otherwise."""
    sizes = {"level": 1, **NAMES, **others}
    return GateRecord(weights_BGE=weights_BGE, visibility_GE=visibility_GE, **sizes)


def _dense(batch, seed=0, **names):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, 2, 3, generator=generator)
    return record_of(logits.softmax(2), torch.ones(2, 3, dtype=torch.bool), **names)


def test_means_and_entropies_by_definition():
    record = _dense(50)
    statistics = GateStatistics()
    statistics.update([record])
    (found,) = statistics.summary()
    w = record.weights_BGE.double()
    entropy = -(w * w.log()).sum(2).mean(0)
    mean = w.mean(0)
    of_mean = -(mean * mean.log()).sum(1)
    torch.testing.assert_close(torch.tensor(found["mean_weight"], dtype=torch.float64), mean)
    torch.testing.assert_close(torch.tensor(found["entropy"], dtype=torch.float64), entropy)
    assert found["effective_experts"] == pytest.approx(entropy.exp().tolist())
    assert found["entropy_of_mean"] == pytest.approx(of_mean.tolist())
    assert found["effective_experts_of_mean"] == pytest.approx(of_mean.exp().tolist())
    assert found["distinct_pair_ratio"] is None
    assert (found["gates"], found["experts"]) == (["click", "buy"], list(record.expert_names))
    assert found["samples"] == 50
    assert json.loads(json.dumps(found)) == found


def test_batches_and_padding_do_not_matter():
    whole, parts = GateStatistics(), GateStatistics()
    record = _dense(100)
    whole.update([record])
    for start, rows in ((0, 64), (64, 36)):
        padded = torch.full((64, 2, 3), 1 / 3)
        padded[:rows] = record.weights_BGE[start : start + rows]
        parts.update([record_of(padded, record.visibility_GE)], num_rows=rows)
    (a,), (b,) = whole.summary(), parts.summary()
    assert a["samples"] == b["samples"] == 100
    for key in ("entropy", "effective_experts", "entropy_of_mean"):
        assert a[key] == pytest.approx(b[key], abs=1e-12)


def test_sparse_gates_count_distinct_pairs():
    # Sample 0: both gates pick expert 1. Sample 1: click picks 1 and 2, buy picks 3.
    weights = torch.tensor([[[1.0, 0, 0], [1, 0, 0]], [[0.5, 0.5, 0], [0, 0, 1]]])
    statistics = GateStatistics()
    statistics.update([record_of(weights, torch.ones(2, 3, dtype=torch.bool))])
    assert statistics.summary()[0]["distinct_pair_ratio"] == 4 / 5


def test_gates_that_decide_together_tell_what_is_kept():
    wanted = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]]).repeat(40, 1, 1)
    picked = torch.tensor([[[0.6, 0.4, 0.0], [1.0, 0.0, 0.0]]]).repeat(40, 1, 1)
    picked[:4, 0] = torch.tensor([0.0, 0.0, 1.0])  # a tenth of the rows: not the first choice
    parts = GateStatistics(), GateStatistics()
    for statistics, rows in zip(parts, (slice(3), slice(3, 40)), strict=True):
        record = record_of(
            picked[rows], torch.ones(2, 3, dtype=torch.bool), wanted_BGE=wanted[rows]
        )
        statistics.update([record])
    parts[0].add(parts[1])
    (found,) = parts[0].summary()
    assert found["kept_probability"] == pytest.approx([0.9 * 0.8 + 0.1 * 0.2, 0.1])
    assert found["kept_probability_p5"] == pytest.approx([0.2, 0.1])
    assert found["first_choice_missing"] == pytest.approx([0.1, 1.0])


def test_a_dense_gate_behind_a_mask_is_not_sparse():
    visible = torch.tensor([[True, True, False], [False, True, True]])
    weights = torch.where(visible, 0.5, 0.0).repeat(7, 1, 1)
    statistics = GateStatistics()
    statistics.update([record_of(weights, visible)])
    (found,) = statistics.summary()
    assert found["distinct_pair_ratio"] is None
    assert found["visible"] == visible.tolist()
    assert found["effective_experts"] == pytest.approx([2.0, 2.0])


def test_weights_that_do_not_sum_to_one_are_shares_for_the_entropy():
    weights = torch.tensor([[[0.8, 0.8, 0.0], [0.2, 0.2, 0.2]], [[0.0, 0, 0], [0.1, 0.1, 0.1]]])
    statistics = GateStatistics()
    statistics.update([record_of(weights, torch.ones(2, 3, dtype=torch.bool))])
    (found,) = statistics.summary()
    assert found["mean_weight"][0] == pytest.approx([0.4, 0.4, 0.0])
    assert found["effective_experts"] == pytest.approx([2**0.5, 3.0])
    assert found["effective_experts_of_mean"] == pytest.approx([2.0, 3.0])


def test_levels_come_in_order_and_none_is_an_empty_list():
    statistics = GateStatistics()
    assert statistics.summary() == []
    narrow = _dense(8, level=1)
    narrow = narrow._replace(weights_BGE=narrow.weights_BGE.bfloat16().requires_grad_())
    statistics.update([_dense(4, level=2), narrow])
    assert [each["level"] for each in statistics.summary()] == [1, 2]
    assert sum(statistics.summary()[0]["mean_weight"][0]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5])
def test_impossible_weights_are_refused(bad):
    record = _dense(4)
    record.weights_BGE[2, 1, 0] = bad
    statistics = GateStatistics()
    statistics.update([record])
    with pytest.raises(ValueError, match="level 1: a gate weight is NaN, infinite or negative"):
        statistics.summary()


def test_names_and_shapes_must_agree():
    statistics = GateStatistics()
    with pytest.raises(ValueError, match=r"weights_BGE has shape \(4, 2, 3\); expected \[batch, 1"):
        statistics.update([_dense(4, gate_names=("click",))])
    with pytest.raises(ValueError, match=r"visibility_GE has shape \(3,\)"):
        statistics.update([record_of(_dense(4).weights_BGE, torch.ones(3, dtype=torch.bool))])
    statistics.update([_dense(4)])
    with pytest.raises(ValueError, match="use one GateStatistics for each model"):
        statistics.update([_dense(4, gate_names=("click", "like"))])


def _of_domains(batch=40):
    dense = _dense(batch)
    domains_B = torch.arange(batch) % 4  # 3: none of them
    domains_B[domains_B == 1] = 0  # nobody is live
    asked_BG = torch.stack([torch.ones(batch).bool(), domains_B != 0], dim=1)
    weights_BGE = dense.weights_BGE * asked_BG.unsqueeze(2)
    return record_of(
        weights_BGE,
        dense.visibility_GE,
        asked_BG=asked_BG,
        wanted_BGE=dense.weights_BGE,
        domains_B=domains_B.int(),
        domain_names=("feed", "live", "shop"),
    )


def test_rows_that_ask_a_gate_are_those_that_count():
    record = _of_domains()
    mine = record.asked_BG[:, 1]
    some, alone = GateStatistics(), GateStatistics()
    some.update([record])
    kept = {"wanted_BGE": record.wanted_BGE[mine]}
    alone.update([record_of(record.weights_BGE[mine], record.visibility_GE, **kept)])
    (found,), (expected,) = some.summary(), alone.summary()
    for name in (
        "mean_weight",
        "entropy",
        "effective_experts_of_mean",
        "kept_probability",
        "kept_probability_p5",
        "first_choice_missing",
    ):
        assert found[name][1] == pytest.approx(expected[name][1]), name
    assert found["distinct_pair_ratio"] is None


def test_means_of_each_domain_by_definition():
    record, whole = _of_domains(), GateStatistics()
    for part in (slice(0, 13), slice(13, 40)):
        one = GateStatistics()
        one.update(
            [
                record._replace(
                    weights_BGE=record.weights_BGE[part],
                    asked_BG=record.asked_BG[part],
                    wanted_BGE=None,
                    domains_B=record.domains_B[part],
                )
            ]
        )
        whole.add(one)
    found = whole.summary()[0]["domains"]
    assert found["names"] == ["feed", "shop", None]
    assert found["rows"] == [[20, 0], [10, 10], [10, 10]]
    w = record.weights_BGE.double()
    for place, code in enumerate((0, 2, 3)):
        mine = w[record.domains_B == code]
        torch.testing.assert_close(
            torch.tensor(found["mean_weight"][place], dtype=torch.float64), mine.mean(0)
        )
        entropy = torch.special.entr(mine).sum(2).mean(0)
        assert found["entropy"][place] == pytest.approx(entropy.tolist())
    assert json.loads(json.dumps(found)) == found

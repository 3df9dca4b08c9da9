"""What the comparisons of converted networks with dense ones take for granted."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.convert import example, races
from benchmarks.convert.networks import ALPHABET, Grammar, best_loss, draw_grammar
from benchmarks.convert.races import (
    MODES,
    NETWORKS,
    Bench,
    PictureSettings,
    TextSettings,
    added_lines,
    check_above,
    differences,
    equal_at_start,
    reached,
    text_of,
)
from benchmarks.racing.harness import Clock
from mmoe.integrations.convert import convert, parameter_counts

TEXT = TextSettings(
    words=30,
    states=6,
    of_state=4,
    width=16,
    layers=1,
    hidden=32,
    context=12,
    batch=4,
    steps=6,
    evaluations=3,
    windows=10,
    num_experts=4,
)
PICTURES = PictureSettings(pictures=64, tests=40, width=8, batch=16, epochs=1, num_experts=3)


def bench(**settings):
    clock = Clock(device="cpu", rounds=1, seconds=1.0)
    return Bench(clock=clock, text=TEXT, pictures=PICTURES, **settings)


# --- the grammar ---


def counted_entropy(text, context):
    """Nats of a character after `context` others, from how often each such string is there."""
    longer = Counter(text[i : i + context + 1] for i in range(len(text) - context))
    shorter = Counter(text[i : i + context] for i in range(len(text) - context))
    total = sum(longer.values())
    return -sum(n / total * math.log(n / shorter[s[:-1]]) for s, n in longer.items())


def test_the_entropy_is_that_of_counted_strings():
    grammar = draw_grammar(3, words=5, states=3, of_state=3, letters=2, lengths=(1, 3))
    text = "".join(ALPHABET[c] for c in grammar.text(600_000, seed=1, streams=1)[0])
    assert counted_entropy(text, 14) == pytest.approx(grammar.entropy(), rel=0.01)
    assert counted_entropy(text, 3) > 1.05 * grammar.entropy()


def test_the_entropy_by_hand():
    # One state: "a " and "bb " as likely: log 2 over the mean of 2 and 3 characters
    one = Grammar(
        words=((0,), (1, 1)),
        words_SM=np.array([[0, 1]]),
        p_SM=np.array([[0.5, 0.5]]),
        next_V=np.array([0, 0]),
    )
    assert one.entropy() == pytest.approx(math.log(2) / 2.5)
    # "a " leads to a second state, which has no choice but "bb ", and that leads back
    two = replace(
        one, words_SM=np.array([[0, 1], [1, 0]]), p_SM=np.array([[0.5, 0.5], [1.0, 1e-300]])
    )
    two = replace(two, next_V=np.array([1, 0]))
    assert two.stationary_S() == pytest.approx([2 / 3, 1 / 3])
    assert two.entropy() == pytest.approx(2 / 3 * math.log(2) / (2 / 3 * 2.5 + 1 / 3 * 3))


def test_the_best_reader_reaches_the_entropy_and_no_less():
    grammar = draw_grammar(3, words=8, states=4, of_state=3, letters=3, lengths=(1, 3))
    text_NC = grammar.text(100_000, seed=2, streams=20)
    found = best_loss(grammar, text_NC)
    assert found == pytest.approx(grammar.entropy(), rel=0.02)
    assert best_loss(grammar, text_NC[:, :2000].reshape(-1, 10)) > 1.1 * found


def test_training_windows_are_new_and_the_same_for_both_networks():
    settings = replace(TEXT, words=300, states=50, of_state=8, context=40)
    text = text_of(settings)
    assert text.test_WL.shape == (settings.windows, 41)
    first, again, other = (text.batches(seed) for seed in (0, 0, 1))
    batches = [next(first) for _ in range(60)]  # into the second chunk
    assert all(batch.shape == (settings.batch, 41) for batch in batches)
    assert all(torch.equal(batch, next(again)) for batch in batches)
    assert not torch.equal(batches[0], next(other))
    rows = [tuple(row) for batch in [*batches, text.test_WL] for row in batch.tolist()]
    assert len(set(rows)) == len(rows)


# --- steps to a loss ---


def test_where_a_curve_reaches_a_loss():
    curve = [(10, 3.0), (20, 2.0), (30, 2.5), (40, 1.0)]
    assert reached(curve, 2.5, 40) == 15
    assert reached(curve, 3.5, 40) == 10
    assert reached(curve, 1.5, 40) == pytest.approx(30 + 10 * 2 / 3)
    assert reached(curve, 0.5, 40) == 80


def test_a_text_that_is_learnt_whole_is_refused():
    check_above(0.5, [0.56, 0.7])
    with pytest.raises(ValueError, match=r"expected dense losses of 0\.5500 or more.*0\.5400"):
        check_above(0.5, [0.54, 0.7])


def test_a_token_costs_both_transformers_as_much():
    settings = TextSettings()
    dense, converted = (parameter_counts(network(settings, 0)) for network in NETWORKS.values())
    gates = settings.layers * settings.num_experts * settings.width
    biases = settings.layers * settings.width * (settings.k - 1)
    assert converted.active == dense.active + gates + biases
    assert converted.total > 5 * dense.total


def test_both_transformers_start_from_the_same_weights_but_experts():
    dense, converted = (network(TEXT, 1) for network in NETWORKS.values())
    mine = converted.state_dict()
    shared = [name for name in dense.state_dict() if name in mine]
    assert len(shared) == len(dense.state_dict()) - 4
    assert all(torch.equal(dense.state_dict()[name], mine[name]) for name in shared)


# --- equality, lines ---


def test_the_worst_of_all_is_told(monkeypatch):
    modes = {name: MODES[name] for name in ("train", "no_grad")}
    monkeypatch.setattr(races, "MODES", modes)
    found = {r.key: r for r in equal_at_start(bench(), ("encoder", "one's own"))}
    assert set(found) == {"equal_at_start", "equal_at_start_fp64"}
    assert 0 < found["equal_at_start"].spread.median < 1e-5
    assert 0 < found["equal_at_start_fp64"].spread.median < 1e-10
    assert all(result.spread.count == 4 for result in found.values())


def test_another_network_would_be_noticed(monkeypatch):
    monkeypatch.setattr(
        races, "convert", lambda network, experts: convert(network, experts, init="fresh")
    )
    monkeypatch.setattr(races, "MODES", {"eval": MODES["eval"]})
    assert differences("sequential", torch.float64)["eval"] > 0.1


def test_outputs_that_are_no_numbers_are_the_worst(monkeypatch):
    monkeypatch.setattr(races, "MODES", {"eval": lambda network, inputs: torch.tensor(torch.nan)})
    assert differences("sequential", torch.float64)["eval"] == math.inf


def test_lines_are_those_that_name_the_library():
    source = Path(example.__file__).read_text(encoding="utf-8")
    assert len(added_lines(source)) == 1
    program = (
        "import mmoe.x as m\nfrom mmoe.y import convert, losses\nimport torch\n"
        "def f(a):\n    b = convert(\n        a)\n    c = torch.ones(1)\n"
        "    if c:\n        c += sum(losses(b))\n    return m.z(c)\n"
    )
    assert added_lines(program) == [5, 6, 9, 10]

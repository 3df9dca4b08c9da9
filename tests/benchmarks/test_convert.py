"""What the comparisons of converted networks with dense ones take for granted."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.convert import example, races
from benchmarks.convert.__main__ import KEYS, RACES
from benchmarks.convert.networks import (
    ALPHABET,
    CLASSES,
    FORMS,
    SIZE,
    SPACE,
    Grammar,
    SwinBlock,
    SwinClassifier,
    WindowAttention,
    best_loss,
    draw_grammar,
    draw_pictures,
)
from benchmarks.convert.races import (
    CLASSIFIERS,
    MODES,
    NETWORKS,
    PATIENCE,
    Bench,
    PictureSettings,
    TextJob,
    TextSettings,
    Training,
    accuracies,
    added_lines,
    against_loops,
    check_above,
    converted_network,
    differences,
    equal_at_start,
    own_form_known,
    reached,
    schedule,
    steps_to_dense_loss,
    text_of,
    trained,
)
from benchmarks.racing.harness import Clock
from mmoe.integrations.convert import RECOGNISERS, convert, parameter_counts

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


def test_texts_are_of_the_grammar_s_words():
    grammar = draw_grammar(0, words=30, states=6, of_state=4)
    assert len(set(grammar.words)) == 30
    text = grammar.text(20_000, seed=0, streams=4)
    assert text.shape == (4, 5000)
    spelled = {bytes(word) for word in grammar.words}
    words = [word for row in text for word in row.tobytes().split(bytes([SPACE]))[:-1]]
    assert len(words) > 2000 and set(words) <= spelled


def test_the_benchmark_s_grammar_is_one_chain_whose_states_are_all_met():
    settings = TextSettings()
    sizes = {"words": settings.words, "states": settings.states, "of_state": settings.of_state}
    share_S = draw_grammar(0, **sizes).stationary_S()
    assert share_S.sum() == pytest.approx(1) and share_S.min() > -1e-12
    assert (share_S > 1e-5).mean() > 0.95


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


def test_the_rate_rises_falls_and_stays():
    assert schedule(10, 1500) == pytest.approx(0.1, rel=0.01)
    assert schedule(750, 1500) == pytest.approx(0.55)
    assert schedule(1500, 1500) == schedule(2500, 1500) == pytest.approx(0.1)


def test_training_learns():
    settings = replace(TEXT, steps=60, batch=16)
    network = converted_network(settings, 0)
    training = Training(network, text_of(settings), 1e-2, 0)
    curve = training.until(60)
    assert [step for step, _ in curve] == [20, 40, 60]
    assert curve[-1][1] < curve[0][1] < 1.05 * math.log(len(ALPHABET))


def test_a_converted_network_that_is_slower_goes_on():
    job = TextJob("converted", 1e-4, 0, wanted=0.0)
    assert trained(TEXT, job)[-1][0] == PATIENCE * TEXT.steps


def test_the_race_of_steps_sweeps_both_and_has_its_keys(monkeypatch):
    monkeypatch.setattr(races, "RATES", (1e-3, 1e-2))
    found = {r.key: r for r in steps_to_dense_loss(bench(seeds=2))}
    assert set(found) == {"steps_to_dense_loss", "steps_to_dense_loss_in_time"}
    result = found["steps_to_dense_loss"]
    sweeps, runs = result.details[:2], result.details[2:]
    for sweep in sweeps:
        best = min(sweep["sweep"], key=sweep["sweep"].get)
        assert f"{sweep['rate']:g}" == best
    assert [run["seed"] for run in runs] == [0, 1]
    shares = [
        reached(run["converted"], run["dense"][-1][1], TEXT.steps) / TEXT.steps for run in runs
    ]
    assert result.spread.median == pytest.approx(np.median(shares))


@pytest.mark.slow
def test_workers_find_the_same():
    jobs = [TextJob(name, 1e-2, 0) for name in NETWORKS]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = [trained(TEXT, job) for job in jobs]
        assert bench(workers=2).each(_train_tiny, jobs) == alone
    finally:
        torch.set_num_threads(threads)


def _train_tiny(job):
    return trained(TEXT, job)


# --- pictures ---


def test_pictures_have_all_classes_and_the_same_seed_gives_the_same():
    pictures, classes = draw_pictures(600, 0)
    assert pictures.shape == (600, SIZE, SIZE, 3)
    assert set(classes.tolist()) == set(range(CLASSES))
    assert torch.equal(pictures, draw_pictures(600, 0)[0])
    assert not torch.equal(pictures, draw_pictures(600, 1)[0])


def test_shifted_windows_do_not_look_across_the_edge():
    torch.manual_seed(0)
    attention = WindowAttention(8, shift=2).double()
    x_BHWC = torch.randn(1, 8, 8, 8, dtype=torch.float64)
    changed = x_BHWC.clone()
    changed[:, 0] += 1.0  # the first row of places
    moved = (attention(changed) - attention(x_BHWC)).abs().sum((0, 2, 3))
    assert (moved[:2] > 1e-3).all() and (moved[2:] < 1e-12).all()


def test_windows_are_attended_apart():
    torch.manual_seed(0)
    attention = WindowAttention(8, shift=0).double()
    x_BHWC = torch.randn(2, 8, 8, 8, dtype=torch.float64)
    out = attention(x_BHWC)
    part = attention(x_BHWC[:, 4:, :4])
    torch.testing.assert_close(out[:, 4:, :4], part)


def test_blocks_of_the_classifier_are_converted_but_not_the_positions():
    model = convert(SwinClassifier(8, 5), 3)
    blocks = [module for module in model.modules() if isinstance(module, SwinBlock)]
    assert len(blocks) == 4
    for block in blocks:
        assert isinstance(block.attn.distance[0], torch.nn.Linear)
        assert not isinstance(block.mlp[0], torch.nn.Linear)


def test_a_place_costs_both_classifiers_as_much():
    dense, converted = (
        parameter_counts(network(PictureSettings(), 0)).active for network in CLASSIFIERS.values()
    )
    assert dense < converted < 1.02 * dense


def test_the_race_of_pictures_has_its_keys():
    found = {r.key: r for r in accuracies(bench(seeds=1))}
    assert set(found) == {"swin_accuracy", "swin_accuracy_dense"}
    assert all(0 <= result.spread.median <= 1 for result in found.values())


# --- equality, loops, lines ---


def test_every_recogniser_has_a_form():
    with own_form_known():
        assert {form.recogniser for form in FORMS.values()} == set(RECOGNISERS.names())
    assert "one's own" not in RECOGNISERS.names()


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


def test_loops_compute_what_the_layer_does(monkeypatch):
    monkeypatch.setattr(races, "ROWS", 64)
    found = {result.key for result in against_loops(bench())}
    assert {"vs_naive_index_E16", "vs_naive_mask_E16"} <= found


def test_lines_are_those_that_name_the_library():
    source = Path(example.__file__).read_text(encoding="utf-8")
    assert len(added_lines(source)) == 1
    program = (
        "import mmoe.x as m\nfrom mmoe.y import convert, losses\nimport torch\n"
        "def f(a):\n    b = convert(\n        a)\n    c = torch.ones(1)\n"
        "    if c:\n        c += sum(losses(b))\n    return m.z(c)\n"
    )
    assert added_lines(program) == [5, 6, 9, 10]


def test_all_keys_come_from_a_race():
    assert {key for race in RACES for key in race.keys} == set(KEYS)

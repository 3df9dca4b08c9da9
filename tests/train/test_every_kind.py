"""What every kind has to hold, from its config on; the kinds are in every_kind.py.

It trains and its loss falls; scores are what the evaluation judged, to the bit, whatever stands
beside a row. Of each family of kinds one shows that a killed run goes on to the same bits, and that
a warm start says what the run before said; those with sums of their own, that two ranks give what
one process does of a stream.
"""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.train import train_run
from mmoe.train.warm_start import WarmStart
from tests.runs import scores as scores_of
from tests.train.every_kind import KINDS, LOG, SPLITS, raw_config


def by_kind(names=KINDS):
    """Tests of one kind on one worker, which trains it once."""
    kinds = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]
    return pytest.mark.parametrize("name", kinds)


# One of each family that has state of its own: rows, vectors, labels' statistics, groups
CONTINUED = (
    "plain", "sequence din", "vectors frozen", "experts frozen", "bias fixed", "ziln", "d2q",
    "softmax", "dr and aitm", "late labels weighted",
)  # fmt: skip
# Losses, which ranks add up, and one of each family of inputs and layers
SHARED_OUT = (
    "plain", "sequence transformer", "sequence unpooled", "vectors frozen",
    "experts of three kinds", "experts frozen", "interaction fm", "bias fixed",
    *(name for name in KINDS if "tasks" in KINDS[name]),
)  # fmt: skip


def tables_of(name):
    """Kinds that read events or vectors train TorchRec's tables here too, others over ranks."""
    apart = name.startswith(("sequence", "vectors", "plain"))
    return {} if apart else {"embedding_backend": "plain"}


@pytest.fixture(name="trained", scope="module")
def _trained(tmp_path_factory):
    """A run of a kind, made once: its folder, and what was judged on the test rows."""
    made = {}

    def run(name):
        if name not in made:
            folder, judged = tmp_path_factory.mktemp("kind"), []
            train_run(
                config_from_dict(raw_config(KINDS[name], folder, **tables_of(name))),
                folder / "run",
                splits=SPLITS,
                on_test=lambda found, labels: judged.append(found),
            )
            made[name] = folder, judged[0]
        return made[name]

    return run


@by_kind()
def test_it_learns_and_scores_are_what_was_judged(name, trained):
    folder, judged_NP = trained(name)
    history = json.loads((folder / "run" / "history.json").read_text())["epochs"]
    losses = [sum(epoch["loss"].values()) for epoch in history]
    assert losses[-1] < losses[0]
    assert all(map(math.isfinite, losses))

    whole_NP = scores_of(folder / "run", SPLITS.test)
    np.testing.assert_allclose(whole_NP, judged_NP, rtol=1e-5)
    turned_NP = scores_of(folder / "run", SPLITS.test.take(list(range(199, -1, -1))))[::-1]
    alone_NP = scores_of(folder / "run", SPLITS.test[7:8])
    if HAS_KERNELS:
        assert np.array_equal(whole_NP, judged_NP)
        assert np.array_equal(whole_NP, turned_NP)
        assert np.array_equal(whole_NP[7:8], alone_NP)


@by_kind(CONTINUED)
def test_a_killed_run_goes_on_to_the_same_bits(name, trained, tmp_path, assert_same, dies_after):
    folder, _ = trained(name)
    config = config_from_dict(raw_config(KINDS[name], folder, **tables_of(name)))
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "broken", splits=SPLITS, reporter=dies_after(9))
    train_run(config, tmp_path / "broken", splits=SPLITS, resume=True)
    assert_same(folder / "run", tmp_path / "broken")


@by_kind(CONTINUED)
def test_a_warm_start_says_what_the_run_said(name, trained, tmp_path):
    folder, judged_NP = trained(name)
    still = raw_config(KINDS[name], folder, epochs=1, optimizer={"learning_rate": 1e-12},
                       embedding_optimizer={"learning_rate": 1e-12}, batch_size=300,
                       **tables_of(name))  # fmt: skip
    start = WarmStart(folder / "run")
    train_run(config_from_dict(still), tmp_path / "two", splits=SPLITS, warm_start=start)
    found_NP = scores_of(tmp_path / "two", SPLITS.test)
    np.testing.assert_allclose(found_NP, judged_NP, rtol=1e-4, atol=1e-6)


@pytest.fixture(name="on_ranks", scope="module")
def _on_ranks(tmp_path_factory, run_ranks):
    """Of each kind a config, and the run of two ranks, which train all of them in one world."""
    folder, made = tmp_path_factory.mktemp("ranks"), {}
    pq.write_table(LOG, folder / "log.parquet", row_group_size=200)
    for number, name in enumerate(SHARED_OUT):
        # Smaller steps, and no picks: a pick between two that are alike hangs on a rounding
        raw = raw_config(
            KINDS[name], folder, epochs=1, batch_size=200, optimizer={"learning_rate": 0.001}
        )
        raw["model"]["gate"] = {"kind": "softmax"}
        raw["data"] |= {"path": str(folder / "log.parquet"), "input": "memory"}
        made[name] = raw, folder / f"{number}-2"
        (folder / f"{number}.yaml").write_text(json.dumps(raw))
    run_ranks("train.configs_world", 2, folder)
    return made


@pytest.mark.torchrec
@pytest.mark.parametrize("name", SHARED_OUT)
def test_two_ranks_are_one_process_that_streams(name, on_ranks, tmp_path):
    raw, two = on_ranks[name]
    way = "memory" if "group_column" in KINDS[name].get("data", {}) else "stream"
    train_run(config_from_dict({**raw, "data": {**raw["data"], "input": way}}), tmp_path / "one")
    # Not the weights: Adam makes whole steps of a gradient that is nothing but rounding
    one, of_two = scores_of(tmp_path / "one", LOG), scores_of(two, LOG)
    np.testing.assert_allclose(of_two, one, atol=1e-4, rtol=1e-4)

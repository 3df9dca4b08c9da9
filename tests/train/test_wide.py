"""`model.wide`: a linear model first, kept by every way that a model goes."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import TrainingConfig, config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits
from mmoe.metrics import auc_difference_interval
from mmoe.predictor import Predictor
from mmoe.score import load_predictor
from mmoe.train import WarmStart, train_run
from mmoe.train.fit import training_state
from mmoe.train.fit_wide import Rows, _Shared, fit_wide
from mmoe.train.prepare import prepare
from tests.runs import Listens

WIDE = "model.wide=true"


class Said(Listens):
    """Finds what is said of the wide part."""

    @property
    def wide(self):
        return next(line for line in self.lines if line.startswith("wide part"))


@pytest.fixture(name="additive")
def _additive():
    """Splits of a log whose click is a logistic regression of four id columns and a number."""
    rng = np.random.default_rng(0)
    rows = 2_500
    ids = rng.integers(0, 30, (rows, 4))
    number = rng.normal(5, 2, rows)
    z = rng.normal(0, 0.8, (4, 30))[np.arange(4), ids].sum(1) + 0.3 * (number - 5)
    log = pa.table(
        {f"c{n}": ids[:, n].astype(str) for n in range(4)}
        | {"number": number, "minutes": 3 * z + rng.normal(size=rows)}
        | {"click": (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(int)}
    )
    return Splits(train=log[:1500], validation=log[1500:2000], test=log[2000:], origin="log")


def _additive_config(**task):
    return {
        "features": [{"kind": "categorical", "name": f"c{n}", "dim": 4} for n in range(4)]
        + [{"kind": "numeric", "name": "number", "standardise": False}],
        "tasks": [{"name": "click", "label": "click", **task}],
        "model": {"num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": []}},
        "training": {"epochs": 1, "batch_size": 256, "embedding_backend": "plain"},
    }


def _started(raw, splits, **keywords):
    """A model before its first epoch, its rows, and what was said."""
    config, said = config_from_dict(set_values(raw, [WIDE])), Said()
    prepared = prepare(config, splits=splits, **keywords)
    state = training_state(config, prepared)
    fit_wide(state.ranker.wide, config, prepared, said)
    return Predictor(state.ranker, config), prepared, said.wide


def _one_hot(table):
    """Ids of c0 … c3 and the scaled number, made without the library's columns."""
    blocks = []
    for n in range(4):
        ids = np.array(table[f"c{n}"].to_pylist(), int)
        blocks.append(ids[:, None] == np.arange(30))
    return np.hstack([*blocks, table["number"].to_numpy()[:, None]]).astype(float)


def _scaled(x, like):
    scaled = x.copy()
    scaled[:, -1] = (x[:, -1] - like[:, -1].mean()) / like[:, -1].std()
    return scaled


def test_the_model_begins_as_a_logistic_regression(additive):
    """Where its penalised loss is least, the gradient is the weights over their variance."""
    predictor, prepared, said = _started(_additive_config(), additive)
    train = additive.train
    p_N = predictor.predict(prepared.train)[:, 0]
    x = _scaled(_one_hot(train), _one_hot(train))
    gradient_C = x.T @ (train["click"].to_numpy() - p_N)
    # From the logits; what all ids of a column have in common may as well be in the bias
    logits_N = np.log(p_N / (1 - p_N), dtype=np.float64)
    weights_C = np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), logits_N)[0][:-1]
    for ids in range(0, 120, 30):
        own, slope = (of_C[ids : ids + 30] for of_C in (weights_C, gradient_C))
        own, slope = own - own.mean(), slope - slope.mean()
        variance = (own @ own) / (own @ slope)
        assert 0.2 < variance < 1.5, "the truth has 0.64"
        assert np.abs(own - variance * slope).max() < 0.02
    assert abs((train["click"].to_numpy() - p_N).sum()) < 0.1
    assert "click validation AUC 0.7" in said


def test_the_model_begins_as_a_linear_regression(additive):
    raw = _additive_config(kind="regression", label="minutes")
    raw["training"]["monitor"] = "mean.rmse"
    predictor, prepared, said = _started(raw, additive)
    train, test = _one_hot(additive.train), _one_hot(additive.test)
    # Noise of 1 over weights of deviation 3 · 0.8
    model = Ridge(alpha=1 / 2.4**2).fit(_scaled(train, train), additive.train["minutes"].to_numpy())
    found = predictor.predict(prepared.test)[:, 0]
    assert np.abs(found - model.predict(_scaled(test, train))).max() < 0.1
    assert "validation RMSE 1." in said


def test_a_rare_task_learns_from_a_frequent_one(additive):
    """Its weights are those of click, but for the bias; it has a twentieth of the positives."""
    rng = np.random.default_rng(5)
    splits = {}
    for part in ("train", "validation", "test"):
        rows = getattr(additive, part)
        rare = rng.random(len(rows)) < 1 / (1 + np.exp(4 - rows["minutes"].to_numpy() / 3))
        splits[part] = rows.append_column("rare", pa.array(rare.astype(int)))
    splits = Splits(**splits, origin="log")
    raw = _additive_config()
    rare = {"name": "rare", "label": "rare"}
    alone = _started({**raw, "tasks": [rare]}, splits)
    both = _started({**raw, "tasks": [rare, *raw["tasks"]]}, splits)
    labels = splits.test["rare"].to_numpy()
    aucs = [
        roc_auc_score(labels, predictor.predict(prepared.test)[:, 0])
        for predictor, prepared, _ in (alone, both)
    ]
    assert aucs[1] > aucs[0] + 0.02
    assert both[2].index("rare") < both[2].index("click"), "said in the order of the config"


def test_few_rows_and_one_class_are_no_obstacle(additive):
    few = Splits(
        train=additive.train[:12],
        validation=additive.validation[:1],
        test=additive.test,
        origin="log",
    )
    predictor, prepared, said = _started(_additive_config(), few)
    assert np.isfinite(predictor.predict(prepared.test)).all()
    assert "click is predicted by no column, so it begins as its mean" in said


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_one_outcome_only_is_its_base_rate(additive, outcome):
    config = config_from_dict(set_values(_additive_config(), [WIDE]))
    prepared = prepare(config, splits=additive)
    labels = prepared.train.held.labels
    same = replace(labels, labels_NT=np.full_like(labels.labels_NT, outcome))
    rows = BatchSource.of(replace(prepared.train.held, labels=same))
    state, said = training_state(config, prepared), Said()
    wide = state.ranker.wide
    fit_wide(wide, config, replace(prepared, train=rows), said)
    assert not wide.ids_RT.any()
    assert not wide.dense_TF.any()
    assert abs(float(wide.bias_T)) == pytest.approx(np.log(1500.5 / 0.5), abs=1e-4)
    assert "click has one outcome only" in said.wide


def test_managed_ids_are_refused(funnel_config):
    feature = {"kind": "categorical", "name": "user", "table": "people"}
    tables = [{"name": "people", "encoding": "managed", "rows": 9}]
    raw = {**funnel_config, "features": [feature], "tables": tables}
    config_from_dict(raw)
    with pytest.raises(ValueError, match=r"model.wide is true, but .* encoding managed"):
        config_from_dict(set_values(raw, [WIDE]))


def test_a_run_is_resumed_scored_and_kept_to_the_bit(
    train, splits, funnel_table, tmp_path, assert_same, dies_after
):
    settings = (WIDE, "training.ema_decay=0.9", "training.checkpoint_every_steps=5")
    said = Said()
    run = train("one", *settings, reporter=said)
    with pytest.raises(KeyboardInterrupt):
        train("two", *settings, reporter=dies_after(14))
    again = train("two", *settings, resume=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    assert again.metrics["tasks"] == run.metrics["tasks"]
    assert said.wide.startswith("wide part: click validation AUC 0.")
    assert "; buy validation AUC 0." in said.wide
    stored = CheckpointFolder(run.directory.checkpoint)
    first, last = stored.model("best"), stored.model("latest")
    for name in ("wide.ids_RT", "wide.dense_TF", "wide.bias_T"):
        assert torch.equal(first[name], last[name]), "it is not averaged"
    assert first["wide.ids_RT"].any()
    predictor, encoder, config = load_predictor(run.directory)
    test = funnel_table[3500:]
    rows = prepare(config, encoder=encoder, splits=splits).test
    assert np.array_equal(predictor.predict(test), predictor.predict(rows))
    small = load_predictor(run.directory, table_precision="int8")[0]
    assert np.abs(small.predict(test) - predictor.predict(test)).max() < 0.02
    assert torch.equal(small.ranker.wide.ids_RT, predictor.ranker.wide.ids_RT)


def test_what_training_makes_worse_stays_as_it_began(train, splits, tmp_path, dies_after, mmoe):
    worse = ("training.optimizer.learning_rate=3", "training.embedding_optimizer.learning_rate=9")
    settings = (WIDE, "training.patience=1", *worse)
    said = Said()
    run = train("one", *settings, reporter=said)
    history = json.loads((run.directory.path / "history.json").read_text())
    assert history["start"]["best"]
    assert [entry["best"] for entry in history["epochs"]] == [False]
    assert history["epochs"][0]["epoch"] == 1
    assert any(
        line.startswith("before the first epoch  validation: click auc") for line in said.lines
    )
    predictor, _, config = load_predictor(run.directory)
    start = training_state(config, prepare(config, splits=splits)).ranker.network
    assert torch.equal(predictor.ranker.network.towers[0].logit.weight, torch.zeros(1, 8))
    for one, two in zip(predictor.ranker.network.parameters(), start.parameters(), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(3))
    train("broken", *settings, resume=True)
    again = json.loads((tmp_path / "broken" / "history.json").read_text())
    assert again["start"] == history["start"]
    assert mmoe("report", run.directory.path)[0] == 0
    page = (run.directory.path / "report.html").read_text()
    assert "(best: before the first)" in page
    assert "the wide part alone · MMoE beside it untrained" in page
    assert "the experts and gates of this run are untrained" in page


@pytest.mark.parametrize(
    "setting", ["training.precision=bf16", "model.interaction=fm", "model.kind=ple"]
)
def test_a_mixture_without_a_say_is_left_out_to_the_bit(train, setting, funnel_table):
    run = train("one", WIDE, setting, "training.optimizer.learning_rate=3", "training.epochs=1")
    silent, encoder, config = load_predictor(run.directory)
    network = silent.ranker.network
    torch.nn.init.constant_(network.towers[1].logit.bias, 0.3)
    whole = Predictor(silent.ranker, config, encoder)
    assert silent.leaves_mixture_out
    whole.leaves_mixture_out, ran = False, []
    network.levels[0].mixture.register_forward_pre_hook(lambda *_: ran.append(1))
    found_NT = silent.predict(funnel_table)
    assert not ran
    assert np.array_equal(found_NT, whole.predict(funnel_table))
    assert ran
    torch.nn.init.constant_(network.towers[1].logit.weight, 0.1)
    assert not Predictor(silent.ranker, config, encoder).leaves_mixture_out


def test_what_scores_without_experts_says_so(train, tmp_path, funnel_table, mmoe):
    worse = ("training.optimizer.learning_rate=3", "training.embedding_optimizer.learning_rate=9")
    run = train("one", WIDE, "training.patience=1", *worse)
    gains = run.metrics["over_wide"]
    assert gains["untrained"] and {one["value"] for one in gains["tasks"].values()} == {0.0}
    assert "no expert is trained" in str(run.metrics["alarms"])
    assert json.loads((run.directory.path / "curves.json").read_text())["gates"] == []
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    out = mmoe("score", run.directory.path, "--input", tmp_path / "log.parquet",
               "--output", tmp_path / "scores.parquet")  # fmt: skip
    assert out[0] == 0 and "the wide part scores, without experts" in out[2]
    code, _, said = mmoe("explain", run.directory.path)
    assert code == 2 and "no expert was trained and scores are those of the wide part" in said


def test_what_the_mixture_adds_is_the_paired_difference(train, funnel_table, tmp_path, mmoe):
    run = train("one", WIDE, "training.epochs=3", "training.monitor=click.logloss")
    gains = run.metrics["over_wide"]
    assert not gains["untrained"] and [*gains["tasks"]] == ["click", "buy"]
    click, test = gains["tasks"]["click"], funnel_table[3500:]
    predictor = load_predictor(run.directory)[0]
    whole_N = predictor.predict(test)[:, 0]
    for tower in predictor.ranker.network.towers:
        torch.nn.init.zeros_(tower.logit.weight)
        torch.nn.init.zeros_(tower.logit.bias)
    wide_N = predictor.predict(test)[:, 0]
    sure = auc_difference_interval(test["click"].to_numpy(), whole_N, wide_N)
    assert [click["value"], click["low"], click["high"]] == pytest.approx(
        [sure.difference, sure.low, sure.high], abs=1e-6
    )
    assert click["model"] - click["wide"] == click["value"]
    pq.write_table(test, tmp_path / "log.parquet")
    shown = mmoe("evaluate", run.directory.path, "--data", tmp_path / "log.parquet")[1]
    assert "what the mixture adds over the wide part" in shown
    assert f"{click['value']:+.5f}" in shown
    assert mmoe("report", run.directory.path)[0] == 0
    page = (run.directory.path / "report.html").read_text()
    heading = "<h2>What the mixture adds over the wide part</h2>"
    assert page.index("<h2>") == page.index(heading) and f"<td>{click['value']:+.5f}</td>" in page


def test_a_warm_start_keeps_having_one_and_fits_it_anew(train):
    monday, said = train("monday", WIDE, "training.epochs=1"), Said()
    start = WarmStart(monday.directory.path)
    train("tuesday", WIDE, "training.epochs=1", warm_start=start, reporter=said)
    assert said.wide
    run = train("plain", "training.epochs=1")
    with pytest.raises(ValueError, match=r"model.wide is False there and True here"):
        train("wide", WIDE, warm_start=WarmStart(run.directory.path))


@pytest.mark.parametrize("kind", ["ple", "esmm"])
def test_every_model_takes_it(train, kind):
    run = train(kind, WIDE, f"model.kind={kind}", "training.epochs=1", "training.precision=bf16")
    assert run.metrics["tasks"]["click"]["auc"] > 0.6


def test_a_task_that_is_not_trained_has_none(train):
    run = train("one", WIDE, "tasks.buy.weight=0", "training.epochs=1")
    wide = load_predictor(run.directory)[0].ranker.wide
    assert wide.ids_RT[:, 0].any()
    assert not wide.ids_RT[:, 1].any()


def _rare(additive, seed=1):
    """The same splits with a label of 4 % positives that nothing predicts."""
    rng = np.random.default_rng(seed)
    parts = {
        name: getattr(additive, name).append_column(
            "rare", pa.array((rng.random(len(getattr(additive, name))) < 0.04).astype(int))
        )
        for name in ("train", "validation", "test")
    }
    return Splits(**parts, origin="log")


def test_few_positives_that_nothing_predicts_stay_their_mean(additive, tmp_path):
    raw, said = _additive_config(), Said()
    raw["tasks"].append({"name": "rare", "label": "rare"})
    raw["training"]["epochs"] = 2
    config = config_from_dict(set_values(raw, [WIDE]))
    run = train_run(config, tmp_path / "run", splits=_rare(additive), reporter=said)
    assert "rare is predicted by no column" in said.wide
    assert "too few" in said.wide
    predictor = load_predictor(run.directory)[0]
    assert predictor.ranker.wide.mixed_T.tolist() == [True, False]
    found = predictor.predict(additive.test)
    assert np.ptp(found[:, 1]) == 0
    (alarm,) = (line for line in said.lines if "rare: every row gets the prediction" in line)
    assert "no column predicts so few positives" in alarm
    assert "tower" not in alarm
    assert found[0, 1] == pytest.approx(0.04, abs=0.02)
    assert np.ptp(found[:, 0]) > 0.3


def test_rows_with_columns_for_tasks_keep_the_width_of_their_indices():
    x = sparse.csr_array(
        (np.ones(4), np.arange(4, dtype=np.int32), np.arange(5, dtype=np.int32)), shape=(4, 4)
    )
    shared = _Shared(x, np.zeros(4, int), 2)
    assert shared.x.indices.dtype == shared.x.indptr.dtype == np.int32
    assert shared.x.shape == (4, 6)


@pytest.mark.parametrize("rows", [1000, 1001, 1003])
def test_a_constant_task_is_no_column_of_others(rows):
    """Its logits' deviation may be what float64 rounds away, which is no divisor."""
    x = sparse.csr_array(np.ones((rows, 1)))
    shared = _Shared(x, np.zeros(1, int), 2)
    one, all_N = Rows(shared.x, np.zeros(rows), np.ones(rows)), np.ones(rows, bool)
    assert not shared.fitted(one, all_N, True, np.random.default_rng(0)).tells
    assert not shared.x[:, [1, 2]].toarray().any()


def test_what_a_task_knows_by_heart_is_not_given_to_others():
    """Ids of one row each: of its own rows a model knows the label, and of new ones nothing."""
    rows, rng = 2000, np.random.default_rng(0)
    ids = sparse.csr_array((np.ones(rows), np.arange(rows), np.arange(rows + 1)))
    x = sparse.csr_array(sparse.hstack([ids, rng.normal(size=(rows, 1))], format="csr"))
    number_N = x[:, [rows]].toarray()[:, 0]
    value_N = number_N + 2 * rng.normal(size=rows)
    shared = _Shared(x, np.array([0] * rows + [1]), 2)
    one, all_N = Rows(shared.x, value_N, np.ones(rows)), np.ones(rows, bool)
    shared.fitted(one, all_N, False, np.random.default_rng(0))
    given_N = shared.x[:, [rows + 1]].toarray()[:, 0]
    noise = np.corrcoef(value_N - number_N, given_N)[0, 1]
    assert abs(noise) < 0.1
    assert np.corrcoef(number_N, given_N)[0, 1] > 0.9


def test_row_weights_count(additive):
    """A row of weight 2 is as good as two rows."""
    train, rest = additive.train, {"validation": additive.validation, "test": additive.test}
    twice = np.arange(len(train)) % 3 == 0
    doubled = pa.concat_tables([train, train.filter(pa.array(twice))])
    weights = pa.array(1.0 + twice)
    ones = {
        name: rows.append_column("w", pa.array(np.ones(len(rows)))) for name, rows in rest.items()
    }
    raw = _additive_config(weight_column="w")
    weighted = Splits(train=train.append_column("w", weights), **ones, origin="log")
    repeated = Splits(
        train=doubled.append_column("w", pa.array(np.ones(len(doubled)))), **ones, origin="log"
    )
    found = []
    for splits in (weighted, repeated):
        predictor, prepared, _ = _started(raw, splits)
        found.append(predictor.predict(prepared.test)[:, 0])
    # The variances are those of the mean weight, so not quite the same
    assert np.abs(found[0] - found[1]).max() < 0.08


@pytest.mark.parametrize(
    ("best_epoch", "start", "epochs", "expected"),
    [
        (2, None, [0.7], 2),  # there was no start
        (0, 0.7, [0.6], 3),  # worse: three, at least, to outdo it
        (1, 0.7, [0.71, 0.7], 2),  # better: the usual patience
        (0, 0.7, [0.7001, 0.6999], 10),  # half of the epochs, as nothing has moved
        (1, 0.7, [0.7006, 0.7], 10),  # a best epoch by luck alone
        (0, 0.7, [0.7001, None], 3),  # what cannot be computed tells nothing
    ],
)
def test_experts_may_take_half_of_the_epochs_to_begin(best_epoch, start, epochs, expected):
    assert TrainingConfig(epochs=20, patience=2).waits(best_epoch, start, epochs) == expected
    assert TrainingConfig(epochs=90, patience=2).waits(best_epoch, start, epochs) == expected


@pytest.mark.parametrize(("ne", "epochs", "expected"), [
    (0.9, [0.9005, 0.8995], 10), (0.9, [0.9005, 0.91], 3),
    (1.0, [1.0005], 10), (1.2, [1.201], 10),  # a gain of 0 or less is no other case
])  # fmt: skip
def test_a_gain_moves_as_the_loss_of_which_it_is_a_share(ne, epochs, expected):
    for monitor in ("mean.ne", "mean.gain", "y.r2"):
        training = TrainingConfig(epochs=20, patience=2, monitor=monitor)
        start, *values = (ne, *epochs) if monitor == "mean.ne" else (1 - v for v in (ne, *epochs))
        assert training.waits(0, start, values) == expected


def test_training_goes_on_while_experts_have_not_begun(additive, tmp_path):
    """At a rate that moves nothing, training ends after half of the epochs, resumed too."""

    class Killed(Exception): ...

    def kill(epoch, _):
        if epoch == 2:
            raise Killed

    raw = _additive_config()
    raw["training"] |= {"epochs": 8, "patience": 1, "optimizer": {"learning_rate": 1e-9}}
    raw["training"]["embedding_optimizer"] = {"learning_rate": 1e-9}
    config = config_from_dict(set_values(raw, [WIDE]))
    with pytest.raises(Killed):
        train_run(config, tmp_path / "run", splits=additive, on_epoch=kill)
    train_run(config, tmp_path / "run", splits=additive, resume=True)
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    best = max((entry["epoch"] for entry in history["epochs"] if entry["best"]), default=0)
    assert len(history["epochs"]) == min(best + 4, 8)

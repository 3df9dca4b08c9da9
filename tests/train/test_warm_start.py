"""Yesterday's model on today's data: what is kept to the bit, what grows, what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from mmoe.checkpoint.folder import CheckpointFolder, StoredTensors
from mmoe.config import ModelConfig, config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits
from mmoe.models import build_network
from mmoe.parallel import ensure_process_group
from mmoe.predictor import Predictor
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import WarmStart, train_run
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from mmoe.train.warm_start import EarlierRun, WarmStartReport, transfer
from mmoe.train.warm_start.places import NamedNetwork, expert_origins, tensor_sources
from mmoe.train.warm_start.transfer import continue_accumulators

BACKENDS = ["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)]


def _days(table: pa.Table) -> tuple[Splits, Splits]:
    """Monday with users below 30, Tuesday with all 40."""
    monday = table.filter(pa.array(table["user"].to_numpy() < 30))
    parts = [(monday, 0, 1600), (table, 2000, 3600)]
    return tuple(  # type: ignore[return-value]
        Splits(
            train=rows.slice(start, stop - start - 400),
            validation=rows.slice(stop - 400, 200),
            test=rows.slice(stop - 200, 200),
            origin="log",
        )
        for rows, start, stop in parts
    )


@pytest.fixture(name="days", scope="module")
def _days_fixture(funnel_table):
    return _days(funnel_table)


@pytest.fixture(name="raw", scope="module")
def _raw(funnel_config) -> dict[str, Any]:
    return set_values(funnel_config, ["training.epochs=2"])


@pytest.fixture(name="monday", scope="module")
def _monday(raw, days, tmp_path_factory) -> Path:
    """A trained run; read only."""
    path = tmp_path_factory.mktemp("runs") / "monday"
    train_run(config_from_dict(raw), path, splits=days[0])
    return path


@pytest.fixture(name="tuesday")
def _tuesday(raw, days, tmp_path):
    """Continues a run on Tuesday's rows."""

    def run(name: str, start: Path, *overrides: str, changed: Any = None, copy=False, **options):
        config = config_from_dict(set_values(changed or raw, overrides))
        warm = WarmStart(start, "copy" if copy else "fresh")
        return train_run(config, tmp_path / name, splits=days[1], warm_start=warm, **options)

    return run


def _begun(config, start: Path, splits: Splits, new_experts: Any = "fresh"):
    """The state before the first step, its encoder and the report."""
    earlier = EarlierRun.open(start)
    earlier.check(config)
    prepared = prepare(config, earlier=earlier.encoder, splits=splits)
    state = training_state(config, prepared)
    report = transfer(earlier, state, config, prepared.encoder, new_experts)
    return state, prepared.encoder, report


def _predictions(config, state, encoder, table) -> np.ndarray:
    state.ranker.network = state.scoring_network
    return Predictor(state.ranker, config).predict(
        BatchSource.of_table(table, encoder, "log", config)
    )


def _earlier_predictions(run: Path, table: pa.Table) -> np.ndarray:
    """As `mmoe score` makes them of a finished run."""
    predictor, encoder, config = load_predictor(RunDirectory.open(run))
    return predictor.predict(BatchSource.of_table(table, encoder, "log", config))


def _changed(raw: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A copy with items added to its lists."""
    return {**raw, **{key: [*raw[key], *items] for key, items in sections.items()}}


def test_before_the_first_step_it_predicts_what_the_earlier_run_did(raw, days, monday):
    config = config_from_dict(raw)
    state, encoder, report = _begun(config, monday, days[1])
    table = days[0].test
    old = _earlier_predictions(monday, table)
    np.testing.assert_array_equal(_predictions(config, state, encoder, table), old)
    assert encoder.ids["user"].num_rows > EarlierRun.open(monday).encoder.ids["user"].num_rows
    assert any("table user 32 → 42 rows (+10)" in line for line in report.grown)
    assert not report.dropped and not report.initialised


@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_grow_and_known_rows_keep_weights_and_accumulators(raw, days, monday, backend):
    ensure_process_group()
    config = config_from_dict(set_values(raw, [f"training.embedding_backend={backend}"]))
    state, _, _ = _begun(config, monday, days[1])
    folder = CheckpointFolder(monday / "checkpoint")
    old, sums = (
        folder.model("best")["tables.user"],
        folder.training("best")["accumulators.user/sum"],
    )
    new = state.ranker.tables.table_weights()["user"]
    assert torch.equal(new[: len(old)], old)
    fresh = new[len(old) :]
    assert fresh.abs().min() > 0 and fresh.abs().max() <= len(new) ** -0.5
    accumulated = state.ranker.tables.optimizer_state()["user/sum"]
    assert torch.equal(accumulated[: len(old)], sums) and not accumulated[len(old) :].any()


def test_rows_that_are_new_make_up_for_no_decay_of_earlier_steps(raw, days, tmp_path):
    raw = set_values(
        raw, ["training.embedding_optimizer.kind=adam", "training.embedding_backend=plain"]
    )
    decaying = config_from_dict(set_values(raw, ["training.embedding_optimizer.weight_decay=1e-3"]))
    for name, config in (("plain", config_from_dict(raw)), ("decaying", decaying)):
        run = train_run(config, tmp_path / name, splits=days[0])
        model = CheckpointFolder(tmp_path / name / "checkpoint").tensors("best", "model")
        known = model.shape("tables.user")[0] if name == "decaying" else 0
        state, _, _ = _begun(decaying, run.directory.path, days[1])
        found = state.ranker.tables.optimizer_state()
        last, steps = found["user/last_step"], int(found["steps"])
        assert steps > 0 and len(last) > known
        assert last[known:].tolist() == [steps] * (len(last) - known)
        assert not known or (0 < int(last[:known].max()) <= steps and int(last[:known].min()) == 0)


NEW_FEATURES = {
    "row": {"kind": "numeric", "name": "row", "buckets": 3, "dim": 4},
    "steps": {"kind": "numeric", "name": "steps", "column": "price", "pieces": 6},
    "picture": {"kind": "vector", "name": "picture", "dim": 2},
}


@pytest.mark.parametrize("name", NEW_FEATURES)
def test_a_new_feature_changes_nothing_until_it_is_trained(raw, days, monday, name):
    # In front, so that columns found by position would be wrong
    config = config_from_dict({**raw, "features": [NEW_FEATURES[name], *raw["features"]]})
    state, encoder, report = _begun(config, monday, _with_pictures(days[1]))
    table = _with_pictures(days[0]).test
    old = _earlier_predictions(monday, table)
    np.testing.assert_allclose(_predictions(config, state, encoder, table), old, atol=1e-6)
    assert f"feature {name} (read with weights of zero at first)" in report.initialised
    if name != "row":
        return
    weight = state.ranker.network.levels[0].mixture.experts.weights[0]
    moment = state.optimizer.state[weight]["exp_avg_sq"]
    assert not weight[:, 0].any() and (moment[:, 0] > 0).all()


def _with_pictures(splits: Splits) -> Splits:
    """The same rows, each with a vector but some."""

    def add(table: pa.Table) -> pa.Table:
        price_N = table["price"].to_numpy()
        vectors = list(np.stack([price_N, np.sqrt(price_N), -price_N], axis=1))
        return table.append_column("picture", pa.array(vectors, mask=price_N < 0.2))

    parts = {name: add(getattr(splits, name)) for name in ("train", "validation", "test")}
    return Splits(**parts, origin="log")


def test_what_came_yesterday_goes_on(raw, days, tmp_path):
    pieces, vector = NEW_FEATURES["steps"], NEW_FEATURES["picture"]
    config = config_from_dict({**raw, "features": [pieces, vector, *raw["features"]]})
    first, second = map(_with_pictures, days)
    train_run(config, tmp_path / "first", splits=first)
    state, encoder, _ = _begun(config, tmp_path / "first", second)
    old = _earlier_predictions(tmp_path / "first", first.test)
    np.testing.assert_array_equal(_predictions(config, state, encoder, first.test), old)
    earlier = EarlierRun.open(tmp_path / "first")
    before = earlier.encoder.numeric["steps"]
    assert replace(encoder.numeric["steps"], seen=before.seen) == before
    for feature, said in (
        ({**pieces, "pieces": 7}, "features.steps.pieces is 6 there and 7 here; keep it"),
        ({**vector, "dim": 3}, "features.picture.dim is 2 there and 3 here; keep it"),
    ):
        other = config_from_dict({**raw, "features": [feature, *raw["features"]]})
        with pytest.raises(ValueError, match=said):
            earlier.check(other)


def test_a_removed_feature_and_task_are_named(raw, days, monday):
    changed = {**raw, "features": raw["features"][:2], "tasks": raw["tasks"][:1]}
    state, _, report = _begun(config_from_dict(changed), monday, days[1])
    assert set(report.dropped) == {"tables price__bucket, tags", "features price, tags", "task buy"}
    assert len(state.ranker.network.towers) == 1


def test_a_new_task_gets_a_gate_and_a_tower(raw, days, monday):
    extra = {"name": "dear", "label": "price > 1"}
    changed = {**raw, "tasks": [extra, *raw["tasks"]]}  # in front of the others
    state, encoder, report = _begun(config_from_dict(changed), monday, days[1])
    table = days[0].test
    old = _earlier_predictions(monday, table)
    new = _predictions(config_from_dict(changed), state, encoder, table)
    np.testing.assert_allclose(new[:, 1:], old, atol=1e-6)
    assert "task dear" in report.initialised


@pytest.mark.parametrize("copy", [False, True])
def test_a_new_expert_is_initialised_or_copied(raw, days, monday, copy):
    config = config_from_dict(set_values(raw, ["model.num_experts=4"]))
    state, _, report = _begun(config, monday, days[1], "copy" if copy else "fresh")
    weight = state.ranker.network.levels[0].mixture.experts.weights[0]
    old = CheckpointFolder(monday / "checkpoint").model("best")
    assert torch.equal(weight[:3], old["network.levels.0.mixture.experts.weights.0"])
    assert torch.equal(weight[3], weight[0]) == copy
    assert any("expert 4" in phrase for phrase in report.initialised)


def test_a_run_that_is_not_there_is_refused(tuesday, tmp_path):
    with pytest.raises(ValueError, match=r"nothing: there is no such run directory"):
        tuesday("refused", tmp_path / "nothing")


def test_experts_of_ple_are_found_by_their_owner():
    def network(names):
        made = build_network(ModelConfig(num_experts=len(names)), 3, ["a"])
        made.levels[0].expert_names = tuple(names)
        return NamedNetwork(made, {})

    before = network(["click expert 1", "shared expert 1"])
    now = ["like expert 1", "click expert 1", "click expert 2", "shared expert 1"]
    kept = {name: name for name in before.network.levels[0].expert_names}
    assert expert_origins(network(now), before, "fresh") == [kept]
    copied = kept | {"click expert 2": "click expert 1"}
    assert expert_origins(network(now), before, "copy") == [copied]


@pytest.mark.parametrize("kind", ["ple", "cgc", "omoe"])
def test_every_model_keeps_the_scores_of_its_tasks_when_one_is_added(raw, days, tmp_path, kind):
    settings = [f"model.kind={kind}", "training.epochs=1", "training.ema_decay=0.9"]
    config = config_from_dict(set_values(raw, settings))
    train_run(config, tmp_path / "old", splits=days[0])
    changed = _changed(raw, tasks=[{"name": "dear", "label": "price > 1"}])
    wider = config_from_dict(set_values(changed, settings))
    state, encoder, _ = _begun(wider, tmp_path / "old", days[1])
    table = days[0].test
    old = _earlier_predictions(tmp_path / "old", table)
    new = _predictions(wider, state, encoder, table)
    # Ple's shared gate sees all experts, those of the new task too
    np.testing.assert_allclose(new[:, :2], old, atol=0.05 if kind == "ple" else 1e-6)


@pytest.mark.parametrize("gate", ["noisy_top_k", "cosine", "sigmoid", "static", "dselect_k"])
def test_every_tensor_of_every_gate_has_an_origin(gate):
    settings = {"kind": gate} | ({} if gate == "static" else {"k": 2})
    raw = {
        "features": [{"kind": "numeric", "name": "x"}],
        "tasks": [{"name": "a", "label": "a"}],
        "model": {"num_experts": 4, "gate": settings},
    }
    model = config_from_dict(raw).model
    wide, small = build_network(model, 5, ["a", "b"]), build_network(model, 3, ["b"])
    inputs = ["x0", "x1", "x2", "x3", "x4"]
    sources = tensor_sources(
        NamedNetwork(wide, {"tasks": ["a", "b"], "inputs": inputs}),
        NamedNetwork(small, {"tasks": ["b"], "inputs": inputs[2:]}),
    )
    old = small.state_dict()
    for name, own in wide.state_dict().items():
        source = sources[name]
        if source.name is not None:
            sizes = [
                old[source.name].shape[dim] if dim in source.places else size
                for dim, size in enumerate(own.shape)
            ]
            assert list(old[source.name].shape) == sizes, name
    assert sources["towers.1.logit.weight"].name == "towers.0.logit.weight"


def test_renumbered_experts_of_dselect_k_are_refused(raw, days, tmp_path):
    settings = ["model.kind=cgc", "model.gate.kind=dselect_k", "model.gate.k=2"]
    settings += ["model.shared_experts=2", "training.epochs=1"]
    train_run(config_from_dict(set_values(raw, settings)), tmp_path / "old", splits=days[0])
    changed = _changed(raw, tasks=[{"name": "dear", "label": "price > 1"}])
    config = config_from_dict(set_values(changed, settings))
    with pytest.raises(ValueError, match=r"old: 'shared expert 1' would get another number, which"):
        _begun(config, tmp_path / "old", days[1])


def test_a_killed_run_resumes_to_the_same_bits(monday, tuesday, tmp_path, dies_after, assert_same):
    setting = "training.checkpoint_every_steps=2"
    told = json.loads(tuesday("whole", monday, setting).directory.warm_start_file.read_text())
    assert told["run"] == str(monday)
    assert told["grown"] == ["table user 32 → 42 rows (+10)"]
    assert "tasks click, buy" in told["kept"]
    start = tmp_path / "start"
    shutil.copytree(monday, start)
    with pytest.raises(KeyboardInterrupt):
        tuesday("broken", start, setting, reporter=dies_after(3))
    shutil.rmtree(start)  # is needed no more
    tuesday("broken", start, setting, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def _stored(folder: Path, prefix: str, tensors: dict[str, torch.Tensor]) -> StoredTensors:
    """As a checkpoint has them."""
    named = {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / f"{prefix}.safetensors")
    return StoredTensors(folder, prefix).part(prefix)


def test_state_of_another_form_begins_anew_and_is_named(tmp_path):
    report = WarmStartReport("runs/old", 3)
    states = {"a/m": torch.zeros(4, 2), "a/v": torch.zeros(4), "b/m": torch.zeros(2), "steps": (
        torch.zeros(1))}  # fmt: skip
    old = {"a/m": torch.ones(3, 2), "a/v": torch.ones(3, 2), "steps": torch.tensor([9.0])}
    old_tables = _stored(tmp_path, "tables", {"a": torch.zeros(3, 2)})
    continue_accumulators(states, _stored(tmp_path, "state", old), old_tables, report)
    assert states["a/m"].tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert not states["a/v"].any() and states["steps"] == 9
    assert report.initialised == ["embedding optimizer state of table a"]


def test_a_resumed_run_recalls_what_it_began_with(
    monday, tuesday, raw, days, tmp_path, dies_after, assert_same
):
    tuesday("whole", monday)
    with pytest.raises(KeyboardInterrupt):
        tuesday("broken", monday, reporter=dies_after(0))
    config = config_from_dict(raw)
    train_run(config, tmp_path / "broken", splits=days[1], resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    with pytest.raises(ValueError, match=r"broken: began with a warm start from .*monday"):
        tuesday("broken", tmp_path / "other", resume=True)
    with pytest.raises(ValueError, match=r"monday: did not begin with a warm start; resume it"):
        train_run(config, monday, splits=days[0], resume=True, warm_start=WarmStart(monday))


def test_streamed_as_in_memory(raw, days, monday, tmp_path, assert_same):
    for name, table in (("train", days[1].train), ("validation", days[1].validation),
                        ("test", days[1].test)):  # fmt: skip
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=300)
    files = [f"data.{name}={tmp_path / name}.parquet" for name in ("train", "validation", "test")]
    for how in ("memory", "stream"):
        settings = [*files, "data.split.by=file", f"data.input={how}"]
        config = config_from_dict(set_values(raw, settings))
        train_run(config, tmp_path / how, warm_start=WarmStart(monday))
    assert_same(tmp_path / "memory", tmp_path / "stream")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.kind=omoe", r"model.kind is 'mmoe' there and 'omoe' here; keep it as it was"),
        ("model.interaction=fm", r"model.interaction.kind is 'none' there and 'fm' here; keep"),
        ("model.expert.hidden=[16,4]", r"expert.hidden is \[16, 8\] there and \[16, 4\] here"),
        ("model.tower.hidden=[4]", r"model.tower.hidden is \[8\] there and \[4\] here"),
        ("tasks.buy.kind=entire_space", "tasks.buy.kind is 'binary' there and 'entire_sp"),
        ("features.item.dim=4", r"dim of table 'item' is 8 there and 4 here"),
        ("features.price.log=false", r"features.price.log is True there and False here; keep it "
         r"as it was, or give the feature another name"),
        ("features.price.buckets=4", r"features.price.buckets is 8 there and 4 here"),
        ("features.user.encoding=hash", r"features.user.encoding is 'vocabulary' there and 'hash'"),
        ("features.tags.pooling=sum", r"features.tags.pooling is 'mean' there and 'sum' here"),
        ("features=[{kind: numeric, name: row}]", r"monday: shares no feature with this config "
         r"\(there: user, item, price, tags; here: row\); name another run"),
    ],
)  # fmt: skip
def test_another_model_is_refused_and_nothing_is_written(
    monday, tuesday, tmp_path, override, message
):
    with pytest.raises(ValueError, match=message):
        tuesday("refused", monday, override)
    assert not (tmp_path / "refused").exists()


def test_without_an_average_it_goes_on_from_the_averaged_weights(raw, days, tmp_path):
    config = config_from_dict(set_values(raw, ["training.ema_decay=0.9", "training.epochs=1"]))
    train_run(config, tmp_path / "old", splits=days[0])
    folder = CheckpointFolder(tmp_path / "old" / "checkpoint")
    name = "towers.0.logit.weight"
    averaged, behind = (
        folder.model("best")[f"network.{name}"],
        folder.training("best")[f"raw.{name}"],
    )
    state, _, _ = _begun(config, tmp_path / "old", days[1])
    assert torch.equal(state.ranker.network.state_dict()[name], behind)
    assert torch.equal(state.scoring_network.state_dict()[name], averaged)
    assert state.average is not None and int(state.average.n_averaged) > 0
    plain, _, _ = _begun(config_from_dict(raw), tmp_path / "old", days[1])
    assert torch.equal(plain.ranker.network.state_dict()[name], averaged)


def test_a_run_killed_while_it_began_is_no_obstacle(monday, tuesday, tmp_path, assert_same):
    tuesday("whole", monday)
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("mmoe.json", "warm_start.json"):
        shutil.copy(tmp_path / "whole" / name, broken)
    (broken / ".config.yaml.7.tmp").write_text("{")
    tuesday("broken", monday, resume=True)
    assert_same(tmp_path / "whole", broken)

"""Alarms of whole runs: at train and evaluate, in memory and streamed; none where all is well."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.network import MixtureNetwork
from mmoe.run.directory import RunDirectory
from mmoe.train import evaluate_run, train_run
from tests.runs import Listens


class Heard(Listens):
    @property
    def alarms(self):
        return [line for line in self.lines if line.startswith("alarm: ")]


@pytest.fixture(name="leaking", scope="module")
def _leaking(funnel_table):
    """The funnel, and what was paid: empty without a click."""
    clicks = enumerate(funnel_table["click"].to_pylist())
    paid = pa.array([7.5 + n % 3 if click else None for n, click in clicks])
    return funnel_table.append_column("paid", paid)


@pytest.fixture(name="config", scope="module")
def _config(funnel_config, tmp_path_factory):
    def make(table, *overrides, paid=False):
        path = tmp_path_factory.mktemp("log") / "log.parquet"
        pq.write_table(table, path, row_group_size=500)
        features = [*funnel_config["features"], {"kind": "numeric", "name": "paid", "buckets": 4}]
        raw = {**funnel_config, "features": features} if paid else funnel_config
        return config_from_dict(
            set_values(raw, [f"data.path={path}", "training.epochs=1", *overrides])
        )

    return make


@pytest.fixture(name="healthy")
def _healthy(healthy_run, tmp_path):
    """A copy of a run that raised no alarm; a test may damage it."""
    return RunDirectory(shutil.copytree(healthy_run, tmp_path / "run"))


@pytest.fixture(name="healthy_run", scope="module")
def _healthy_run(config, funnel_table, tmp_path_factory):
    heard, out = Heard(), tmp_path_factory.mktemp("healthy") / "run"
    finished = train_run(config(funnel_table, "training.epochs=3"), out, reporter=heard)
    assert "alarms" not in finished.metrics
    assert "alarms" not in evaluate_run(finished.directory, reporter=heard)
    assert heard.alarms == []
    return out


def test_other_rows_are_compared_with_those_of_training(healthy, leaking, tmp_path):
    config_file, rows = healthy.config_file.read_text(), leaking.num_rows
    other = leaking.set_column(3, "price", pa.array(30 * leaking["price"].to_numpy()))
    new = np.random.default_rng(3).random(rows) < 0.6
    users = np.where(new, 1_000 + np.arange(rows), leaking["user"].to_numpy())
    pq.write_table(other.set_column(1, "user", pa.array(users)), tmp_path / "new.parquet")
    for how in ("memory", "stream"):
        heard = Heard()
        healthy.config_file.write_text(config_file.replace("input: auto", f"input: {how}"))
        found = evaluate_run(healthy, tmp_path / "new.parquet", heard)["alarms"]
        assert {"user", "price"} <= {alarm["about"] for alarm in found if alarm["kind"] == "drift"}
        said = " ".join(heard.alarms)
        assert "column user has ids that training did not know in " in said
        assert "distribution in the evaluated rows than in training (median 1" in said
        assert not [alarm for alarm in found if alarm["about"] in ("item", "tags")]


def test_a_run_of_an_earlier_version_is_evaluated_without(healthy):
    columns = healthy.path / "columns.json"
    columns.unlink()
    assert "alarms" not in evaluate_run(healthy)
    columns.write_text('{"format": 9, "rows": 1, "judged_by": 1, "columns": {}, "alarms": []}')
    assert "alarms" not in evaluate_run(healthy)
    columns.write_text("{")
    with pytest.raises(ValueError, match=r"columns\.json: is damaged"):
        evaluate_run(healthy)


def test_rows_that_are_all_alike_say_so_alone(healthy, funnel_table):
    rows = funnel_table[:200]
    for place, name in ((1, "user"), (2, "item"), (3, "price"), (4, "tags")):
        rows = rows.set_column(place, name, pa.nulls(200, rows.schema.field(name).type))
    (first, *_) = found = evaluate_run(healthy, rows)["alarms"]
    assert first["finding"].startswith("all rows are the same to the model")
    assert {alarm["about"] for alarm in found[1:]} == {"user", "item", "price", "tags"}
    assert {alarm["kind"] for alarm in found[1:]} == {"drift"}


def test_what_the_model_itself_shows_is_said(config, funnel_table, tmp_path, monkeypatch):
    """Copies of a task, whose towers are made to agree, and an expert that is dead."""
    copied = config(funnel_table.append_column("again", funnel_table["click"]))
    task = copied.tasks[0].model_copy(update={"name": "again", "label": "again"})
    copied, heard = copied.model_copy(update={"tasks": [copied.tasks[0], task]}), Heard()
    forward = MixtureNetwork.forward

    def alike(self, *rows, **keywords):
        # Below all that its ReLU could let pass
        self.levels[0].mixture.experts.biases[-1].data[1] = -1e4
        output = forward(self, *rows, **keywords)
        return output._replace(logits_BT=output.logits_BT[:, :1].expand(-1, 2))

    monkeypatch.setattr(MixtureNetwork, "forward", alike)
    train_run(copied, tmp_path / "run", reporter=heard)
    said = "\n".join(heard.alarms)
    assert "alarm: click and again put the rows in the same order" in said
    assert "one label is the other's copy" in said
    assert "alarm: expert 2 gives the same output for every row; its " in said


def test_a_leak_is_said_once_kept_and_drawn(config, leaking, tmp_path, mmoe):
    heard, out = Heard(), tmp_path / "run"
    made = config(leaking, "training.epochs=3", "training.batch_size=256", paid=True)
    finished = train_run(made, out, reporter=heard)
    (line,) = heard.alarms
    assert line.startswith("alarm: column paid alone predicts click with an AUC of 1.0000; is it")
    (stored,) = finished.metrics["alarms"]
    assert (stored["kind"], stored["about"]) == ("leak", "paid")
    assert json.loads((out / "metrics.json").read_text()) == finished.metrics
    again = evaluate_run(finished.directory)
    assert again["alarms"] == finished.metrics["alarms"]
    code, _, err = mmoe("report", out)
    assert code == 0, err
    page = (out / "report.html").read_text()
    assert "<h2>Alarms</h2>" in page
    assert "column paid alone predicts click" in page


@pytest.mark.parametrize("how", ["memory", "stream"])
def test_ids_of_which_most_held_out_rows_know_none_share_a_row_by_auto(
    config, funnel_table, tmp_path, how
):
    numbers = np.random.default_rng(5).integers(0, 9_000, funnel_table.num_rows)
    rare = funnel_table.set_column(1, "user", pa.array(numbers))
    heard = Heard()
    made = config(rare, f"data.input={how}", "features.user.min_count=1")
    run = train_run(made, tmp_path / "one", reporter=heard)
    assert [a["about"] for a in run.metrics["alarms"] if a["kind"] == "rare_ids"] == ["user"]
    assert any("column user has ids that repeat too rarely" in line for line in heard.alarms)
    made = config(rare, f"data.input={how}", "features.user.min_count=auto")
    run = train_run(made, tmp_path / "auto")
    assert "rare_ids" not in {alarm["kind"] for alarm in run.metrics.get("alarms", [])}
    assert FeatureEncoder.load(run.directory.vocabulary).ids["user"].num_rows == 2


def test_a_resumed_stream_knows_its_training_rows(config, leaking, tmp_path, dies_after):
    made = config(leaking, "data.input=stream", "training.checkpoint_every_steps=2", paid=True)
    with pytest.raises(KeyboardInterrupt):
        train_run(made, tmp_path / "run", reporter=dies_after(5))
    before = (tmp_path / "run" / "columns.json").read_bytes()
    heard = Heard()
    train_run(made, tmp_path / "run", resume=True, reporter=heard)
    assert (tmp_path / "run" / "columns.json").read_bytes() == before
    assert "alarm: column paid alone" in heard.alarms[0]


def _flips(rows=3_000, seed=0):
    """A log whose labels are coin flips."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": rng.integers(0, 800, rows),
            "item": rng.integers(0, 500, rows),
            "click": rng.integers(0, 2, rows),
        }
    )


@pytest.mark.parametrize("how", ["memory", "stream"])
def test_rows_that_were_delivered_twice_are_said(config, funnel_config, tmp_path, monkeypatch, how):
    rows = _flips()
    twice = pa.concat_tables([rows, rows.slice(0, 1_200)])
    features = [
        {"kind": "categorical", "name": "user"},
        {"kind": "categorical", "name": "item"},
        {"kind": "cross", "name": "both", "columns": ["user", "item"]},
    ]
    monkeypatch.setitem(funnel_config, "features", features)  # all tests share the config
    monkeypatch.setitem(funnel_config, "tasks", [{"name": "click", "label": "click"}])
    monkeypatch.setitem(funnel_config, "data", {})
    options = [f"data.input={how}", "training.epochs=4"]
    heard = Heard()
    finished = train_run(config(twice, *options), tmp_path / "run", reporter=heard)
    found = [alarm for alarm in finished.metrics["alarms"] if alarm["kind"] == "repeated_rows"]
    assert len(found) == 1
    told = r"4\d\.\d% of the test rows, 4\d\.\d% of the validation rows are copies of training rows"
    numbers = r" \(click has AUC (0\.\d+), without the copies (0\.\d+)\)$"
    said = re.match(told + numbers, found[0]["finding"])
    assert said is not None, found[0]
    of_all, of_others = map(float, said.groups())
    assert of_all > 0.6 > of_others
    assert "set data.repeated_rows: together" in heard.alarms[0]
    again = evaluate_run(finished.directory)["alarms"]  # of the own split, whose rows it counted
    assert [alarm["kind"] for alarm in again if alarm["kind"] == "repeated_rows"]
    kinds = []
    for repeated in ("together", "drop") if how == "memory" else ():
        made = config(twice, *options, f"data.repeated_rows={repeated}")
        metrics = train_run(made, tmp_path / repeated).metrics
        kinds += [alarm["kind"] for alarm in metrics.get("alarms", [])]
        assert metrics["tasks"]["click"]["auc"] < 0.6
    assert "repeated_rows" not in kinds

"""A run whose JSON is well-formed but holds something else: an answer, or one line about it."""

import json
import random
import shutil

import pyarrow.parquet as pq
import pytest

from mmoe.config import Count, Stored, config_from_dict
from mmoe.config.json_files import check_stored
from mmoe.datasets.files.fingerprint import DataPrint
from mmoe.run import FolderClaim
from mmoe.train import WarmStart, train_run
from mmoe.train.claim import begin_planned
from tests.chaos.run_faults import READERS, SUFFIXES, arguments, json_files, key_paths, tamper


@pytest.fixture(scope="module", name="world")
def _world(funnel_config, funnel_table, tmp_path_factory):
    """A log, and a run that continued another one."""
    folder = tmp_path_factory.mktemp("world")
    log = folder / "log.parquet"
    pq.write_table(funnel_table[:600], log)
    raw = {**funnel_config, "data": {"path": str(log)}}
    raw["training"] = {**funnel_config["training"], "epochs": 1}
    config = config_from_dict(raw)
    train_run(config, folder / "before")
    train_run(config, folder / "run", warm_start=WarmStart(folder / "before"))
    return folder


@pytest.mark.parametrize("name", sorted(READERS))
def test_tampered_files_are_named(world, tmp_path, mmoe, name):
    draw = random.Random(name)
    for number in range(2):
        folder = tmp_path / str(number)
        run = shutil.copytree(world / "run", folder / "run")
        path = next(path for path in json_files(run) if path.name == name)
        what, reader = tamper(path, draw), draw.choice(READERS[name])
        out = folder / f"out{SUFFIXES.get(reader, '')}"
        code, _, err = mmoe(*arguments(reader, run, world / "log.parquet", out))
        assert code in (0, 2), (what, reader)
        assert code == 0 or err.startswith(f"mmoe: error: {folder}"), (what, reader, err)
        assert err.count("\n") == code // 2
        assert len(err) < 3_000


@pytest.mark.parametrize(
    ("name", "where", "value", "reader", "says"),
    [
        ("index.json", "kept", None, "evaluate", "(kept: Input should be a valid list"),
        ("index.json", "best", "../run", "score", "(best: String should match pattern"),
        ("index.json", "best", "step-7", "score", "names step-7, which is not there"),
        ("state.json", "step", "x", "resume", "(step: Input should be a valid integer"),
        ("warm_start.json", "run", [], "resume", "(run: Input should be a valid s"),
        ("metrics.json", "validation", {"buy": 0}, "report", "(validation.buy: Input"),
        ("history.json", "epochs", [{}], "report", "(epochs.0.epoch: Field required"),
        ("curves.json", "tasks", {"x": {"roc": {}}}, "report", "(tasks.x.roc.fpr: F"),
        ("encoder.json", "crosses", [None], "score", "(crosses: Input should be a v"),
        ("encoder.json", "numeric", {}, "evaluate", "numeric.price: is missing"),
        (
            "curves.json",
            "tasks",
            {"x": {"roc": {"fpr": [0], "tpr": []}}},
            "report",
            "(tasks.x.roc: Value error, fpr has 1 values, tpr 0",
        ),
    ],
)
def test_the_line_names_the_key(world, tmp_path, mmoe, name, where, value, reader, says):
    run = shutil.copytree(world / "run", tmp_path / "run")
    path = next(path for path in json_files(run) if path.name == name)
    path.write_text(json.dumps(json.loads(path.read_text()) | {where: value}))
    out = tmp_path / f"out{SUFFIXES.get(reader, '')}"
    code, _, err = mmoe(*arguments(reader, run, world / "log.parquet", out))
    assert code == 2
    assert f"{name}: is damaged {says}" in err or f"{name}: {says}" in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("data", 3, r"\(data: Input .*, got 3\); choose"),
        ("config", [], r"\(config: .*, got \[\]\)"),
    ],
)
def test_the_plan_of_many_runs_names_its_key(tmp_path, funnel_config, where, value, says):
    config, data = config_from_dict(funnel_config), DataPrint(kind="tables", parts={})
    with FolderClaim("search") as claim:
        begin_planned(claim, tmp_path / "out", config, data, numbered=False)
        begin_planned(claim, tmp_path / "out", config, data, numbered=False)
        plan = tmp_path / "out" / "plan.json"
        plan.write_text(json.dumps(json.loads(plan.read_text()) | {where: value}))
        with pytest.raises(ValueError, match=rf"plan.json: is damaged {says}"):
            begin_planned(claim, tmp_path / "out", config, data, numbered=False)


def test_shapes():
    class Weather(Stored):
        days: Count

    check_stored({"days": 3, "other": "anything"}, Weather, "w.json", "look again")
    for value in (-1, 2**63, True, "3", None):
        with pytest.raises(ValueError, match=r"^w.json: is damaged \(days: .*\); look again$"):
            check_stored({"days": value}, Weather, "w.json", "look again")
    assert list(key_paths({"a": [1, {"b": 2}, 3]})) == [
        (), ("a",), ("a", 0), ("a", 1), ("a", 1, "b"),
    ]  # fmt: skip

"""Kinds of somebody's own package (tests/toy_plugin) go the whole road, as built-in ones do."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from mmoe import plugins
from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.train import train_run
from tests.own_kinds import forget_own_kinds
from tests.ranks import free_port, start_program

TOY = Path(__file__).resolve().parent.parent / "toy_plugin"


def forget() -> None:
    """As in a process that has not imported it yet."""
    forget_own_kinds()
    for name in [name for name in sys.modules if name.split(".")[0] == "toy_ranking"]:
        del sys.modules[name]
    plugins._installed.cache_clear()
    plugins.load_installed.cache_clear()


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    """The package can be found; what it adds is gone afterwards."""
    forget()
    monkeypatch.syspath_prepend(str(TOY))
    yield
    forget()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """What pip leaves of a package with an entry point."""
    info = tmp_path / "site" / "toy_ranking-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-ranking\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mmoe.plugins]\ntoy = toy_ranking\n")
    monkeypatch.syspath_prepend(str(info.parent))
    plugins._installed.cache_clear()
    plugins.load_installed.cache_clear()


@pytest.fixture(name="raw")
def _raw(funnel_config):
    """A config that uses a kind of every noun."""
    near = {"kind": "within", "distance": 0.5}
    click, buy = funnel_config["tasks"]
    return {
        **funnel_config,
        "features": [
            *funnel_config["features"],
            {"kind": "remainder", "name": "row", "divisor": 7, "dim": 4},
        ],
        "tasks": [
            {**click, "metrics": [near]},
            buy,
            {"name": "amount", "label": "price", "kind": "count", "exposure": 2.0},
        ],
        "model": {
            "kind": "twin",
            "embedding_dim": 4,
            "gate": {"kind": "sharp", "sharpness": 3.0},
            "experts": [
                {"kind": "mlp", "count": 2, "hidden": [8, 6]},
                {"kind": "sine", "count": 3, "width": 6},
            ],
            "tower": {"kind": "sum"},
        },
        "training": {**funnel_config["training"], "epochs": 2, "monitor": "click.within"},
    }


@pytest.fixture(name="config")
def _config(raw, tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump({**raw, "imports": ["toy_ranking"]}))
    return path


@pytest.fixture(name="log")
def _log(funnel_table, tmp_path):
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def test_the_whole_road(mmoe, config, log, tmp_path):
    run, scores = tmp_path / "run", tmp_path / "scores.parquet"
    code, out, err = mmoe("train", config, "--data", log, "--out", run)
    assert code == 0, err
    assert "deviance" in out and "within" in out
    stored = json.loads((run / "metrics.json").read_text())
    assert stored["tasks"]["amount"]["deviance"] > 0
    assert 0 < stored["tasks"]["click"]["within"] < 1
    assert yaml.safe_load((run / "config.yaml").read_text())["imports"] == ["toy_ranking"]

    forget()
    code, _, err = mmoe("evaluate", run)
    assert code == 2
    assert "needs the module toy_ranking" in err and "--import toy_ranking" in err
    code, out, err = mmoe("evaluate", run, "--json", "--import", "toy_ranking")
    assert code == 0, err
    assert json.loads(out) == stored
    code, _, err = mmoe("score", run, "--input", log, "--output", scores, "--import", "toy_ranking")
    assert code == 0, err
    assert min(pq.read_table(scores)["pred_amount"].to_pylist()) > 0
    assert mmoe("report", run, "--import", "toy_ranking")[0] == 0
    page = (run / "report.html").read_text()
    assert "5 experts" in page and "sine · sharp gates · sum tower" in page
    assert "deviance" in page and "within" in page


def test_a_resumed_run_gives_the_same_bits(raw, log, dies_after, assert_same, tmp_path):
    config = config_from_dict(
        set_values({**raw, "imports": ["toy_ranking"]}, ["training.checkpoint_every_steps=5"])
    )
    whole = train_run(config, tmp_path / "whole", data=log)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "broken", data=log, reporter=dies_after(17))
    forget()
    with pytest.raises(ValueError, match="needs the module toy_ranking"):
        RunDirectory(tmp_path / "broken").config()
    plugins.import_modules(["toy_ranking"])
    config = RunDirectory(tmp_path / "broken").config()
    resumed = train_run(config, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert resumed.metrics["tasks"] == whole.metrics["tasks"]


@pytest.mark.parametrize("kind", ["remainder", "list_of_mine"])
def test_a_kind_that_was_not_imported_is_said_to_need_it(raw, kind):
    with pytest.raises(ValueError, match=f"got '{kind}'; a kind of one's own needs its module"):
        config_from_dict(set_values(raw, [f"features.row.kind={kind}"]))


RANK = f"import sys; sys.path.insert(0, {str(TOY)!r}); from mmoe.cli import main; main()"


@pytest.mark.torchrec
def test_two_ranks_are_one_process(mmoe, config, log, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    settings = ["training.embedding_backend=torchrec", "parallel.experts=spread"]
    command = ["train", config, "--data", log, "--set", *settings, "--out"]
    assert mmoe(*command, alone)[0] == 0
    port = free_port()
    program = ["-c", RANK, *map(str, command), str(together)]
    ranks = [start_program(program, r, 2, port) for r in range(2)]
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    one, two = (
        json.loads((run / "metrics.json").read_text())["tasks"] for run in (alone, together)
    )
    for task, values in one.items():
        assert two[task] == pytest.approx(values, rel=1e-4), task


def test_an_installed_package_needs_no_import(mmoe, raw, log, installed, tmp_path):
    config, run = tmp_path / "installed.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(raw))
    code, _, err = mmoe("train", config, "--data", log, "--out", run)
    assert code == 0, err
    assert "toy_ranking" in sys.modules
    forget()
    code, _, err = mmoe("evaluate", run)
    assert code == 0, err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("features.row.diviser=3", "unknown key 'diviser'; did you mean 'divisor'?"),
        ("features.row.divisor=1", "features.4.remainder.divisor: .*greater than or equal to 2"),
        ("features.row.kind=rest", "expected one of .*'trees', 'remainder', got 'rest'"),
        ("tasks.amount.kind=counts", "'jrc' or 'count', got 'counts'"),
        ("tasks.amount.exposures=3", "unknown key 'exposures'; did you mean 'exposure'?"),
        ("tasks.buy.exposure=3", "exposure goes with kind count, but kind is binary"),
        (
            "tasks.click.metrics.0.kind=near",
            "metrics.0.kind: expected one of 'ndcg', 'recall', 'within', got 'near'",
        ),
        ("tasks.click.metrics.0.distance=0", "metrics.0.within.distance: .*greater than 0"),
        ("model.gate.sharpnes=1", "unknown key 'sharpnes'; did you mean 'sharpness'?"),
        ("model.gate.kind=sharper", "'static' or 'sharp', got 'sharper'"),
        ("model.experts.1.kind=sinus", "'mlp', 'dcn_v2', .* or 'sine', got 'sinus'"),
        ("model.tower.bias=7", "model.tower.bias: .*valid boolean.*got 7"),
        ("model.kind=twins", "'esmm' or 'twin', got 'twins'"),
        ("training.monitor=click.deviance", "deviance needs a count task"),
    ],
)
def test_what_is_wrong_with_it_is_said_as_of_built_in_kinds(raw, override, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(set_values({**raw, "imports": ["toy_ranking"]}, [override]))


def test_a_kind_may_be_defined_anew_but_not_by_somebody_else():
    import mmoe

    plugins.import_modules(["toy_ranking"])
    toy = sys.modules["toy_ranking.metric"]
    mmoe.register.metric("within", toy.WithinConfig)(toy.Within)  # as a cell that is run again
    other = type("Other", (toy.WithinConfig,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match="'within': there is such a kind, WithinConfig; choose"):
        mmoe.register.metric("within", other)(toy.Within)
    with pytest.raises(ValueError, match="metric 'auc': a kind of task has it already"):
        mmoe.register.metric("auc", toy.WithinConfig)(toy.Within)
    with pytest.raises(ValueError, match=r"metric 'near': the key of Within.column is 'within'"):
        mmoe.register.metric("near", toy.WithinConfig)(toy.Within)


def test_a_kind_whose_first_definition_was_wrong_is_mended_in_its_cell():
    import mmoe

    plugins.import_modules(["toy_ranking"])
    toy, task = sys.modules["toy_ranking.metric"], sys.modules["toy_ranking.task"]
    without = type("Within", (), {"column": toy.Within.column})
    with pytest.raises(AttributeError, match="higher_is_better"):
        mmoe.register.metric("within", toy.WithinConfig)(without)
    mmoe.register.metric("within", toy.WithinConfig)(toy.Within)

    count = mmoe.register.task_kind
    with pytest.raises(AttributeError, match="monitored"):
        count("count", task.CountTask, judge=dict)(task.Count)
    turned = type("Counts", (task.Counts,), {"monitored": {"deviance": True}})
    count("count", task.CountTask, judge=turned)(task.Count)
    count("count", task.CountTask, judge=task.Counts)(task.Count)


def test_a_run_names_modules_that_its_program_had_imported(raw, log, tmp_path):
    plugins.import_modules(["toy_ranking"])
    config = config_from_dict(set_values(raw, ["training.epochs=1"]))
    run = train_run(config, tmp_path / "run", data=log).directory
    assert set(run.config().imports) == {
        f"toy_ranking.{name}" for name in ("feature", "metric", "network", "task")
    }

"""Modules that a config, a command or an installed package names: when they are imported."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mmoe import plugins
from mmoe.config import config_from_dict, load_config

SMALL = {
    "features": [{"kind": "numeric", "name": "age"}],
    "tasks": [{"name": "click", "label": "click"}],
}
MODULES = {
    "kinds_of_mine.py": "",
    "raising.py": "def _start():\n    raise RuntimeError('no\\nlicence')\n_start()\n",
    "leaving.py": "raise SystemExit(3)",
    "needing.py": "import not_installed_at_all",
    "misspelt.py": "def x(:",
}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch) -> Path:
    """A folder with these modules on the path; nothing stays imported."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(str(folder))
    plugins._installed.cache_clear()
    plugins.load_installed.cache_clear()
    return folder


@pytest.fixture(name="run", scope="module")
def _run(funnel_table, funnel_config, tmp_path_factory):
    """A trained run whose config names a module, as somebody else might hand it over."""
    import pyarrow.parquet as pq

    from mmoe.train import train_run

    config = config_from_dict(funnel_config)
    training = config.training.model_copy(update={"epochs": 1})
    out = tmp_path_factory.mktemp("theirs") / "run"
    config = config.model_copy(update={"imports": ["kinds_of_mine"], "training": training})
    pq.write_table(funnel_table, out.with_name("log.parquet"))
    train_run(config, out, data=out.with_name("log.parquet"))
    return out


def test_a_config_imports_what_it_names():
    config = config_from_dict({**SMALL, "imports": ["kinds_of_mine"]})
    assert "kinds_of_mine" in sys.modules
    assert config.imports == ["kinds_of_mine"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not_there.ranking", "there is no module 'not_there'; install its package, put its "),
        ("kinds_of_mine.x", "there is no module 'kinds_of_mine.x'; "),
        ("raising", r"RuntimeError: no licence \(raising.py, line 2\)"),
        ("leaving", r"SystemExit: 3 \(leaving.py, line 1\)"),
        ("needing", r"No module named 'not_installed_at_all' \(needing.py, line 1\)"),
        ("misspelt", r"misspelt.py.*, line 1.*SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        config_from_dict({**SMALL, "imports": [name]}, "my.yaml")
    assert str(caught.value).startswith(f"my.yaml: {name}: cannot be imported: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["os", [1], ["a b"], ["../evil"], [""]])
def test_what_is_no_list_of_modules_is_refused(wrong):
    with pytest.raises(ValueError, match=r"^config: imports"):
        config_from_dict({**SMALL, "imports": wrong})


def test_nothing_of_a_run_is_imported_unasked(mmoe, run, funnel_table, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(funnel_table, tmp_path / "log.parquet")
    commands = {
        "evaluate": ("evaluate", run),
        "score": ("score", run, "--input", tmp_path / "log.parquet", "--output", tmp_path / "s"),
        "report": ("report", run),
        "resume": ("train", "--resume", "--out", run),
        "resume with its config": ("train", run / "config.yaml", "--resume", "--out", run),
        "warm start": ("train", "--warm-start", run, "--out", tmp_path / "next"),
    }
    for what, command in commands.items():
        code, out, err = mmoe(*command)
        assert (code, out) == (2, ""), what
        assert err == (
            f"mmoe: error: {run}/config.yaml: needs the module kinds_of_mine, which a run's folder "
            "may not import by itself; if you trust it, say --import kinds_of_mine (in Python: "
            "import it first)\n"
        )
        assert "kinds_of_mine" not in sys.modules, what


def test_with_import_it_is(mmoe, run, funnel_table, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(funnel_table, tmp_path / "log.parquet")
    code, _, err = mmoe("evaluate", run, "--data", tmp_path / "log.parquet", "--import",
                        "kinds_of_mine")  # fmt: skip
    assert code == 0, err


def test_not_through_the_encoder_either(run, tmp_path):
    from mmoe.datasets.features.encoder import FeatureEncoder

    with pytest.raises(ValueError, match=r"^\S*encoder\.json: needs the module kinds_of_mine"):
        FeatureEncoder.load(run / "vocabulary")


def test_a_copied_config_is_ones_own(run, tmp_path):
    shutil.copy(run / "config.yaml", tmp_path / "mine.yaml")
    assert load_config(tmp_path / "mine.yaml").imports == ["kinds_of_mine"]
    assert "kinds_of_mine" in sys.modules


def _install(modules, value):
    """A package whose entry point names that module."""
    info = modules / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mmoe.plugins]\nmine = {value}\n")


def test_an_installed_entry_point_allows_its_module(modules, run):
    _install(modules, "kinds_of_mine")
    load_config(run / "config.yaml")
    assert "kinds_of_mine" in sys.modules


@pytest.mark.parametrize(
    ("name", "hint"),
    [("../mine", ""), (".mine", ""), ("", ""), ("my_pkg:Gate", ""), ("a.py", "; a.py is a"),
     ("my_pkg/ranking.py", "; my_pkg/ranking.py is my_pkg.ranking")],
)  # fmt: skip
def test_what_is_no_name_of_a_module_is_refused(name, hint):
    with pytest.raises(ValueError, match=r"^--import: .*expected the name of a module") as refused:
        plugins.import_modules([name])
    assert str(refused.value).endswith(f"as in `import my_pkg.ranking`{hint}")


def test_a_broken_plugin_is_named_with_its_package(modules):
    _install(modules, "raising")
    with pytest.raises(ValueError, match=r"^the plugin 'mine' of toy, installed here: raising: "):
        plugins.load_installed()


@pytest.mark.parametrize("value", ["", "kinds of mine"])
def test_an_entry_point_without_a_module_is_named_with_its_package(modules, run, value):
    _install(modules, value)
    with pytest.raises(ValueError, match=r"^the plugin 'mine' of toy, .* names no module: '"):
        load_config(run / "config.yaml")


def test_an_installed_plugin_is_not_looked_for_in_the_current_folder(
    modules, run, tmp_path, monkeypatch
):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kinds_of_mine.py").write_text("raise RuntimeError('what a stranger wrote')")
    test_an_installed_entry_point_allows_its_module(modules, run)
    monkeypatch.delitem(sys.modules, "kinds_of_mine")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != ""])
    monkeypatch.setattr(plugins, "_looks_here", True)
    monkeypatch.chdir(theirs)
    load_config(run / "config.yaml")
    assert sys.modules["kinds_of_mine"].__file__ == str(modules / "kinds_of_mine.py")


def test_a_command_writes_what_it_imports_into_the_config(mmoe, modules, funnel_table):
    import pyarrow.csv

    pyarrow.csv.write_csv(funnel_table.drop(["tags"]), modules / "log.csv")
    config = modules / "mine.yaml"
    code, _, err = mmoe(
        "init", modules / "log.csv", "--label", "click", "--out", config,
        "--import", "kinds_of_mine",
    )  # fmt: skip
    assert code == 0, err
    assert yaml.safe_load(config.read_text())["imports"] == ["kinds_of_mine"]


@pytest.mark.parametrize("start", ["python -m mmoe", "mmoe"])
def test_the_current_folder_is_looked_in_however_the_command_is_started(start, modules, repository):
    (modules / "mine.yaml").write_text(yaml.safe_dump({**SMALL, "imports": ["needing"]}))
    script = modules / "bin" / "mmoe"  # as pip makes it
    script.parent.mkdir()
    script.write_text("from mmoe.cli import main\nmain()\n")
    started = ["-m", "mmoe"] if "-m" in start else [str(script)]
    done = subprocess.run(
        [sys.executable, *started, "train", "mine.yaml"],
        cwd=modules, capture_output=True, text=True, env={"PYTHONPATH": str(repository)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "needing: cannot be imported: ModuleNotFoundError: No module named" in done.stderr

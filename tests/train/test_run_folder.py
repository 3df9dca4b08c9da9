"""The folder of a run: nothing of anybody else's is removed, one process at a time writes there."""

import hashlib
import json
import shutil
import threading
from pathlib import Path

import pytest

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory, folder_claim
from mmoe.run.console import SilentReporter
from mmoe.run.folder_claim import FolderClaim
from mmoe.train import Interrupted, train_run
from mmoe.train.backtest import BacktestSettings, backtest

SHORT = ("training.epochs=1", "training.batch_size=1024", "tasks.click.weight=1.0")


def _tree(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(name="quick")
def _quick(monkeypatch):
    """No wait for another process that may be about to end."""
    monkeypatch.setattr(folder_claim, "_MOMENT", 0.0)


@pytest.fixture(scope="module")
def finished(funnel_config, funnel_table, tmp_path_factory):
    """A run of several checkpoints, to be copied."""
    from mmoe.datasets.rows.splits import Splits

    table = funnel_table
    splits = Splits(train=table[:3000], validation=table[3000:3500], test=table[3500:], origin="l")
    overrides = [*SHORT, "training.epochs=2", "training.keep_checkpoints=9"]
    overrides.append("training.checkpoint_every_steps=1")
    config = config_from_dict(set_values(funnel_config, overrides))
    run = tmp_path_factory.mktemp("finished") / "run"
    train_run(config, run, splits=splits)
    return run, config, splits


@pytest.fixture(name="copied")
def _copied(finished, tmp_path):
    """A copy of that run, and a function that resumes it."""
    run, config, splits = finished
    copy = Path(shutil.copytree(run, tmp_path / "run"))

    def resume(**keywords):
        return train_run(config, copy, splits=splits, resume=True, **keywords)

    return copy, resume


@pytest.mark.parametrize("holds", ["checkpoint/model.pt", "tensorboard/events", "history.json"])
def test_a_projects_folder_is_no_dead_run(holds, train, tmp_path):
    out = tmp_path / "project"
    (out / "checkpoint").mkdir(parents=True)
    (out / "config.yaml").write_text("mine: true")
    (out / holds).parent.mkdir(exist_ok=True)
    (out / holds).write_text("{}")
    before = _tree(out)
    with pytest.raises(ValueError, match=r"project: holds checkpoint, config.yaml.* but no mmoe\."):
        train("project", *SHORT, resume=True)
    assert _tree(out) == before
    assert (out / "checkpoint").is_dir()


def test_a_lost_index_of_a_run_without_a_mark_names_its_checkpoints(copied):
    run, resume = copied
    (run / "checkpoint" / "index.json").unlink()
    (run / "mmoe.json").unlink()
    before = _tree(run)
    with pytest.raises(ValueError, match=r"checkpoint/ holds step-00000001, step-00000002, .*no i"):
        resume()
    assert _tree(run) == before


def test_a_lost_index_is_made_anew_from_what_the_checkpoints_say(copied, finished, assert_same):
    """Where they say it; else it is refused."""
    run, resume = copied
    index = run / "checkpoint" / "index.json"
    before = json.loads(index.read_text())
    index.unlink()
    resume()
    after = json.loads(index.read_text())
    assert (after["latest"], after["best"]) == (before["latest"], before["best"])
    assert_same(run, finished[0])
    CheckpointFolder(run / "checkpoint").step("best").joinpath("state.json").unlink()
    index.unlink()
    tree = _tree(run)
    with pytest.raises(ValueError, match=r"holds step-00000001, .*index.json, which names the lat"):
        resume()
    assert _tree(run) == tree


def test_a_damaged_mark_is_refused_and_so_is_none(copied):
    run, resume = copied
    for content in ("", '{"mmoe": "run"', "[1]", '{"mmoe": "run", "format": 9}'):
        (run / "mmoe.json").write_text(content)
        before = _tree(run)
        with pytest.raises(ValueError, match=r"mmoe.json: cannot be relied on \(.*; choose"):
            resume()
        assert _tree(run) == before
    (run / "mmoe.json").unlink()
    with pytest.raises(ValueError, match=r"but no mmoe.json, the mark of a run"):
        resume()


def test_a_live_run_without_a_checkpoint_is_not_cleared(train, tmp_path, quick):
    """Its folder has a config and nothing to resume: once it counted as dead."""
    refused: list[str] = []

    class Second(SilentReporter):
        def track(self, what, total, unit, *, done=0):
            if what.startswith("epoch") and not refused:
                before = _tree(tmp_path / "run")
                with pytest.raises(ValueError, match=r"trains into it already") as error:
                    train("run", *SHORT, resume=True)
                refused.append(str(error.value))
                assert _tree(tmp_path / "run") == before
            return super().track(what, total, unit, done=done)

    train("run", *SHORT, reporter=Second())
    assert refused


def _dead_before_its_first_checkpoint(train, tmp_path, dies_after) -> Path:
    with pytest.raises(Interrupted) as stopped:
        train("run", *SHORT, reporter=dies_after(0))
    assert (stopped.value.folder, stopped.value.saved) == (tmp_path / "run", False)
    return tmp_path / "run"


@pytest.mark.parametrize("left", [(), ("notes.txt",)], ids=["nothing", "notes"])
def test_a_run_that_takes_itself_away_while_another_would_go_on(train, tmp_path, monkeypatch, left):
    """Its mark is gone between the first look and the lock."""
    out, hold = tmp_path / "run", FolderClaim.hold
    with FolderClaim("run") as claim:
        claim.create(out)

    def late(claim, folder):
        (folder / "mmoe.json").unlink()
        for name in left:
            (folder / name).write_text("mine")
        hold(claim, folder)

    monkeypatch.setattr(FolderClaim, "hold", late)
    if left:
        with pytest.raises(ValueError, match=r"run: holds .*notes.txt, but no mmoe.json"):
            train("run", *SHORT, resume=True)
        assert (out / "notes.txt").read_text() == "mine"
    else:
        assert "click" in train("run", *SHORT, resume=True).metrics["tasks"]


def test_a_link_that_leads_nowhere_and_a_folder_of_others_are_called_so(train, tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"run: is a link to .*nowhere, which is not there; m"):
            train("run", *SHORT, resume=resume)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"exists already; continue it with --resume"):
        train("full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["note.txt"]


def test_files_of_others_in_a_dead_run_stay(train, tmp_path, dies_after):
    run = _dead_before_its_first_checkpoint(train, tmp_path, dies_after)
    mine = ["notes.txt", "checkpoint/my.pt", "tensorboard/plot.png", "vocabulary/list.txt",
            "checkpoint/step-00000001/why.txt", "step.yaml", ".mine"]  # fmt: skip
    for name in mine:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(f"mine: {name}")
    before = _tree(run)
    train("run", *SHORT, resume=True)
    after = _tree(run)
    assert {name: after[name] for name in mine} == {name: before[name] for name in mine}


def test_a_config_that_was_changed_in_a_dead_run_stays(train, tmp_path, dies_after):
    run = _dead_before_its_first_checkpoint(train, tmp_path, dies_after)
    with (run / "config.yaml").open("a") as file:
        file.write("# my comment\n")
    before = _tree(run)
    with pytest.raises(ValueError, match=r"config.yaml: was changed since the run wrote it, and t"):
        train("run", *SHORT, resume=True)
    assert _tree(run) == before


def test_files_of_others_among_checkpoints_stay(copied):
    run, resume = copied
    (run / "checkpoint" / "backup").mkdir()
    (run / "checkpoint" / "backup" / "weights").write_text("mine")
    stray = run / "checkpoint" / "step-00000099"
    stray.mkdir()
    (stray / "state.json").write_text("{}")
    (run / "checkpoint" / ".step-00000100.7.tmp").mkdir()
    resume()
    assert (run / "checkpoint" / "backup" / "weights").read_text() == "mine"
    assert not stray.exists()
    assert not list((run / "checkpoint").glob(".*"))


@pytest.mark.parametrize("dies", ["mkdir", "mark"])
def test_a_death_while_the_folder_is_made(train, tmp_path, dies):
    run = tmp_path / "run"
    run.mkdir()
    if dies != "mkdir":
        holder = folder_claim.Holder.here()
        (run / "mmoe.lock").write_text(json.dumps({**vars(holder), "pid": 7}))
        (run / ".mmoe.lock").write_text("")
    if dies == "mark":
        (run / ".mmoe.json.7.tmp").write_text('{"mmoe"')
    train("run", *SHORT, resume=dies == "mark")
    assert not list(run.glob(".*"))
    assert not (run / "mmoe.lock").exists()


def test_a_run_whose_folder_is_removed_ends(train, tmp_path, capsys, monkeypatch):
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)

    class Removes(SilentReporter):
        def say(self, message):
            if message.startswith("epoch 1/"):
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(ValueError, match=r"run: the folder is gone, removed or moved away while"):
        train("run", "training.epochs=3", "training.batch_size=1024", reporter=Removes())
    assert not (tmp_path / "run").exists(), "it is not begun anew"
    assert not broken


def test_a_full_disk_under_tensorboard_is_one_error(train, tmp_path, monkeypatch):
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    opened = Path.open

    def on_a_full_disk(path, *arguments, **keywords):
        if "tfevents" in path.name:
            return opened(Path("/dev/full"), "wb")
        return opened(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", on_a_full_disk)
    with pytest.raises(OSError, match=r"tensorboard: TensorBoard's events cannot be written: .*28"):
        train("run", *SHORT)
    assert not broken
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverged_advises_no_resume(train, tmp_path, monkeypatch, mmoe):
    from mmoe.errors import Diverged
    from mmoe.train.step import StepProgram

    forward = StepProgram.forward

    def diverges(program, step):
        if program.state.position.step == 4:
            raise Diverged(
                "training step 5: the loss is nan; lower training.optimizer.learning_rate"
            )
        forward(program, step)

    monkeypatch.setattr(StepProgram, "forward", diverges)
    settings = ("training.epochs=3", "training.batch_size=1024")
    with pytest.raises(
        ValueError, match=r"step 5: .*; with another --out, for a --resume of .* would diverge ag"
    ):
        train("run", *settings)
    with pytest.raises(
        ValueError, match=r"because training diverged \(training step 5: .*other --o"
    ):
        RunDirectory.open(tmp_path / "run").metrics()
    code, _, err = mmoe("report", tmp_path / "run")
    assert code == 2
    assert "diverged" in err and "--resume" not in err


def test_a_backtest_folder_is_refused_as_a_run_and_a_run_as_a_backtest(copied, finished, tmp_path):
    run, _ = copied
    _, config, splits = finished
    with FolderClaim("backtest") as claim:
        claim.create(tmp_path / "days")
    with pytest.raises(
        ValueError, match=r"days: is the folder of a backtest; choose another --out"
    ):
        train_run(config, tmp_path / "days", splits=splits, resume=True)
    data = config.data.model_copy(update={"path": "log.parquet"})
    with_data, settings = config.model_copy(update={"data": data}), BacktestSettings(column="day")
    with pytest.raises(ValueError, match=r"run: is the folder of a run; choose another --out"):
        backtest(with_data, run, settings, resume=True)

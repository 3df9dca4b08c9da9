"""Ctrl-C: what it advises, and where there is nothing to advise."""

import pytest

from mmoe.train import Interrupted


def _interrupts(monkeypatch, name, error=None):
    def raises(*_, **__):
        raise error or KeyboardInterrupt

    monkeypatch.setattr(name, raises)


def test_train_prints_the_command_that_goes_on(mmoe, monkeypatch, tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    _interrupts(monkeypatch, "mmoe.train.train_run", Interrupted(run, saved=True))
    code, _, err = mmoe("train", "synthetic-funnel", "--set", "training.epochs=2")
    assert code == 130
    assert err == (
        "mmoe: interrupted; `mmoe train synthetic-funnel --set training.epochs=2 --out "
        f"'{run}' --resume` goes on from what was saved\n"
    )
    _, _, err = mmoe("train", "synthetic-funnel", f"--out={run}", "--resume")
    assert f"`mmoe train synthetic-funnel '--out={run}' --resume` goes on" in err
    _interrupts(monkeypatch, "mmoe.train.train_run", Interrupted(run, saved=False))
    assert mmoe("train", "synthetic-funnel", "--out", run)[2].endswith("--resume` begins again\n")


def test_backtest_prints_it_too(mmoe, monkeypatch, tmp_path):
    _interrupts(monkeypatch, "mmoe.train.backtest.backtest", Interrupted(tmp_path, saved=True))
    code, _, err = mmoe("backtest", "synthetic-funnel", "--column", "day")
    assert code == 130
    assert f"backtest synthetic-funnel --column day --out {tmp_path} --resume` goes on" in err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["train", "synthetic-funnel"], "mmoe.train.train_run"),  # nothing is written yet
        (["evaluate", "run"], "mmoe.run.RunDirectory.open"),
        (["report", "run"], "mmoe.report.write_report"),
        (["unshard", "run", "--output", "x.safetensors"], "mmoe.run.RunDirectory.open"),
        (
            ["init", "log.csv", "--label", "x", "--out", "y"],
            "mmoe.datasets.infer.told.rows_to_look_at",
        ),
        (["score", "run", "--input", "x", "--output", "y.parquet"], "mmoe.score.score_files"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_gone_on_with_advises_nothing(command, name, mmoe, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mmoe.run.RunDirectory.open", lambda path: path)
    _interrupts(monkeypatch, name)
    assert mmoe(*command) == (130, "", "mmoe: interrupted\n")


def test_a_folder_of_scores_can_be_gone_on_with(mmoe, monkeypatch, tmp_path):
    monkeypatch.setattr("mmoe.run.RunDirectory.open", lambda path: path)
    _interrupts(monkeypatch, "mmoe.score.score_files")
    _, _, err = mmoe("score", "run", "--input", "x", "--output", tmp_path)
    assert f"--output {tmp_path} --resume` goes on from what was saved" in err


def test_ranks_are_told_without_their_launcher(mmoe, monkeypatch, tmp_path):
    from mmoe import cli
    from mmoe.cli import output

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("sys.argv", ["mmoe", "train", "x.yaml"])
    assert output._same_command(tmp_path) == f"the same command with --out {tmp_path} --resume"
    _interrupts(monkeypatch, "mmoe.cli._run", output.Stopped("and so on"))
    with pytest.raises(KeyboardInterrupt, match="and so on"):
        cli._run_on_ranks()

"""Ranks that do not go on together all end: no endless wait, one line, no traceback."""

import json
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.parallel import first_other, object_collectives
from mmoe.parallel.launch import rank_watch, run_as_rank
from mmoe.parallel.launch.rank_watch import Failure, RankWatch
from mmoe.run import RunDirectory
from mmoe.score import folder_start
from mmoe.score.file_scorer import Output
from mmoe.score.scorer import ScoreRequest
from mmoe.train import claim as run_start
from mmoe.train import evaluate, train_run
from mmoe.train.claim import RunClaim
from mmoe.train.prepare import prepare
from mmoe.train.warm_start import WarmStartReport
from tests.parallel.test_commands import CONFIG
from tests.ranks import launch, started, wait_for

# Without its watch a rank would wait for half an hour
PATIENCE = 60


@pytest.mark.parametrize(
    ("arguments", "only", "message"),
    [
        (["train", "synthetic-funnel"], {1: ["--wrong"]}, "No such option: --wrong"),
        (
            ["train", "synthetic-funnel"],
            {1: ["--help"]},
            "rank 1 was started with another command than rank 0: 'train synthetic-funnel --help'",
        ),
        (
            ["evaluate"],
            {0: ["runs/a"], 1: ["runs/b"]},
            "rank 1 was started with another command than rank 0: 'evaluate runs/b' instead of "
            "'evaluate runs/a'",
        ),
    ],
    ids=["option", "help", "command"],
)
def test_command_lines_that_differ(arguments, only, message):
    ended = launch(arguments, 2, only=only, seconds=PATIENCE)
    (said,) = [rank.err for rank in ended if rank.err]
    assert said.startswith("mmoe: error: ")
    assert message in said
    assert len(said.splitlines()) == 1
    assert 2 in [rank.code for rank in ended]
    assert all(rank.code in (1, 2) for rank in ended)


@pytest.mark.parametrize(
    ("sent", "code", "message"),
    [
        (signal.SIGINT, 130, "rank 1 was interrupted; the same command with --resume goes on"),
        (signal.SIGTERM, 1, "rank 1 was told to end (SIGTERM); start the ranks again with --resu"),
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_to_one_rank_ends_all(tmp_path, sent, code, message):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("EPOCHS", "10000"))
    with started(["train", config, "--quiet", "--out", tmp_path / "run"], 2) as processes:
        wait_for(tmp_path / "run" / "checkpoint" / "index.json")
        processes[1].send_signal(sent)
        errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert errors[0] == ""
    assert errors[1].startswith(f"mmoe: error: {message}")
    assert len(errors[1].splitlines()) == 1
    assert [process.returncode for process in processes] == [1, code]


_WATCHING = """
import io, os, sys, time
from mmoe.parallel import ensure_process_group
from mmoe.parallel.launch.rank_watch import RankWatch
ensure_process_group()
RankWatch(silence=2.0)
sys.stderr = io.StringIO()  # as that of all ranks but the first
print("watching", flush=True)
time.sleep(100)
"""


def test_a_frozen_rank_0_is_noticed_though_it_holds_the_store():
    """Its sockets stay open, and whoever asks it something gets no answer."""
    with started(["-c", _WATCHING], 2) as processes:
        for process in processes:
            process.wait_for("watching")
        processes[0].send_signal(signal.SIGSTOP)
        _, said = processes[1].communicate(timeout=PATIENCE)
        assert "mmoe: error: rank 1: rank 0" in said
        assert "gives no sign of life any more; start the ranks again with --resume" in said
        assert processes[1].returncode == 1


_KILLED_WHILE_THE_OTHERS_MAKE_A_GROUP = """
import os, signal
import torch.distributed as dist
from mmoe.parallel import ensure_process_group, rank
from mmoe.parallel.launch.rank_watch import RankWatch
ensure_process_group()
RankWatch(silence=1000.0)
if rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.new_group(backend="gloo")
"""


def test_a_rank_that_is_killed_is_noticed_where_the_others_wait_in_the_store():
    """No connection to it is waited on: they wait for its address."""
    with started(["-c", _KILLED_WHILE_THE_OTHERS_MAKE_A_GROUP], 3) as processes:
        for rank in (0, 2):
            _, said = processes[rank].communicate(timeout=PATIENCE)
            assert f"mmoe: error: rank {rank}: rank 1 has ended without a word" in said
            assert processes[rank].returncode == 1


def test_who_names_a_lost_rank(monkeypatch):
    """All others do, not the lost one itself, should it come back."""
    said = "rank 1, 12 has ended without a word (killed, or its machine is gone); start the ranks"
    said += " again with --resume"
    failure = Failure.decode(Failure(0, said, [1, 12]).encode().encode())
    monkeypatch.setattr(rank_watch, "_failure_or_none", lambda _: failure)
    watch = object.__new__(RankWatch)
    watch._main = None
    for watch.rank, lost in ((2, said), (12, None), (1, None), (0, said)):
        assert watch.lost() == lost


def test_a_rank_that_has_waited_too_long():
    error = RuntimeError("[gloo/…/unbound_buffer.cc:78] Timed out waiting 3000ms for recv")
    code, said, names_rank = run_as_rank._what_to_say(error, 2)
    assert code == 1 and names_rank
    assert said is not None
    assert said.startswith("rank 2 has waited for another one longer than parallel.timeout_seconds")


def test_what_a_run_left_without_a_checkpoint_goes(tmp_path):
    """With its history, which is written while the first checkpoint is under way."""
    run = RunDirectory(tmp_path / "run")
    with RunClaim() as claim:
        claim.create(run.path)
        for path in (run.config_file, run.plan_file, run.history_file):
            path.touch()
        claim.give_up(run)
    assert not run.path.exists()


def test_an_empty_file_does_not_stop_the_ranks(funnel_table, funnel_config, tmp_path):
    """Rank 0 has it, and rank 1 nothing, or rows."""
    run, log = tmp_path / "run", tmp_path / "log"
    log.mkdir()
    table = funnel_table.slice(0, 1000)
    pq.write_table(table, tmp_path / "train.parquet")
    settings = [
        f"data.path={tmp_path / 'train.parquet'}",
        "training.epochs=1",
        "training.embedding_backend=torchrec",
    ]
    train_run(config_from_dict(set_values(funnel_config, settings)), run)
    for number, rows in enumerate((0, 5, 7)):
        pq.write_table(table.slice(0, rows), log / f"{number}.parquet")
    for source, rows in ((log / "0.parquet", [0]), (log, [0, 5, 7])):
        out = tmp_path / f"scores-{len(rows)}"
        ended = launch(["score", run, "--input", source, "--output", out], 2, seconds=PATIENCE)
        assert [rank.code for rank in ended] == [0, 0], ended[0].err
        assert [pq.read_table(path).num_rows for path in sorted(out.glob("*.parquet"))] == rows


# What a second rank would tell


def _second_rank_tells(monkeypatch, change):
    for module in (object_collectives, run_start):  # where `first_other` and `all_see` look it up
        monkeypatch.setattr(module, "from_all", lambda value: [value, change(value)])


def test_the_first_rank_that_differs(monkeypatch):
    for of_ranks, found in (
        ("a", None),
        ("aaa", None),
        ("aaba", (2, "b", "a")),
        ("aabc", (2, "b", "a")),
        ("abb", (1, "b", "a")),
    ):
        monkeypatch.setattr(
            object_collectives, "from_all", lambda value, of_ranks=of_ranks: of_ranks
        )
        assert first_other("a") == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rows of train, validation and test": [1, 2, 3]},
            r"rank 1 has read other data than rank 0: the rows of train, validation and test "
            r"differ \(\[1, 2, 3\] and \[3200, 400, 400\]\); give all ranks the same files",
        ),
        ({"ids": "x"}, "rank 1 has read other data than rank 0: the ids differ; give all"),
        ({"labels": 1}, "rank 1 has read other data than rank 0: the labels differ; give all"),
        (
            {"sizes or content of the files": "x"},
            "rank 1 has read other data than rank 0: the sizes or content of the files differ",
        ),
    ],
    ids=["rows", "ids", "labels", "bytes"],
)
def test_ranks_that_read_other_rows_are_told(
    monkeypatch, funnel_table, funnel_config, tmp_path, change, message
):
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    config = set_values(funnel_config, [f"data.path={tmp_path / 'log.parquet'}"])
    prepared = prepare(config_from_dict(config))
    run_start.same_data_on_all_ranks(prepared)
    _second_rank_tells(monkeypatch, lambda seen: seen | change)
    with pytest.raises(ValueError, match=message):
        run_start.same_data_on_all_ranks(prepared)


def test_other_ids_are_another_fingerprint(funnel_table, funnel_config):
    config = config_from_dict(funnel_config)
    one, same, other = (
        FeatureEncoder.fit(config, table, "log").fingerprint()
        for table in (funnel_table[:500], funnel_table[:500], funnel_table[500:1000])
    )
    assert one == same != other


def test_a_folder_that_a_rank_cannot_see(monkeypatch, tmp_path):
    _second_rank_tells(monkeypatch, lambda sees: not sees)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ValueError, match=r"rank 1 cannot see .*, which rank 0 has made"):
        run_start.all_see(RunDirectory(tmp_path))


def test_ranks_that_continue_another_checkpoint(monkeypatch):
    _second_rank_tells(monkeypatch, lambda report: report | {"step": 60})
    with pytest.raises(
        ValueError,
        match=r"--warm-start runs/monday: rank 1 has read another checkpoint there than rank 0 "
        r"\(step: 120 there, 60 here; rank 0's is called there, rank 1's here\); let that run",
    ):
        run_start.same_warm_start_on_all_ranks(WarmStartReport("runs/monday", 120))


def _run(folder: Path) -> RunDirectory:
    """One that was trained, as far as scoring asks before it opens its model."""
    config = {
        "features": [{"kind": "numeric", "name": "x"}],
        "tasks": [{"name": "y", "label": "y"}],
    }
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(json.dumps(config))
    return RunDirectory(folder / "run")


def _begin_to_score(folder: Path, by: dict[str, str]) -> None:
    request, to = ScoreRequest(str(folder / "a.csv")), Output(folder / "out")
    folder_start.folder_job(_run(folder), request, to, by)


def test_ranks_that_find_other_files_to_score(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    _second_rank_tells(monkeypatch, lambda names: [*names, "b.csv"])
    with pytest.raises(ValueError, match=r"rank 1 finds other files there than rank 0 \(2 and 1\)"):
        _begin_to_score(tmp_path, {})


def test_ranks_that_score_with_other_models(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    _second_rank_tells(monkeypatch, lambda told: told | {"the model": "b"} if told == by else told)
    by = {"the model": "a", "--keep": "none"}
    with pytest.raises(
        ValueError, match="rank 1 would score with the model b, rank 0 with a; name"
    ):
        _begin_to_score(tmp_path, by)


def test_ranks_that_evaluate_other_rows(monkeypatch):
    _second_rank_tells(monkeypatch, lambda count: count - 1)
    with pytest.raises(ValueError, match="rank 1 has read 9 rows to evaluate on, rank 0 10; give"):
        evaluate._check_same_rows(10)

"""The command line on two ranks: one message where something is wrong, and nobody who waits."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.forked import ROOT
from tests.ranks import launch, started, wait_for

CONFIG = """
name: dense
data:
  source: synthetic-funnel
  options: {rows: 4000, users: 300, items: 100}
  split: {by: time, column: timestamp}
tasks:
  - {name: click, label: click}
features:
  - {kind: numeric, name: price, log: true}
  - {kind: numeric, name: age}
model: {kind: mmoe, num_experts: 2, expert: {hidden: [8]}, tower: {hidden: [4]}}
training: {epochs: EPOCHS, patience: EPOCHS, batch_size: 100}
"""


@pytest.fixture(name="config")
def _config(tmp_path):
    def write(epochs=1):
        path = tmp_path / "config.yaml"
        path.write_text(CONFIG.replace("EPOCHS", str(epochs)))
        return path

    return write


def test_configs_that_differ_are_told_apart(config, tmp_path):
    ended = launch(
        ["train", config(), "--out", tmp_path / "run"],
        2,
        only={1: ["--set", "training.batch_size=50", "model.num_experts=3"]},
    )
    assert [rank.code for rank in ended] == [2, 2]
    (said,) = [rank.err for rank in ended if rank.err]
    assert "rank 1 was started with another config than rank 0" in said
    assert "model.num_experts: 2 there, 3 here" in said
    assert "training.batch_size: 100 there, 50 here" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["report", "runs/x"], "mmoe report runs on one process"),
        (["train", "--wrong"], "No such option: --wrong"),
    ],
    ids=["config", "report", "usage"],
)
def test_every_rank_ends_and_one_says_why(arguments, message):
    ended = launch(arguments, 2)
    assert [rank.code for rank in ended] == [2, 2]
    (said,) = [rank.err for rank in ended if rank.err]
    assert message in said
    assert "Traceback" not in said
    assert "rank 1: " not in said  # it is not that rank's own


def test_what_libraries_write_is_no_part_of_a_result(tmp_path):
    """C++ writes to the descriptor, past Python's stream."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "from mmoe.parallel.launch.run_as_rank import run_as_rank\n"
        "run_as_rank(lambda: (os.write(1, b'[Gloo] connected'), print('{}')), [])\n"
    )
    with started([program], 2) as ranks:
        ended = [rank.communicate(timeout=120) for rank in ranks]
    assert [out for out, _ in ended] == ["{}\n", ""]
    assert all("[Gloo] connected" in err for _, err in ended)


def test_an_error_of_one_rank_names_it():
    arguments = ["train", "synthetic-funnel"]
    for rank, named in ((1, "rank 1: "), (0, "")):
        ended = launch(arguments, 2, only={rank: ["--set", "training.epochs=0"]})
        (said,) = [rank.err for rank in ended if rank.err]
        named = rf"mmoe: error: {named}\S+/synthetic-funnel.yaml: training.epochs: "
        assert re.match(named, said) and ended[rank].code == 2


def test_a_rank_that_is_killed_is_named(config, tmp_path):
    with started(["train", config(epochs=10_000), "--out", tmp_path / "run"], 3) as processes:
        wait_for(tmp_path / "run" / "checkpoint" / "index.json")
        os.kill(processes[1].pid, signal.SIGKILL)
        before = time.monotonic()
        for rank in (0, 2):
            _, said = processes[rank].communicate(timeout=60)
            assert f"rank {rank}: rank 1 has ended without a word" in said
            assert "--resume" in said
            assert processes[rank].returncode == 1
        assert time.monotonic() - before < 30


@pytest.mark.slow
def test_torchrun_starts_dead_ranks_again_and_the_run_goes_on(config, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    command = ["-m", "mmoe", "train", config(epochs=40), "--out", run]
    with log.open("w") as stream:
        agent = subprocess.Popen(
            [sys.executable, *torchrun, *map(str, command)],
            stdout=stream, stderr=stream, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            wait_for(run / "checkpoint" / "index.json")
            ranks = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            os.kill(int(ranks[-1]), signal.SIGKILL)
            assert agent.wait(180) == 0, log.read_text()[-3000:]
        finally:
            agent.kill()
    said = log.read_text()
    assert "has ended without a word" in said
    assert "resuming after step" in said
    assert json.loads((run / "metrics.json").read_text())["train"]["epochs"] == 40


EXCHANGE = """
name: exchange
data: {path: PATH, split: {validation: 0.2, test: 0.2}}
tasks: [{name: click, label: click}]
features: [{kind: numeric, name: price}, {kind: numeric, name: age}]
model: {num_experts: 4, gate: {kind: top_k, k: 2}, expert: {hidden: [8, 4]}, tower: {hidden: []}}
training: {epochs: 2, batch_size: 64}
parallel: {experts: spread, host_size: 1}
"""


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory):
    """The epochs of history.json by how rows and experts met: ranks of two hosts."""
    folder = tmp_path_factory.mktemp("exchange")
    draw = np.random.default_rng(0)
    columns = {"price": draw.normal(size=800), "age": draw.normal(size=800)}
    clicks = (columns["price"] + draw.normal(size=800) > 0).astype(int)
    pq.write_table(pa.table({**columns, "click": clicks}), folder / "log.parquet")
    config = folder / "config.yaml"
    config.write_text(EXCHANGE.replace("PATH", str(folder / "log.parquet")))
    found = {}
    for name, settings in {
        "rows": [],
        "chunks": ["parallel.chunks=3"],
        "hierarchical": ["parallel.exchange=hierarchical"],
        "gathered": ["parallel.exchange=gathered"],
        "gathered of batch norm": ["parallel.exchange=gathered", "model.expert.norm=batch"],
        "auto": ["parallel.exchange=auto", "training.epochs=4"],
    }.items():
        out = folder / name
        ended = launch(["train", config, "--out", out, "--set", "seed=3", *settings], 2)
        assert [rank.code for rank in ended] == [0, 0], ended
        said = ended[0].out + ended[0].err
        found[name] = (json.loads((out / "history.json").read_text())["epochs"], said)
    return found


def test_how_rows_and_experts_meet_changes_no_loss(runs):
    losses = {name: [epoch["loss"]["click"] for epoch in run] for name, (run, _) in runs.items()}
    losses.pop("gathered of batch norm")
    for name, found in losses.items():
        assert found[:2] == pytest.approx(losses["rows"], rel=1e-5), name


def test_each_epoch_says_what_its_steps_sent(runs):
    modes = {name: run[-1]["communication"]["modes"] for name, (run, _) in runs.items()}
    chosen = [choice for e in runs["auto"][0] for choice in e["communication"].get("choices", [])]
    assert modes.pop("auto") == [chosen[-1]["mode"]]
    assert all(one["mode"] != next_one["mode"] for one, next_one in pairwise(chosen))
    assert f"from call {chosen[0]['call']} of level 1: {chosen[0]['mode']}" in runs["auto"][1]
    assert modes == {
        "rows": ["rows travel"],
        "chunks": ["rows travel, 3 chunks"],
        "hierarchical": ["rows travel"],  # hosts of one rank have one level
        "gathered": ["weights travel"],
        "gathered of batch norm": ["rows travel"],  # which no copy can compute
    }
    for name, (run, said) in runs.items():
        for entry in run:
            sent = entry["communication"]
            assert sent["steps"] == 8
            for road in ("experts", "gradients"):
                assert sent[road]["megabytes_between_hosts"] > 0, (name, road)
                assert sent[road]["megabytes_inside_hosts"] == 0, (name, road)
                assert 0 <= sent[road]["share_hidden"] <= 1
        assert "a step sends" in said
        assert run[-1]["communication"]["modes"][0] in said
    # Forward: 32 bytes of sizes, rows of 2 numbers, codes; outputs of 4 numbers come back
    sizes = 2 * 32
    most = 64 * (2 * 4 * 2 + 4 * 2 * 2 + 2 * (4 * 4 * 2 + 2 * 4))
    assert sizes < 1e6 * runs["rows"][0][0]["communication"]["experts"]["megabytes_between_hosts"]
    assert 1e6 * runs["rows"][0][0]["communication"]["experts"]["megabytes_between_hosts"] < (
        2 * (sizes + most)
    )


@pytest.mark.parametrize("settings", [[], ["data.input=stream"]], ids=["held", "streamed"])
def test_a_regression_in_its_own_units_is_what_one_process_learns(tmp_path, settings):
    """Its mean and deviation are those of all ranks' rows."""
    draw = np.random.default_rng(1)
    columns = {"price": draw.normal(size=800), "age": draw.normal(size=800)}
    clicks = (columns["price"] > 0).astype(int)
    spent = 50_000 + 9_000 * columns["age"] + np.linspace(0, 20_000, 800)  # ranks' rows differ
    for n, part in enumerate(np.split(np.arange(800), 4)):
        rows = {name: values[part] for name, values in columns.items()}
        rows |= {"click": clicks[part], "spent": spent[part]}
        (tmp_path / "log").mkdir(exist_ok=True)
        pq.write_table(pa.table(rows), tmp_path / "log" / f"{n}.parquet")
    task = "{name: spent, label: spent, kind: regression}"
    text = EXCHANGE.replace("PATH", str(tmp_path / "log")).replace("click}]", f"click}}, {task}]")
    config = tmp_path / "config.yaml"
    config.write_text(text.replace("experts: spread, host_size: 1", "experts: replicated"))
    found = []
    for ranks in (1, 2):
        out = tmp_path / str(ranks)
        more = ["data.split.by=random", "seed=3", *settings]
        ended = launch(["train", config, "--out", out, "--set", *more], ranks)
        assert [rank.code for rank in ended] == [0] * ranks, ended
        epochs = json.loads((out / "history.json").read_text())["epochs"]
        rmse = json.loads((out / "metrics.json").read_text())["tasks"]["spent"]["rmse"]
        found.append([rmse / 1e4, *(epoch["loss"]["spent"] for epoch in epochs)])
    one, two = found
    assert two == pytest.approx(one, rel=1e-4)
    assert 0.1 < two[0] < 2

"""A task added to a frozen model on two ranks: what one process has, and old scores to the bit."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import load_config, set_values
from mmoe.parallel import ensure_process_group
from mmoe.run import RunDirectory
from mmoe.train import WarmStart, train_run
from tests.train.freezing.growing import config_of, grown_log, scores

pytestmark = pytest.mark.torchrec

RANKS = 2
DOMAINS = "model.domains={column: scene, towers: own}"
# By name: what is set, beside tables of TorchRec's
CASES = {
    "replicated, accumulated": [
        "parallel.experts=replicated",
        "training.accumulate_batches=2",
        "training.gradient_clip=0.5",
    ],
    "one new expert, spread": ["parallel.experts=spread", "model.num_experts=4"],
    "copies of tables that decay": [
        "training.embedding_optimizer.weight_decay=0.01",
        "training.embedding_backend=auto",
        "training.freeze=[experts, gates, towers, tables.user, tables.item, encoder]",
    ],
    "domains, tables that learn": [
        "tasks.2.domains=[shop, radio]",
        "parallel.experts=spread",
        "training.freeze=[experts, gates, towers, encoder]",
    ],
}
# The run to begin with, where it is not `before`
BEFORE = {"domains, tables that learn": "before-domains"}


@pytest.fixture(scope="module", name="log")
def _log(funnel_table) -> pa.Table:
    return grown_log(funnel_table)


@pytest.fixture(scope="module", name="folder")
def _folder(funnel_config, log, tmp_path_factory):
    """A run to begin with, and a config for each case."""
    folder = tmp_path_factory.mktemp("worlds")
    old = pc.not_equal(log["scene"], "radio")  # which comes as a domain later
    few = log.filter(pc.and_(pa.array(log["user"].to_numpy() < 30), old))
    pq.write_table(few.slice(0, 800), folder / "before.parquet")
    pq.write_table(log.slice(1000, 900), folder / "after.parquet")
    values = [
        f"data.path={folder}/before.parquet",
        "data.split.by=random",
        "training.embedding_backend=torchrec",
        "training.ema_decay=0.9",
        "model.expert.dropout=0",
        "model.expert.norm=batch",
        "model.gate.kind=top_k",
        "model.gate.k=2",
    ]
    train_run(config_of(funnel_config, *values), folder / "before")
    train_run(config_of(funnel_config, *values, DOMAINS), folder / "before-domains")
    values[0] = f"data.path={folder}/after.parquet"
    for name, settings in CASES.items():
        more = [DOMAINS] * (name in BEFORE)
        config = config_of(funnel_config, *values, *more, "model.num_experts=6", new=True)
        raw = set_values(config.model_dump(mode="json", exclude_none=True), settings)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(raw))
        first = folder / BEFORE.get(name, "before")
        (folder / f"{name}.warm_start").write_text(str(first))
    return folder


@pytest.fixture(scope="module", name="reports")
def _reports(folder, run_ranks):
    ranks = run_ranks("train.configs_world", RANKS, folder)
    one, two = ({n: run["train"]["frozen"] for n, run in rank.items()} for rank in ranks)
    assert one == two
    ensure_process_group()
    return one


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_what_one_process_trains(folder, reports, log, name):
    config = load_config(folder / f"{name}.yaml")
    first = BEFORE.get(name, "before")
    alone = train_run(config, folder / f"{name}-1", warm_start=WarmStart(folder / first))
    assert reports[name] == alone.metrics["train"]["frozen"]
    one, two = (json.loads((folder / f"{name}-{w}" / "history.json").read_text()) for w in (1, 2))
    assert two["epochs"][0]["loss"] == pytest.approx(one["epochs"][0]["loss"], abs=1e-5)
    before, after = (scores(RunDirectory(folder / run), log) for run in (first, f"{name}-2"))
    stay = "tables" not in {m for ms in reports[name]["changed_tasks"].values() for m in ms}
    assert (before.tobytes() == after.tobytes()) is stay
    training = CheckpointFolder(folder / f"{name}-2" / "checkpoint").training()
    moments = {key.split("/")[0] for key in training if key.startswith("optimizer.")}
    assert moments
    assert not any("experts.pools.0" in key or "gates.0" in key for key in moments)

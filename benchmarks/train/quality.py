"""How well our training learns, beside the honest rival on the same rows."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from benchmarks.train.batches import Tensors, read_batches
from benchmarks.train.bench import Bench
from benchmarks.train.configs import raw_config
from benchmarks.train.logs import Log

if TYPE_CHECKING:
    from mmoe.run import RunDirectory

PRECISION = "bf16"
Scores = Mapping[str, Mapping[str, float]]  # task → auc and logloss


def gaps(bench: Bench, workload: str = "big") -> list[Result]:
    """AUC and NE after one epoch, paired by seed; the worse of the tasks counts."""
    log = bench.log(workload)
    held_out = read_batches(log.workload, log.test)
    details = []
    for seed in range(bench.seeds):
        ours, first = _ours(bench, log, seed)
        theirs = _theirs(log, held_out, first, seed)
        details.append({"seed": seed, "ours": ours, "theirs": theirs})
        shown = ", ".join(
            f"{task} {ours[task]['auc']:.4f} / {theirs[task]['auc']:.4f}" for task in ours
        )
        bench.say(f"  seed {seed}: AUC ours / theirs: {shown}")
    tasks = log.workload.tasks
    auc = {t: [d["theirs"][t]["auc"] - d["ours"][t]["auc"] for d in details] for t in tasks}
    # Both entropies are of the same labels: the ratio of NEs is that of the log-losses
    ne = {
        t: [d["ours"][t]["logloss"] / d["theirs"][t]["logloss"] - 1 for d in details] for t in tasks
    }
    return [_worse("auc_gap", auc, details), _worse("ne_gap", ne, details)]


def _worse(key: str, gaps: Mapping[str, list[float]], details: list[dict]) -> Result:
    """The task with the larger mean gap: its mean, and the range over seeds."""
    task = max(gaps, key=lambda name: float(np.mean(gaps[name])))
    spread = Spread.of(gaps[task])
    mean = Spread(float(np.mean(gaps[task])), spread.low, spread.high, spread.count)
    means = (f"{side} {_mean_auc(details, side, task):.4f}" for side in ("ours", "theirs"))
    note = f"mean of {spread.count} seeds, {PRECISION}, {task}; AUC {', '.join(means)}"
    return Result(key=key, spread=mean, note=note, digits=5, details=details)


def _mean_auc(details: list[dict], side: str, task: str) -> float:
    return float(np.mean([detail[side][task]["auc"] for detail in details]))


@dataclass(frozen=True)
class FirstWeights:
    """Where training starts: the dense weights by name, and a row for each id of every table."""

    network: Mapping[str, Tensor]
    tables: Mapping[str, Tensor]


def _ours(bench: Bench, log: Log, seed: int) -> tuple[Scores, FirstWeights]:
    """By the library's own report on the test rows; and what it started from."""
    from benchmarks.train.ours import with_overrides
    from mmoe.train import train_run

    # As the rival has a row for every id, not a hash that lets ids collide
    raw = raw_config(log, precision=PRECISION, encoding="vocabulary", epochs=1, seed=seed)
    config, out = with_overrides(raw, bench.overrides), bench.empty_folder()
    run = train_run(config, out)
    metrics, first = run.metrics["tasks"], _first_weights(log, run.directory)
    shutil.rmtree(out)
    scores = {
        task: {"auc": metrics[task]["auc"], "logloss": metrics[task]["logloss"]}
        for task in log.workload.tasks
    }
    return scores, first


def _first_weights(log: Log, run: "RunDirectory") -> FirstWeights:
    """Drawn again as the run drew them; an id without a row has that of unseen ids."""
    from mmoe.datasets.features.encoder import FeatureEncoder
    from mmoe.models.build import build_ranker
    from mmoe.parallel import training_group

    config, encoder = run.config(), FeatureEncoder.load(run.vocabulary)
    torch.manual_seed(config.seed)
    tables = {}
    with training_group():
        ranker = build_ranker(config, encoder)
        for name, rows in log.workload.tables.items():
            rows_R = encoder.ids[name].lookup(pa.chunked_array([np.arange(rows)]), name)
            tables[name] = ranker.tables.table_weights()[name][torch.from_numpy(rows_R)]
    return FirstWeights(ranker.network.state_dict(), tables)


def _theirs(log: Log, held_out: list[Tensors], first: FirstWeights, seed: int) -> Scores:
    from benchmarks.train.plain_torch import Lookups, PlainTorch

    rival = PlainTorch(log.workload, bf16=PRECISION == "bf16", seed=seed)
    rival.model.start_from(first.network, first.tables)
    for batch in read_batches(log.workload, log.train, seed=[seed, 0]):  # the order of ours
        rival.step(Lookups(batch))
    predicted_NT = np.concatenate([rival.predict(Lookups(b)).numpy() for b in held_out])
    labels_NT = np.concatenate([batch.labels_BT.numpy() for batch in held_out])
    return {
        task: {
            "auc": float(roc_auc_score(labels_NT[:, t], predicted_NT[:, t])),
            "logloss": float(log_loss(labels_NT[:, t], predicted_NT[:, t].astype(np.float64))),
        }
        for t, task in enumerate(log.workload.tasks)
    }


QUALITY_RACES = (Race(("auc_gap", "ne_gap"), gaps),)

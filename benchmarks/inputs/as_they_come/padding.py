"""Histories padded to one length, against the same ones ragged: the same AUC is due.

Clicks go with the candidate's being in the history. 0 fills lists up, and is an item inside them.
The details have the AUC where nobody says what is padding (without times, which would be refused).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.inputs.section import Measured
from benchmarks.racing.harness import Target
from mmoe.config import SEQUENCE_ENCODERS, RunConfig, config_from_dict
from mmoe.datasets import infer_config
from mmoe.run.console import SilentReporter
from mmoe.train import train_run

TARGETS: dict[str, Target | None] = {"padding_gap": Target(0.0, at_most=True)}
_ROWS, _ITEMS, _LONGEST = 6_000, 60, 20
_SIDES = ("right", "left")
_PARTS = ["strength", "at"]


def _log(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng([seed, 36])
    lengths_N = np.minimum(draw.geometric(0.15, _ROWS) - 1, _LONGEST)
    seen = [draw.integers(0, _ITEMS, n).tolist() for n in lengths_N]
    for row in filter(None, seen):  # at an end 0 would be padding
        row[0], row[-1] = row[0] or 1, row[-1] or 1
    item_N = draw.integers(1, _ITEMS, _ROWS)
    for n in np.flatnonzero((lengths_N > 0) & (draw.random(_ROWS) < 0.4)):
        seen[n][draw.integers(0, lengths_N[n])] = int(item_N[n])
    known_N = [item in row for item, row in zip(item_N, seen, strict=True)]
    return {
        "item": item_N,
        "seen": seen,
        "strength": [draw.random(n).round(3).tolist() for n in lengths_N],
        "at": [sorted(draw.integers(1, 10**6, n).tolist()) for n in lengths_N],
        "click": (draw.random(_ROWS) < 0.2 + 0.6 * np.array(known_N)).astype(int),
    }


def _padded(log: dict[str, Any], side: str) -> pa.Table:
    def pad(row: list[Any]) -> list[Any]:
        fill = [0] * (_LONGEST - len(row))
        return [*row, *fill] if side == "right" else [*fill, *row]

    return pa.table(log | {name: [pad(row) for row in log[name]] for name in ["seen", *_PARTS]})


def _features() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way of reading a history: pooled, with weights, by each encoder, whole and cut."""
    for cut in ({}, {"max_length": 8}):
        shown = f", {cut['max_length']} items" if cut else ""
        for pooling in ("mean", "sum"):
            pooled = {"kind": "list", "name": "h", "column": "seen", "pooling": pooling, **cut}
            yield f"{pooling} of a list{shown}", pooled
            yield f"weighted {pooling}{shown}", {**pooled, "weights": "strength"}
        for encoder in SEQUENCE_ENCODERS.names():
            yield f"{encoder}{shown}", {
                "kind": "sequence", "name": "h", "columns": ["seen"], "target": ["item"],
                "times": "at", "encoder": encoder, **cut,
            }  # fmt: skip


def _config(feature: dict[str, Any], seed: int) -> RunConfig:
    return config_from_dict(
        {
            "name": "padding",
            "seed": seed,
            "features": [{"kind": "categorical", "name": "item"}, feature],
            "tasks": [{"name": "click", "label": "click"}],
            "model": {"num_experts": 2, "expert": {"hidden": [32]}, "tower": {"hidden": [8]}},
            "training": {"epochs": 3, "batch_size": 256, "loggers": []},
        }
    )


def _auc(config: RunConfig, table: pa.Table) -> float:
    with TemporaryDirectory() as folder:
        run = train_run(config, Path(folder) / "run", data=table, reporter=SilentReporter())
        return float(run.metrics["tasks"]["click"]["auc"])


def _first_config(ragged: pa.Table, padded: pa.Table) -> tuple[float, float]:
    """What an `init` config of the padded log gives there, and on the ragged one."""
    ragged, padded = ragged.drop_columns(_PARTS), padded.drop_columns(_PARTS)
    config = infer_config(padded, ["click"])[0]
    unpadded = {"padding": None, "padding_side": None}
    features = [
        feature.model_copy(update=unpadded) if feature.kind == "list" else feature
        for feature in config.features
    ]
    plain = config.model_copy(update={"features": features})
    return _auc(config, padded), _auc(plain, ragged)


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Trains each feature on the ragged log and on both padded ones, for the first two seeds."""
    gaps: dict[str, float] = {}
    aucs: dict[str, list[float]] = {}
    for seed in [*seeds][:2]:
        log = _log(seed)
        table = pa.table(log)
        padded = {side: _padded(log, side) for side in _SIDES}
        for name, feature in _features():
            ragged = _auc(_config(feature, seed), table)
            untimed = {key: value for key, value in feature.items() if key != "times"}
            unsaid = _auc(_config(untimed, seed), padded["right"])
            told = _config({**feature, "padding": 0}, seed)
            gap = max(abs(_auc(told, rows) - ragged) for rows in padded.values())
            gaps[name] = max(gap, gaps.get(name, 0.0))
            aucs.setdefault(name, []).extend([ragged, unsaid])
        for side, rows in padded.items():
            name = f"init, padded {side}"
            there, ragged = _first_config(table, rows)
            gaps[name] = max(abs(there - ragged), gaps.get(name, 0.0))
        worst = max(gaps, key=lambda one: gaps[one])
        say(f"seed {seed}: {gaps[worst]:.2g} at most ({worst})")
    return Measured(
        {"padding_gap": max(gaps.values())},
        {"by_feature": gaps, "auc_ragged_and_padding_unsaid_by_seed": aucs},
    )

"""Realistic run directories, made without training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mmoe.metrics.of_tasks import task_curves, task_metrics
from tests.own_kinds import own_keys


def _task(kind: str, rate: float, seed: int, oracle: bool) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    rows = 4000
    if kind == "regression":
        predictions = rng.gamma(3, 10, rows)
        labels = predictions + rng.normal(0, 8, rows)
        return task_metrics(kind, labels, predictions).values, task_curves(
            kind, labels, predictions
        )
    truth = rng.beta(0.8, 0.8 * (1 - rate) / max(rate, 1e-9), rows) if rate else np.zeros(rows)
    labels = (rng.random(rows) < truth).astype(float)
    logits = np.log(np.clip(truth, 1e-4, 0.999) / np.clip(1 - truth, 1e-3, 1))
    predictions = 1 / (1 + np.exp(-(0.95 * logits + rng.normal(0, 0.5, rows))))
    known = truth if oracle else None
    metrics = task_metrics(
        "binary", labels, predictions, groups=rng.integers(0, 300, rows), oracle=known
    ).values
    return metrics, task_curves("binary", labels, predictions, oracle=known)


def _history(tasks: dict[str, dict], epochs: int, best: int) -> dict[str, Any]:
    entries = []
    for epoch in range(1, epochs + 1):
        loss, validation = {}, {}
        for name, metrics in tasks.items():
            if "rmse" in metrics:
                rmse = metrics["rmse"]
                loss[name] = rmse**2 * (1 + 2 * np.exp(-epoch))
                validation[name] = {"rmse": rmse * (1 + np.exp(-epoch)), "mae": rmse}
                continue
            drift = 0.3 * np.exp(-epoch) + 0.004 * max(0, epoch - best) ** 1.5
            loss[name] = metrics["logloss"] * (1 + 0.3 * np.exp(-epoch) - 0.01 * epoch)
            auc = metrics["auc"]
            validation[name] = {
                "auc": None if auc is None else auc - 0.2 * drift,
                "logloss": metrics["logloss"] * (1 + drift),
                "ne": 0.9,
            }
        entry = {"epoch": epoch, "loss": loss, "validation": validation, "best": epoch <= best}
        entries.append(entry | {"step": 100 * epoch, "seconds": 3.0, "rows_per_second": 60000.0})
    return {"epochs": entries, "monitor": "mean.auc"}


def _gates(names: list[str], kind: str, experts: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    if kind == "shared_bottom":
        return []
    if kind != "ple":
        return [_level(1, names, [f"expert {i + 1}" for i in range(experts)], None, rng)]
    levels = []
    columns = [f"{name} {i}" for name in names for i in (1, 2)]
    columns += [f"shared {i}" for i in range(1, 5)]
    for level, gates in ((1, [*names, "shared"]), (2, names)):
        visible = np.array(
            [
                [gate == "shared" or c.startswith(("shared ", f"{gate} ")) for c in columns]
                for gate in gates
            ]
        )
        levels.append(_level(level, gates, columns, visible, rng))
    return levels


def _level(level: int, gates: list[str], experts: list[str], visible: Any, rng: Any) -> dict:
    shape = (len(gates), len(experts))
    visible = np.ones(shape, bool) if visible is None else visible
    weights = np.where(visible, rng.gamma(0.7, 1.0, shape) + 1e-3, 0)
    weights /= weights.sum(axis=1, keepdims=True)
    entropy = 0.75 * -(weights * np.log(np.where(weights > 0, weights, 1))).sum(1)
    return {
        "level": level,
        "gates": gates,
        "experts": experts,
        "mean_weight": weights.tolist(),
        "entropy": entropy.tolist(),
        "effective_experts": np.exp(entropy).tolist(),
        "visible": visible.tolist(),
    }


@pytest.fixture
def fake_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run directory: `fake_run(tasks={"click": 0.2, "watch": "regression"}, ...)`.

    The number is the share of positives; 0 makes a task of one class.
    """

    def make(
        tasks: dict[str, float | str],
        *,
        kind: str = "mmoe",
        experts: int = 8,
        epochs: int = 8,
        oracle: bool = True,
        folder: str = "run",
    ) -> Path:
        run = tmp_path / folder
        run.mkdir()
        kinds = {n: "regression" if r == "regression" else "binary" for n, r in tasks.items()}
        config = {
            "name": f"fake-{kind}",
            "features": [{"kind": "categorical", "name": "user"}],
            "tasks": [{"name": n, "label": n, "kind": k} for n, k in kinds.items()],
            "model": own_keys({"kind": kind, "num_experts": experts}),
        }
        if "binary" not in kinds.values():
            config["training"] = {"monitor": "mean.rmse"}
        made = {
            name: _task(kinds[name], 0.0 if rate == "regression" else float(rate), seed, oracle)
            for seed, (name, rate) in enumerate(tasks.items())
        }
        metrics = {name: values for name, (values, _) in made.items()}
        contents = {
            "metrics.json": {
                "tasks": metrics,
                "validation": metrics,
                "train": {
                    "rows": 480_000,
                    "seconds": 95.2,
                    "rows_per_second": 61234.5,
                    "epochs": epochs,
                },
                "seed": 1,
                "split_seed": 1,
                "versions": {"mmoe": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
            },
            "history.json": _history(metrics, epochs, best=max(1, epochs - 3)),
            "curves.json": {
                "tasks": {name: curves for name, (_, curves) in made.items()},
                "gates": _gates(list(tasks), kind, experts),
            },
        }
        (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        for name, content in contents.items():
            (run / name).write_text(json.dumps(content), encoding="utf-8")
        return run

    return make

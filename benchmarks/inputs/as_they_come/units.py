"""Labels in units of their own, and events that are rare: levels that a model has to begin at.

A spend of 50,000 on average beside a click, against the best error that its noise allows and the
click learnt alone; and a label of 0.5 % positives after one epoch of 20,000 rows, against the true
probabilities of fresh rows.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import mmoe
from benchmarks.inputs.section import Measured
from benchmarks.racing.harness import Target
from mmoe.config import config_from_dict
from mmoe.run.console import SilentReporter
from mmoe.train import train_run

TARGETS: dict[str, Target | None] = {
    "spend_rmse_over_best": Target(1.1, at_most=True),
    "click_loss": Target(-0.003),
    "base_rate_calibration": Target(0.8, highest=1.25),
}
_USERS, _ROWS = 200, 30_000
_MEAN, _DEVIATION, _NOISE = 50_000.0, 12_000.0, 5_000.0
_RARE_ROWS, _FRESH_ROWS, _RATE = 20_000, 200_000, 0.005
_RARE_SEEDS = 9


def _sigmoid(z_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z_N))


def _base(draw: np.random.Generator, rows: int, of_user: np.ndarray) -> tuple[dict[str, Any], Any]:
    x_N, user_N = draw.normal(size=rows), draw.integers(0, len(of_user), rows)
    return {"x": x_N, "user": user_N}, (x_N, of_user[user_N])


def _run(table: pa.Table, tasks: list[dict[str, Any]], seed: int, epochs: int) -> Any:
    """Trains the defaults of every key but the seed and the epochs."""
    config = config_from_dict(
        {
            "name": "units",
            "seed": seed,
            "features": [
                {"kind": "numeric", "name": "x"},
                {"kind": "categorical", "name": "user"},
            ],
            "tasks": tasks,
            "training": {"epochs": epochs, "batch_size": 512, "loggers": []},
        }
    )
    folder = TemporaryDirectory()
    run = train_run(config, Path(folder.name) / "run", data=table, reporter=SilentReporter())
    return folder, run


def _spend(seed: int) -> tuple[float, float]:
    """RMSE over that of the noise, and what the click's AUC loses beside the spend."""
    draw = np.random.default_rng([seed, 4])
    of_user = draw.normal(size=_USERS)
    columns, (x_N, user_N) = _base(draw, _ROWS, of_user)
    signal_N = 0.7 * x_N + 0.7 * user_N
    scale = np.sqrt(_DEVIATION**2 - _NOISE**2) / signal_N.std()
    columns["spend"] = _MEAN + scale * signal_N + _NOISE * draw.normal(size=_ROWS)
    columns["click"] = (draw.random(_ROWS) < _sigmoid(x_N - user_N)).astype(float)
    click = {"name": "click", "label": "click"}
    spend = {"name": "spend", "label": "spend", "kind": "regression"}
    found = {}
    for name, tasks in (("both", [click, spend]), ("click", [click])):
        folder, run = _run(pa.table(columns), tasks, seed, 5)
        with folder:
            found[name] = run.metrics["tasks"]
    both = found["both"]
    loss = both["click"]["auc"] - found["click"]["click"]["auc"]
    return both["spend"]["rmse"] / _NOISE, loss


def _calibration(seed: int) -> float:
    """Mean prediction over the mean true probability, on rows that nobody trained on."""
    draw = np.random.default_rng([seed, 6])
    of_user = draw.normal(size=_USERS)
    made = [_base(draw, rows, of_user) for rows in (_RARE_ROWS, _FRESH_ROWS)]
    shift = np.log(_RATE) - 0.5  # of e^(z), z of variance 1
    p_train, p_fresh = (_sigmoid(shift + 0.7 * x_N + 0.7 * u_N) for _, (x_N, u_N) in made)
    label_N = (draw.random(_RARE_ROWS) < p_train).astype(float)
    folder, run = _run(
        pa.table({**made[0][0], "buy": label_N}), [{"name": "buy", "label": "buy"}], seed, 1
    )
    with folder:
        predictions = mmoe.load(run.directory.path).predict(pa.table(made[1][0]))["pred_buy"]
        return float(predictions.to_numpy().mean() / p_fresh.mean())


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Trains both tasks and the click alone for up to three seeds, the rare label for nine."""
    ratios, losses = zip(*(_spend(seed) for seed in [*seeds][:3]), strict=True)
    spread = ", ".join(
        f"{ratio:.3f} ({loss:+.4f})" for ratio, loss in zip(ratios, losses, strict=True)
    )
    say(f"RMSE over that of the noise, and the click's AUC beside it: {spread}")
    found = [_calibration(seed) for seed in range(_RARE_SEEDS)]
    say(f"calibration at 0.5 % positives {[round(c, 3) for c in found]}")
    return Measured(
        {
            "spend_rmse_over_best": float(np.median(ratios)),
            "click_loss": float(np.median(losses)),
            "base_rate_calibration": float(np.median(found)),
        },
        {"spend": ratios, "click": losses, "calibration": found},
    )

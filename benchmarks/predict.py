"""What one prediction costs, and whether many threads disturb each other.

`python -m benchmarks.predict` trains the synthetic funnel with dropout and batch norms, loads the
run and predicts. The last line printed is JSON: `one_row_ms`; `threads_wrong`, the number of
concurrent calls that did not give the bits of one thread; and of `mmoe.load(RUN).predict` on single
rows of a DataFrame with 27 features `one_row_27_ms`, `threads_8_over_1` and the parts of a row.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from rich.table import Table

import mmoe
from benchmarks.racing.harness import last_line, new_table, show
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.recipes import load_recipe
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.sources import load_splits
from mmoe.embeddings import torchrec_problem
from mmoe.run import RunDirectory
from mmoe.run.console import ConsoleReporter
from mmoe.score import LoadedRun, Predictor, load_predictor
from mmoe.train import train_run

THREADS = 8
# What training draws or moves, and scoring must not
MODEL = (
    "model.expert.norm=batch", "model.expert.activation=silu", "model.expert.dropout=0.2",
    "model.tower.dropout=0.1", "model.input_dropout=0.1",
)  # fmt: skip
HEIGHTS = (1, 64, 65, 512, 4096)
WARM_UP, ONE_HEIGHT_CALLS = 20, 12
# Of the log with 27 features: columns of text, of integers and of numbers, and a date as text
TEXTS, INTEGERS, NUMBERS = 12, 5, 9
LOG_ROWS, SERVED_ROWS, ROUNDS = 20_000, 300, 5


def main() -> None:
    arguments = _arguments()
    backend = "plain" if torchrec_problem() else "torchrec"
    overrides = [
        f"data.options.rows={arguments.rows}",
        "training.epochs=1",
        f"training.embedding_backend={backend}",
    ]
    config = load_recipe("synthetic-funnel", [*overrides, *MODEL])
    splits = load_splits(config, None)
    with tempfile.TemporaryDirectory() as folder:
        train_run(config, Path(folder) / "run", splits=splits, reporter=ConsoleReporter())
        predictor, encoder, config = load_predictor(RunDirectory.open(Path(folder) / "run"), "cpu")
    print(
        f"synthetic-funnel, {config.model.num_experts} experts, {len(config.features)} features, "
        f"trained on {backend}; eval_batch_size {config.training.eval_batch_size:,}, "
        f"{torch.get_num_threads()} thread(s) of torch"
    )
    table, one_row = latencies(predictor, encoder, splits.test, arguments.calls)
    show("", table)
    wrong = wrong_calls(predictor, encoder, splits.test, arguments.concurrent)
    print(f"{wrong:,} of {arguments.concurrent:,} calls from {THREADS} threads gave other bits")
    found = {"one_row_ms": round(one_row, 3), "threads_wrong": wrong, **served_rows()}
    last_line(found)


def latencies(
    predictor: Predictor, encoder: FeatureEncoder, test: pa.Table, calls: int
) -> tuple[Table, float]:
    """A table of milliseconds, and those of one row (median).

    Batches as high as their rows need run in turn with batches of one height, `eval_batch_size`.
    """
    shown = new_table(("rows", "ms, p50", "p99", "at one height, p50", "encoding as well, p50"))
    one_row, by_default = 0.0, predictor.any_height
    for rows in (rows for rows in HEIGHTS if rows <= test.num_rows):
        table = test[:rows]
        data = EncodedData(features=encoder.encode(table, "log"))
        by_need, one_height, whole = [], [], []
        # A high batch takes as long as many low ones
        for _ in range(WARM_UP + max(calls * 64 // max(rows, 64), 20)):
            predictor.any_height = by_default
            by_need.append(_ms(lambda data=data: predictor.predict(data)))
            whole.append(_ms(lambda table=table: _predict(predictor, encoder, table)))
            if len(one_height) < ONE_HEIGHT_CALLS:
                predictor.any_height = False
                one_height.append(_ms(lambda data=data: predictor.predict(data)))
        predictor.any_height = by_default
        p50, p99 = np.percentile(by_need[WARM_UP:], [50, 99])
        one_row = p50 if rows == 1 else one_row
        others = (np.median(one_height[2:]), np.median(whole[WARM_UP:]))
        shown.add_row(f"{rows:,}", *(f"{ms:.2f}" for ms in (p50, p99, *others)))
    return shown, float(one_row)


def wrong_calls(predictor: Predictor, encoder: FeatureEncoder, test: pa.Table, calls: int) -> int:
    """How many of so many calls from `THREADS` threads differ from one thread's bits.

    Each encodes and predicts rows of its own, from one to some hundreds. The last call, of all
    rows, shows whether the model has stayed what it was.
    """
    expected_NT = _predict(predictor, encoder, test)
    rng = np.random.default_rng(13)
    lengths = rng.choice([1, 1, 2, 63, 64, 65, 300], calls)
    starts = rng.integers(0, test.num_rows - lengths.max(), calls)

    def differs(call: int) -> bool:
        rows = slice(starts[call], starts[call] + lengths[call])
        found_NT = _predict(predictor, encoder, test[rows])
        return not np.array_equal(found_NT, expected_NT[rows])

    with ThreadPoolExecutor(THREADS) as threads:
        wrong = sum(threads.map(differs, range(calls)))
    changed = not np.array_equal(_predict(predictor, encoder, test), expected_NT)
    return wrong + changed


def served_rows() -> dict[str, float]:
    log = _log()
    with tempfile.TemporaryDirectory() as folder:
        train_run(_config(), Path(folder) / "run", data=log)
        model = mmoe.load(Path(folder) / "run")
    rows = [log.iloc[n : n + 1] for n in range(LOG_ROWS - 2 * SERVED_ROWS, LOG_ROWS)]
    for row in rows[:WARM_UP]:
        model.predict(row)
    took = [_ms(lambda row=row: model.predict(row)) for row in rows[WARM_UP:SERVED_ROWS]]
    # Parts on rows that are as new to the encoder as those were
    rows = rows[SERVED_ROWS:]
    encoding = [_ms(lambda row=row: model.encoder.encode_row(row)) for row in rows]
    encoded = [model.encoder.encode_row(row) for row in rows]
    data = [EncodedData(features=features) for features in encoded if features is not None]
    network = [_ms(lambda d=one: model.predictor.predict(d)) for one in data]
    gains = [_rate(model, rows, THREADS) / _rate(model, rows, 1) for _ in range(ROUNDS)]
    parts = {"encoding": np.median(encoding), "network": np.median(network)}
    parts["rows_and_answer"] = np.median(took) - sum(parts.values())
    return {
        "one_row_27_ms": round(float(np.median(took)), 3),
        "threads_8_over_1": round(float(np.median(gains)), 3),
        **{f"one_row_27_ms_{name}": round(float(ms), 3) for name, ms in parts.items()},
    }


def _rate(model: LoadedRun, rows: list[pd.DataFrame], threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(model.predict, rows))
        return len(rows) / (time.perf_counter() - started)


def _log() -> pd.DataFrame:
    rng = np.random.default_rng(27)
    columns: dict[str, object] = {}
    for n in range(TEXTS):
        columns[f"text_{n}"] = [f"value {i}" for i in rng.zipf(1.5, LOG_ROWS) % 10 ** (1 + n % 4)]
    for n in range(INTEGERS):
        columns[f"id_{n}"] = rng.integers(0, 10 ** (1 + n), LOG_ROWS)
    for n in range(NUMBERS):
        columns[f"number_{n}"] = rng.lognormal(0, 1, LOG_ROWS)
    days = np.datetime64("2026-01-01") + rng.integers(0, 300, LOG_ROWS)
    columns["date"] = np.datetime_as_string(days)
    columns["click"] = rng.integers(0, 2, LOG_ROWS)
    return pd.DataFrame(columns)


def _config() -> RunConfig:
    ids = [*(f"text_{n}" for n in range(TEXTS)), *(f"id_{n}" for n in range(INTEGERS))]
    return config_from_dict({
        "features": [
            *({"kind": "categorical", "name": name} for name in ids),
            *({"kind": "numeric", "name": f"number_{n}"} for n in range(NUMBERS)),
            {"kind": "datetime", "name": "date", "parts": ["weekday", "month"]},
        ],
        "tasks": [{"name": "click", "label": "click"}], "training": {"epochs": 1, "loggers": []},
    })  # fmt: skip


def _predict(predictor: Predictor, encoder: FeatureEncoder, table: pa.Table) -> np.ndarray:
    return predictor.predict(EncodedData(features=encoder.encode(table, "log")))


def _ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What one prediction costs.")
    parser.add_argument("--rows", type=int, default=100_000, help="of the invented log")
    parser.add_argument("--calls", type=int, default=400, help="timed, for each number of rows")
    parser.add_argument("--concurrent", type=int, default=1_600, help="calls from all threads")
    return parser.parse_args()


if __name__ == "__main__":
    main()

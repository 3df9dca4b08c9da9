"""The rows of the cases: one log as several files, and three files to score."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.same_bits.kinds import write_kinds

ROWS = 24_000
FILES = 6


def write_logs(folder: Path) -> None:
    """`log/` by the day, `score/`, and `kinds/` with the log of the small kinds; all seeded."""
    write_kinds(folder / "kinds")
    (folder / "log").mkdir(parents=True, exist_ok=True)
    (folder / "score").mkdir(exist_ok=True)
    table = _table(np.random.default_rng(11), ROWS)
    each = ROWS // FILES
    for n in range(FILES):
        part = table.slice(n * each, each)
        pq.write_table(part, folder / "log" / f"day-{n}.parquet", row_group_size=700)
    inputs = _table(np.random.default_rng(12), 3_000).drop_columns(["click", "buy", "watched"])
    pq.write_table(inputs.slice(0, 1_001), folder / "score" / "a.parquet")
    pq.write_table(inputs.slice(1_001, 7), folder / "score" / "b.parquet")
    flat = inputs.slice(1_008).drop_columns(["tags", "weights"])
    pyarrow.csv.write_csv(flat, folder / "flat.csv")
    pq.write_table(inputs.slice(1_008), folder / "score" / "c.parquet")


def _table(rng: np.random.Generator, rows: int) -> pa.Table:
    """Ids, numbers, lists with weights, times; labels that depend on pairs of them."""
    user, item = rng.zipf(1.3, rows) % 900, rng.integers(0, 120, rows)
    price = rng.lognormal(size=rows).round(3)
    taste = np.random.default_rng(5).normal(size=(900, 120))
    click = rng.random(rows) < 1 / (1 + np.exp(-(taste[user, item] - np.log(price))))
    buy = click & (rng.random(rows) < 0.2 + 0.5 * (user % 2))
    lengths = rng.integers(0, 4, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tags = pa.array([f"t{tag}" for tag in rng.integers(0, 40, offsets[-1])])
    # Each day a later one
    times = np.arange(rows) * (6 * 86_400 / rows) + 1_700_000_000
    return pa.table(
        {
            "user": user,
            "item": [f"i{i}" for i in item],
            "price": price,
            "age": pa.array(rng.integers(10, 80, rows), mask=rng.random(rows) < 0.1),
            "tags": pa.ListArray.from_arrays(offsets, tags),
            "weights": pa.ListArray.from_arrays(offsets, rng.random(offsets[-1]).round(3)),
            "time": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC")),
            "click": click.astype(np.int8),
            "buy": buy.astype(np.int8),
            "watched": (rng.gamma(2, size=rows) * (1 + click)).round(4),
        }
    )

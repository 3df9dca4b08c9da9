"""An ordinary log, and what init makes of a log: read back, and rows encoded by it."""

import numpy as np
import pyarrow as pa
import yaml

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.infer.config import commented_yaml, infer_config
from mmoe.datasets.labels.encode import encode_labels

ROWS = 2000
# Names of columns
NASTY = ["a b", "a.b", "a_b", "A_b", "名前", "Привет", "class", "None", "1st", "x`y", 'q"q', "it's",
         "#hash", "a: b", "- dash", "tab\there", "line\nbreak", "{brace}", " lead", "True", "mean",
         "x__bucket", "x", "__mmoe", "%", "$", "é", "👍", "very " * 60]  # fmt: skip


def log(seed=0, rows=ROWS, **extra):
    """An ordinary log: two label columns that depend on the inputs, and `extra` columns."""
    rng = np.random.default_rng(seed)
    user, price = rng.integers(0, 200, rows), rng.lognormal(3, 1, rows)
    click = (rng.random(rows) < 0.1 + 0.4 * (user % 3 == 0)).astype(int)
    buy = click * (rng.random(rows) < 0.4)
    columns = {
        "user_id": user + 10**12,
        "price": price,
        "shop": [f"shop {i}" for i in rng.integers(0, 9, rows)],
        "click": click,
        "buy": buy,
    }
    return pa.table(columns | extra)


def infer(table, *labels):
    """The config, its reasons and its YAML, which gives the same config."""
    config, reasons = infer_config(table, labels or ("click",), path="log.csv", origin="log.csv")
    text = commented_yaml(config, reasons)
    assert config_from_dict(yaml.safe_load(text)) == config, text
    train = table.slice(0, max(2, table.num_rows * 4 // 5))
    FeatureEncoder.fit(config, train, "log.csv").encode(table, "log.csv")
    encode_labels(config, table, "log.csv", training=True)
    return config, reasons, text

"""How many ids were unseen: counted chunk by chunk, said at the end, noted in the file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.columns import UnseenIds
from mmoe.datasets.rows.splits import Splits
from mmoe.score import file_scorer, score_files
from mmoe.score.provenance import UNSEEN_KEY
from mmoe.train import train_run

TRAIN = pa.table(
    {"user": [1, 2, 3, 3], "item": ["a", "b", "a", "b"], "tags": [["x"], ["y"], [], ["x", "y"]],
     "price": [1.0, 2, 3, 4]}
)  # fmt: skip
NEW = pa.table(
    {"user": [1, 9, None, 8], "item": ["a", "z", "a", "a"],
     "tags": [["x"], ["q", "r"], ["x", "q"], None], "price": [9.0, 9, 9, None]}
)  # fmt: skip


def _encoder():
    features = [
        {"kind": "numeric", "name": "price", "buckets": 2},
        {"kind": "categorical", "name": "user", "min_count": 1},
        {"kind": "categorical", "name": "hashed", "column": "user", "encoding": "hash",
         "hash_size": 8},
        {"kind": "cross", "name": "pair", "columns": ["user", "item"]},
        {"kind": "categorical", "name": "item"},
        {"kind": "list", "name": "tags"},
    ]  # fmt: skip
    raw = {"features": features, "tasks": [{"name": "click", "label": "click"}]}
    return FeatureEncoder.fit(config_from_dict(raw), TRAIN, "log")


def test_rows_with_an_unseen_id_are_counted_by_feature():
    encoder = _encoder()
    whole, chunks = UnseenIds(encoder), UnseenIds(encoder)
    whole.add(encoder.encode(NEW, "new"))
    for row in range(4):
        chunks.add(encoder.encode(NEW[row : row + 1], "new"))
    expected = {"user": 2, "pair": 2, "item": 1, "tags": 2}
    assert whole.by_feature == chunks.by_feature == expected
    assert whole.rows == 4
    assert whole.text() == (
        "unseen ids: user in 2 rows (50 %), pair in 2 rows (50 %), item in 1 row (25 %), "
        "tags in 2 rows (50 %)"
    )
    known = UnseenIds(encoder)
    known.add(encoder.encode(TRAIN, "log"))
    assert known.text() == "unseen ids: none"
    both = UnseenIds(encoder)
    for one in (whole, known):
        both.include(one.rows, one.by_feature)
    assert (both.rows, both.by_feature["user"]) == (8, 2)


@pytest.fixture(name="run", scope="module")
def _run(funnel_config, funnel_table, tmp_path_factory):
    raw = {**funnel_config, "training": {**funnel_config["training"], "epochs": 1}}
    known = funnel_table.filter(pa.array(funnel_table["user"].to_numpy() < 30))
    splits = Splits(
        train=known[:1000], validation=known[1000:1300], test=known[1300:1600], origin="log"
    )
    folder = tmp_path_factory.mktemp("run") / "run"
    return train_run(config_from_dict(raw), folder, splits=splits).directory


def test_scoring_says_and_notes_them(run, funnel_table, tmp_path, monkeypatch, mmoe):
    monkeypatch.setattr(file_scorer, "ROWS_PER_CHUNK", 300)
    new = int((funnel_table["user"].to_numpy() >= 30).sum())
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    out = tmp_path / "scores.parquet"
    code, _, err = mmoe("score", run.path, "--input", tmp_path / "log.parquet", "--output", out)
    assert code == 0
    share = f"{100 * new / 4000:.2g} %"
    assert f"\nunseen ids: user in {new:,} rows ({share})\n" in err
    note = json.loads(pq.read_metadata(out).metadata[UNSEEN_KEY])
    assert note["user"] == {"rows": new, "share": new / 4000}
    assert note["item"]["rows"] == note["tags"]["rows"] == 0

    for part in range(2):
        pq.write_table(funnel_table[part * 2000 :][:2000], tmp_path / f"p{part}.parquet")
    assert score_files(run, str(tmp_path / "p?.parquet"), tmp_path / "out") == 4000
    noted = [
        json.loads(pq.read_metadata(path).metadata[UNSEEN_KEY])["user"]["rows"]
        for path in (tmp_path / "out").glob("*.parquet")
    ]
    assert sum(noted) == new

"""What is one id is one id in every file, and what are two stay two, whatever types hold them."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.id_map import Vocabulary
from mmoe.datasets.files import csv_files
from mmoe.datasets.files.readers import iter_tables, read_table
from mmoe.datasets.stream import open_stream
from mmoe.datasets.values.text import TextKind, settle, to_integers
from tests.small_configs import click_config

# Each group one number, written as R, spreadsheets, pandas and people write it
SPELLINGS = [["100000", "1e+05", "1E5", "100000.0", "+1e5"], ["7", "7.", "70e-1", ".7e1", "7.0"],
             ["-1500", "-1.5e3", "-1500"], ["0", ".0", "0e0"]]  # fmt: skip
ENCODINGS = {"vocabulary": {}, "hash": {"hash_size": 10_000_000}, "managed": {"rows": 50}}
BIG = 2**63


def config_of(path, encoding="vocabulary", **feature):
    columns = {"encoding": encoding, **ENCODINGS[encoding], **feature}
    return click_config(
        {"kind": "categorical", "name": "id", **columns},
        data={"path": str(path), "input": "stream"},
    )


def ids(encoder, path):
    """As scoring reads a file: in chunks, text as it stands."""
    tables = iter_tables(path, ["id"], 4)
    return np.concatenate([encoder.encode(t, "new").ids_NC[:, 0] for t in tables]).tolist()


def rows_of(values):
    return pa.table({"id": values, "click": np.arange(len(values)) % 2})


def fitted(path, config):
    """The encoders of a run in memory and of a streamed one; all rows train."""
    streamed = open_stream(config)
    table = read_table(str(path))
    return [FeatureEncoder.fit(config, table, "x"), streamed.fit()]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_one_number_is_one_id_however_a_csv_file_writes_it(tmp_path, encoding):
    path = tmp_path / "train.csv"
    words = [word for group in SPELLINGS for word in group] * 4
    pacsv.write_csv(rows_of(words), path)
    for encoder in fitted(path, config_of(path, encoding)):
        for group in SPELLINGS:
            for chunk in (group, [*group, "word"], [*group, "1e99", "1.5"]):
                scored = tmp_path / "scored.csv"
                pacsv.write_csv(rows_of(chunk), scored)
                found = ids(encoder, scored)
                assert set(found[: len(group)]) == {found[0]}, group
                assert found[0] >= 2
                assert set(found[len(group) :]) <= {1}, "no integers: not known"
                pq.write_table(rows_of([float(group[0])] * 2), tmp_path / "scored.parquet")
                assert set(ids(encoder, tmp_path / "scored.parquet")) == {found[0]}


PADDED = ["007", "7", "1e+05", "100000"]


@pytest.mark.parametrize(("cells", "expected"), [
    (PADDED, pa.large_string()),
    (["1e+05", "7", "007", "NA"], pa.large_string()),
    (["007", "1.5", "7", "1e3"], pa.float64()),  # a fraction: measurements, padded
    (["1e+05", "0", "0.0", "0e1"], pa.float64()),
])  # fmt: skip
def test_padded_ids_are_found_whole_and_in_chunks(cells, expected):
    for cut in (1, 2, 3):
        kind = TextKind()
        for part in (cells[:cut], cells[cut:]):
            kind.add(pa.chunked_array([part], pa.large_string()))
        assert kind.type == expected
    assert settle(pa.chunked_array([cells], pa.large_string())).type == expected


def test_a_cell_does_not_depend_on_others():
    cells = ["1e+17", "9007199254740993e0", "1e19", "1e99999999999999999999", "0x1F", "-0x1f",
             "5e-1", "9223372036854775807", "NA", "1e+05", " 3 ", "0.001e5"]  # fmt: skip
    expected = [10**17, 2**53 + 1, None, None, None, None, None, BIG - 1, None, 10**5, 3, 100]
    assert to_integers(pa.chunked_array([cells], pa.large_string())).to_pylist() == expected
    for cell, number in zip(cells, expected, strict=True):
        alone = pa.chunked_array([[cell]], pa.large_string())
        assert to_integers(alone).to_pylist() == [number]


def test_crosses_and_lists_read_numbers_alike(tmp_path):
    config = click_config(
        {"kind": "cross", "name": "pair", "columns": ["a", "b"]},
        {"kind": "list", "name": "c", "separator": "|"},
    )
    path = tmp_path / "train.csv"
    path.write_text("a,b,c\n1e+05,2,1e+05|3\n3,4,7\n")
    encoder = FeatureEncoder.fit(config, read_table(path), "x")
    [scored] = iter_tables(path, None, 10)
    typed = pa.table({"a": [100_000, 3], "b": [2.0, 4.0], "c": [[100_000, 3], [7]]})
    expected = encoder.encode(typed, "y")
    found = encoder.encode(scored, "y")
    assert expected.ids_NC.min() >= 2
    assert found.ids_NC.tolist() == expected.ids_NC.tolist()
    for mine, other in zip(found.lists[0], expected.lists[0], strict=True):
        assert np.array_equal(mine, other)
    assert sorted(set(expected.lists[0][0].tolist())) == [2, 3, 4]


def write_parts(folder, parts):
    for n, values in enumerate(parts):
        pq.write_table(rows_of(values), folder / f"{n}.parquet")


@pytest.mark.parametrize(
    ("encoding", "signed"), zip(ENCODINGS, (pa.int64(), pa.int32(), pa.int64()), strict=True)
)
def test_signed_beside_unsigned_ids_stay_apart(tmp_path, encoding, signed):
    big = [BIG + n for n in range(10)] * 4
    write_parts(tmp_path, [pa.array([-5, *range(10)] * 4, signed), pa.array(big, pa.uint64())])
    for encoder in fitted(tmp_path, config_of(tmp_path, encoding)):
        found = ids(encoder, tmp_path)
        assert len(set(found)) == 21
        assert min(found) >= 2
        again = tmp_path.with_suffix(".csv")
        pacsv.write_csv(rows_of(pa.array([str(number) for number in big])), again)
        assert ids(encoder, again) == found[44:]


def test_lists_of_signed_and_unsigned_ids_stay_apart(tmp_path):
    values = [
        pa.array([[1, -2], [3]] * 8),
        pa.array([[BIG], [BIG + 1, 3]] * 8, pa.list_(pa.uint64())),
    ]
    write_parts(tmp_path, values)
    config = config_of(tmp_path).model_copy(
        update={"features": [config_of(tmp_path, kind="list", separator=",").features[0]]}
    )
    for encoder in fitted(tmp_path, config):
        vocabulary = encoder.ids["id"]
        assert isinstance(vocabulary, Vocabulary)
        assert set(vocabulary.keys.to_pylist()) == set(map(str, [1, -2, 3, BIG, BIG + 1]))


def test_large_integers_beside_fractions_are_refused(tmp_path):
    fractions = [0.5, 1.0] * 10
    large = [2**53 + n for n in range(20)]
    write_parts(tmp_path, [pa.array(large), pa.array(fractions)])
    for encoding in ENCODINGS:
        config = config_of(tmp_path, encoding)
        with pytest.raises(ValueError, match=r"column 'id'.* beyond 2.53, where float64 loses"):
            open_stream(config).fit()
        with pytest.raises(ValueError, match=r"column 'id'.* beyond 2.53, where float64 loses"):
            FeatureEncoder.fit(config, read_table(str(tmp_path)), "x")
    shared = click_config(
        *[{"kind": "categorical", "name": name, "table": "t"} for name in ("a", "b")],
        tables=[{"name": "t"}],
    )
    with pytest.raises(ValueError, match=r"column 'a'.* shares a table with numbers .* fractions"):
        FeatureEncoder.fit(shared, pa.table({"a": large, "b": fractions}), "x")


@pytest.mark.parametrize("block", [7, 1 << 20])
@pytest.mark.parametrize(("text", "cells"), [
    ("a\n1\n\n2\n", ["1", None, "2"]),
    ("a\r\n\r\n1\r\n\r\n2", [None, "1", None, "2"]),
    ("\n\na\n1\n\n", ["1", None]),
    ("a\n\n", [None]),
    ("a\n", []),
    ('a\n"x\ny"\n\n\n2\n', ["x\ny", None, None, "2"]),
    ("a,b\n1,5\n\n2,6\n", ["1", "2"]),
])  # fmt: skip
def test_a_blank_line_of_one_column_is_a_row(tmp_path, monkeypatch, block, text, cells):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", block)
    path = tmp_path / "x.csv"
    path.write_text(text, newline="")
    assert read_table(path, ["a"], infer_types=False)["a"].to_pylist() == cells
    chunks = iter_tables(path, ["a"], 2)
    assert [cell for chunk in chunks for cell in chunk["a"].to_pylist()] == cells

"""What is read once, and what anew: the window and the chunks of a source."""

import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.stream import open_stream


@pytest.fixture(name="rows_encoded")
def _rows_encoded(funnel_config, funnel_table, tmp_path, monkeypatch):
    """How many training and validation rows two epochs encode, with a buffer of so many rows."""
    pq.write_table(funnel_table, tmp_path / "log.parquet", row_group_size=500)

    def count(buffer_rows):
        streaming = {"shuffle_buffer_rows": buffer_rows, "chunk_rows": 256}
        data = {"path": str(tmp_path), "input": "stream", "streaming": streaming}
        config = config_from_dict({**funnel_config, "data": data})
        splits = open_stream(config)
        encoder, encoded, encode = splits.fit(), [], FeatureEncoder.encode

        def counted(self, table, origin):
            encoded.append(table.num_rows)
            return encode(self, table, origin)

        sources = [splits.rows(name, encoder) for name in ("train", "validation")]
        with monkeypatch.context() as patch:
            patch.setattr(FeatureEncoder, "encode", counted)
            for epoch in range(2):
                assert sum(map(len, sources[0].epoch_batches(0, epoch, 64))) == len(sources[0])
                assert sum(map(len, sources[1].chunks())) == len(sources[1])
        return sum(encoded), [len(source) for source in sources]

    return count


def test_a_stream_that_fits_into_its_buffer_is_encoded_once(rows_encoded):
    encoded, rows = rows_encoded(4000)
    assert encoded == sum(rows)


def test_several_windows_are_encoded_anew_in_every_epoch(rows_encoded):
    encoded, rows = rows_encoded(1000)
    assert encoded == 2 * sum(rows)


def test_a_buffer_for_training_alone_keeps_no_other_rows(rows_encoded):
    encoded, (train, validation) = rows_encoded(3300)
    assert encoded == train + 2 * validation


def test_rows_in_memory_are_one_chunk_or_a_part_of_it(funnel_config, funnel_table):
    config = config_from_dict(funnel_config)
    encoder = FeatureEncoder.fit(config, funnel_table, "log")
    source = BatchSource.of_table(funnel_table, encoder, "log", config)
    assert next(source.chunks()) is source.held
    assert [len(chunk) for chunk in source.chunks(10, 30)] == [20]
    assert [len(chunk) for chunk in source.chunks(7, 7)] == [0]
    assert next(source.epoch_batches(0, 0, 64)).labels_BT is not None
    unlabelled = BatchSource.of_table(funnel_table, encoder, "log")
    assert next(unlabelled.epoch_batches(0, 0, 64)).labels_BT is None
    assert list(BatchSource.of_table(funnel_table[:0], encoder, "log").epoch_batches(0, 0, 2)) == []

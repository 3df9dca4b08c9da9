"""Work on chunks in several threads: results in order, bounded memory, errors where they belong."""

import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.datasets.rows.prefetch import in_order
from mmoe.score import file_scorer, score_files
from mmoe.score.file_scorer import small_at_the_end


def _uneven(n):
    time.sleep(0.002 * (n % 3))
    return n * n


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_order(threads):
    assert list(in_order(_uneven, range(20), threads)) == [n * n for n in range(20)]
    assert list(in_order(_uneven, [], threads)) == []


def test_no_more_is_read_than_is_needed():
    read = []

    def chunks():
        for n in range(1000):
            read.append(n)
            yield n

    results = in_order(_uneven, chunks(), 2)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    time.sleep(0.2)
    assert len(read) <= 5 + 2 * (2 + 2)
    results.close()
    time.sleep(0.1)
    assert len(read) < 1000


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_in_its_place_and_ends_all(threads):
    worked = []

    def work(n):
        worked.append(n)
        if n == 4:
            raise ValueError("row 4")
        return n

    results = in_order(work, range(100), threads)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="row 4"):
        next(results)
    assert len(worked) < 20
    with pytest.raises(StopIteration):
        next(results)


def test_an_error_while_reading_comes_after_what_was_read():
    def chunks():
        yield 1
        raise OSError("the disk is gone")

    results = in_order(_uneven, chunks(), 2)
    assert next(results) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_each_thread_takes_one_core_and_the_others_keep_theirs():
    before = torch.get_num_threads()
    found = list(in_order(lambda _: torch.get_num_threads(), range(6), 2, one_core_each=True))
    assert found == [1] * 6
    assert torch.get_num_threads() == before
    told = []
    thread = threading.Thread(target=lambda: told.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert told == [before]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("last", [0, 1, 3, 10])
def test_the_last_tables_come_in_quarters(count, last):
    heights = [10] * (count - 1) + [last] * (count > 0)
    rows = iter(range(100))
    tables = [pa.table({"row": [next(rows) for _ in range(height)]}) for height in heights]

    found = list(small_at_the_end(tables))

    assert [row for table in found for row in table["row"].to_pylist()] == list(range(sum(heights)))
    cut = min(max(count - 4, 0), 2)
    whole = [table.num_rows for table in found[: count - cut]]
    assert whole == heights[: count - cut]
    assert all(table.num_rows <= 3 for table in found[count - cut :])


def test_a_file_is_the_same_whoever_scores_it_and_beside_whatever(
    run, night, tmp_path, monkeypatch
):
    """Groups of rows, and sums over them, do not tell how many threads there were."""
    rows = pq.read_table(night)
    height = len(rows) // 8
    monkeypatch.setattr(file_scorer, "ROWS_PER_CHUNK", height)
    # Full with the quarters of the seventh of eight chunks
    monkeypatch.setattr(file_scorer, "_ROWS_PER_GROUP", 6 * height + height // 2)
    for name in ("first", "second"):
        pq.write_table(rows[: 8 * height], tmp_path / f"{name}.parquet")

    found = set()
    for threads, files in ((1, "first*"), (2, "first*"), (5, "first*"), (2, "*")):
        monkeypatch.setattr(file_scorer, "scoring_threads", lambda *, alone, n=threads: n)
        out = tmp_path / "scores" / f"{threads} {len(files)}"
        score_files(run, str(tmp_path / f"{files}.parquet"), out)
        found.add((out / "00000-first.parquet").read_bytes())
    assert len(found) == 1

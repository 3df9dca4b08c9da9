"""Work on chunks in several threads: results in order, bounded memory, errors where they belong."""

import threading
import time

import pytest
import torch

from mmoe.score.pipeline import in_order


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

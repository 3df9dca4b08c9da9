"""The background thread: order, bounds, errors, an end whatever happens."""

import threading
import time

import pytest

from mmoe.datasets.rows.prefetch import prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "mmoe-input"]


def test_items_come_in_order_and_the_thread_ends():
    assert list(prefetch(iter(range(100)), 3)) == list(range(100))
    assert not threads()


def test_it_is_never_more_than_depth_ahead():
    made = []

    def items():
        for n in range(20):
            made.append(n)
            yield n

    taken = prefetch(items(), 3)
    for n in range(5):
        assert next(taken) == n
        time.sleep(0.02)
        assert len(made) <= n + 1 + 3
    taken.close()


class _Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyboardInterrupt(), _Odd()])
def test_errors_come_as_they_are(error):
    def items():
        yield 1
        raise error

    found = prefetch(items(), 2)
    assert next(found) == 1
    with pytest.raises(type(error)) as raised:
        next(found)
    assert raised.value is error
    assert not threads()


def test_closing_stops_the_thread_and_what_it_reads():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    outer = prefetch(prefetch(items(), 1), 2)
    next(outer)
    outer.close()
    assert closed.is_set()
    assert not threads()


def test_a_forgotten_one_stops_as_well():
    def count():
        n = 0
        while True:
            yield n
            n += 1

    items = prefetch(count(), 2)
    next(items)
    del items
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()

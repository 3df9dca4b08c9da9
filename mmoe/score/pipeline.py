"""Reading, encoding, predicting and writing at the same time, with results in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

import pyarrow as pa
import torch

from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.values.arrow import may_use_threads

T = TypeVar("T")
S = TypeVar("S")

# Chunks that have been read and wait, and results that wait to be written, beyond those in work
_AHEAD = 2
# Tables of a file that are cut at its end: what keeps two cores busy, and little to hold back
_CUT, _QUARTERS = 2, 4


def scoring_threads(*, alone: bool) -> int:
    """Returns how many threads work on chunks; 0: the one that asks does all of it.

    Args:
        alone: Whether a chunk's predictions wait for nobody: no other rank, no one device.
    """
    if not may_use_threads():
        return 0
    return torch.get_num_threads() if alone else 1


def in_order(
    work: Callable[[T], S], chunks: Iterable[T], threads: int, *, one_core_each: bool = False
) -> Generator[S]:
    """Yields `work(chunk)` for each chunk, in their order, made by several threads.

    A further thread reads the chunks. At most `threads` of them are worked on, and as many more
    wait on either side as keep everybody busy: memory is bounded however long the input is. An
    error comes where its result would have come, and ends the rest.

    Args:
        work: Called in the threads, with one chunk each at a time.
        chunks: Iterated over in a thread of its own.
        threads: How many work; 0: the caller reads and works, one after the other.
        one_core_each: Whether each thread has torch use itself alone, instead of all cores.

    Example:
        >>> list(in_order(lambda n: n * n, range(4), threads=2))
        [0, 1, 4, 9]
    """
    if threads == 0:
        yield from map(work, chunks)
        return
    with (
        closing(prefetch(chunks, _AHEAD)) as read,
        _pool(threads, one_core_each=one_core_each) as pool,
    ):
        waiting: deque[Future[S]] = deque()
        for result in _submitted(pool, work, read):
            waiting.append(result)
            if len(waiting) >= threads + _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def small_at_the_end(tables: Iterable[pa.Table]) -> Generator[pa.Table]:
    """Yields the same rows, the last ones in quarters, so that no thread ends long after others.

    Where it cuts is said by the tables alone, not by how many threads there are: sums over rows,
    and groups of rows in a file, are the same on every machine.

    Args:
        tables: Some rows each; of more than four the last two are cut, and held back until then.
    """
    waiting: deque[pa.Table] = deque()
    for number, table in enumerate(tables):
        waiting.append(table)
        kept = _CUT if number >= 2 * _CUT else 0
        while len(waiting) > kept:
            yield waiting.popleft()
    for table in waiting:
        height = -(-max(table.num_rows, 1) // _QUARTERS)
        for start in range(0, max(table.num_rows, 1), height):
            yield table.slice(start, height)


def _submitted(
    pool: ThreadPoolExecutor, work: Callable[[T], S], chunks: Iterable[T]
) -> Generator[Future[S]]:
    """What comes of each chunk; an error while reading comes behind what was read before it."""
    try:
        for chunk in chunks:
            yield pool.submit(work, chunk)
            del chunk
    except Exception as error:  # whatever it is, it is raised where its turn is
        failed: Future[S] = Future()
        failed.set_exception(error)
        yield failed


@contextmanager
def _pool(threads: int, *, one_core_each: bool) -> Generator[ThreadPoolExecutor]:
    """Threads that give up what waits when the block is left."""
    before = torch.get_num_threads()
    begin = (lambda: torch.set_num_threads(1)) if one_core_each else None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="mmoe-score", initializer=begin)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if one_core_each:  # threads that others start later ask for it
            torch.set_num_threads(before)

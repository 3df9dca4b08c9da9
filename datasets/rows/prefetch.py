"""Does work ahead in a background thread, or side by side in several, with results in order."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import torch

T = TypeVar("T")
S = TypeVar("S")

_SECONDS_TO_STOP = 60.0  # one read from a slow disk may have to end first
# Items that have been read and wait, and results that wait to be taken, beyond those in work
_AHEAD = 2


def prefetch(items: Iterable[T], depth: int) -> Generator[T]:
    """Yields the same items, made by a thread that is at most `depth` of them ahead.

    An error in the thread is raised here, as it is. Closing this iterator (or leaving it to the
    garbage collector) stops the thread and closes `items` in it.

    Args:
        items: Iterated over in the thread alone.
        depth: Items that are being made or wait, beyond the one handed out last.

    Example:
        >>> list(prefetch((n * n for n in range(4)), depth=2))
        [0, 1, 4, 9]
    """
    # A slot is taken before an item is made, and given back when it is handed out
    slots, stopping = threading.Semaphore(depth), threading.Event()
    ready: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()

    def make() -> None:
        iterator, error = iter(items), None
        try:
            while slots.acquire() and not stopping.is_set():
                ready.put((next(iterator),))
        except StopIteration:
            pass
        except BaseException as raised:  # whatever it is, the user's thread has to see it
            error = raised
        ready.put(error)
        close = getattr(iterator, "close", None)
        if close is not None:
            close()

    # A daemon: a process that has to end does not wait for a disk
    thread = threading.Thread(target=make, name="mmoe-input", daemon=True)
    thread.start()
    try:
        while isinstance(found := ready.get(), tuple):
            slots.release()
            yield found[0]
            del found  # while the next one is waited for, this one may go
        if found is not None:
            raise found
    finally:
        stopping.set()
        slots.release()
        thread.join(_SECONDS_TO_STOP)


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
    before = torch.get_num_threads()
    begin = (lambda: torch.set_num_threads(1)) if one_core_each else None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="mmoe-score", initializer=begin)
    try:
        with closing(prefetch(chunks, _AHEAD)) as read:
            waiting: deque[Future[S]] = deque()
            for result in _submitted(pool, work, read):
                waiting.append(result)
                if len(waiting) >= threads + _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if one_core_each:  # threads that others start later ask for it
            torch.set_num_threads(before)


def _submitted(
    pool: ThreadPoolExecutor, work: Callable[[T], S], chunks: Iterable[T]
) -> Generator[Future[S]]:
    """Yields each chunk's result; a reading error comes behind what was read before it."""
    try:
        for chunk in chunks:
            yield pool.submit(work, chunk)
            del chunk
    except Exception as error:  # whatever it is, it is raised where its turn is
        failed: Future[S] = Future()
        failed.set_exception(error)
        yield failed

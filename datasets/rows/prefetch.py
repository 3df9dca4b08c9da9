"""Does work ahead in a background thread."""

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_SECONDS_TO_STOP = 60.0  # one read from a slow disk may have to end first


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
    worker = _Worker(items, depth)
    worker.thread.start()
    try:
        yield from worker.results()
    finally:
        worker.stop()


class _Worker(Generic[T]):
    """One thread; a slot is taken before an item is made, and given back when it is handed out."""

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self.items = items
        self.slots = threading.Semaphore(depth)
        self.ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.stopping = False
        # A daemon: a process that has to end does not wait for a disk
        self.thread = threading.Thread(target=self._run, name="mmoe-input", daemon=True)

    def results(self) -> Iterator[T]:
        while True:
            what, value = self.ready.get()
            if what == "error":
                raise value
            if what == "end":
                return
            self.slots.release()
            yield value
            del value  # while the next one is waited for, this one may go

    def stop(self) -> None:
        self.stopping = True
        self.slots.release()
        self.thread.join(_SECONDS_TO_STOP)

    def _run(self) -> None:
        iterator = iter(self.items)
        try:
            while True:
                self.slots.acquire()
                if self.stopping:
                    return
                try:
                    item = next(iterator)
                except StopIteration:
                    self.ready.put(("end", None))
                    return
                self.ready.put(("item", item))
                del item
        except BaseException as error:  # whatever it is, the user's thread has to see it
            self.ready.put(("error", error))
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

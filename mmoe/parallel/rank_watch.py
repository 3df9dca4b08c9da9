"""`RankWatch`: no rank waits for one that is gone, and the one that failed is named."""

import os
import sys
import threading
import time
from datetime import timedelta
from typing import NoReturn

from torch.distributed import (
    PrefixStore,  # type: ignore[attr-defined]  # documented, but not in __all__
    Store,  # type: ignore[attr-defined]
    TCPStore,  # type: ignore[attr-defined]
)

from mmoe.parallel.process_group import attempt_prefix

# Seconds between two signs of life, and without one until a rank counts as gone
_BEAT, _SILENCE = 0.5, 60.0
# Seconds that a rank has to end by itself once another has failed
_GRACE = 20.0
_FAILURE, _DONE = "failure", "done"


class RankWatch:
    """Signs of life, and the first error, in the store that the ranks met at.

    A rank that dies breaks its connections, so those that wait for it get an error at once, and
    look here for who it was. One that is silent (its machine is gone or stopped) is noticed after
    60 seconds by the watch's own thread, which then ends this process: no collective can keep it.

    Args:
        silence: Seconds without a sign of life until a rank counts as gone.

    Raises:
        RuntimeError: The store cannot be reached.
    """

    def __init__(self, silence: float = _SILENCE) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.silence = silence
        self._main, self._beats = _connect(), _connect()  # a waiting client blocks its thread
        self._count = 0
        self._heard = {r: ("0", time.monotonic()) for r in range(self.world_size)}
        self._known: str | None = None  # "RANK: what it said", of the first that failed
        self._ended = threading.Event()
        self._beat()
        threading.Thread(target=self._run, name="mmoe-ranks", daemon=True).start()

    def failed(self, text: str) -> bool:
        """Tells all ranks why this one ends; whether it is the first that does."""
        mine = f"{self.rank}: {text}"
        try:
            self._known = self._main.compare_set(_FAILURE, "", mine).decode()
        except RuntimeError:  # the store is gone, and nobody is left to be told
            return self._known is None
        return self._known == mine

    def failure(self) -> str | None:
        """What the first rank that failed said of it, if one has."""
        try:
            if self._known is None and self._main.check([_FAILURE]):
                self._known = self._main.get(_FAILURE).decode()
        except RuntimeError:
            pass  # what this rank has heard before is all there is
        return None if self._known is None else self._known.partition(": ")[2]

    def gone(self, patience: float = 3 * _BEAT) -> list[int]:
        """The ranks that give no sign of life for so many seconds."""
        try:
            before = self._signs(self._main)
            time.sleep(patience)
            after = self._signs(self._main)
        except RuntimeError:
            return [0] if self.rank else []  # the store was rank 0's, or the launcher's
        return [r for r in before if before[r] == after[r] and r != self.rank]

    def finish(self, patience: float = 5.0) -> None:
        """This rank's work is done: it is missed no more.

        Where no launcher holds the store, it is rank 0's, which lets the others finish first.
        """
        self._ended.set()
        end = time.monotonic() + patience
        try:
            self._main.set(f"alive/{self.rank}", _DONE)
            while self.rank == 0 and "TORCHELASTIC_RUN_ID" not in os.environ:
                if set(self._signs(self._main).values()) == {_DONE} or time.monotonic() > end:
                    return
                time.sleep(0.01)
        except RuntimeError:  # the rank that held the store has finished before
            return

    def _run(self) -> None:
        failed_at = None
        while not self._ended.wait(_BEAT):
            try:
                self._beat()
                silent = self._silent()
                if self._known is None and self._beats.check([_FAILURE]):
                    self._known = self._beats.get(_FAILURE).decode()
            except RuntimeError:
                silent = [0]
            if self._ended.is_set():
                return
            if self._known is not None:
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > _GRACE:
                    self._end("another rank has failed")
            elif silent:
                self._end(f"rank {silent[0]} gives no sign of life any more")

    def _beat(self) -> None:
        self._count += 1
        self._beats.set(f"alive/{self.rank}", str(self._count))

    def _silent(self) -> list[int]:
        now, silent = time.monotonic(), []
        for r, sign in self._signs(self._beats).items():
            if sign not in (self._heard[r][0], _DONE):
                self._heard[r] = (sign, now)
            elif sign != _DONE and now - self._heard[r][1] > self.silence:
                silent.append(r)
        return silent

    def _signs(self, store: Store) -> dict[int, str]:
        keys = {r: f"alive/{r}" for r in range(self.world_size)}
        there = {r: key for r, key in keys.items() if store.check([key])}
        values = store.multi_get(list(there.values()))
        return {r: value.decode() for r, value in zip(there, values, strict=True)}

    def _end(self, why: str) -> NoReturn:
        sys.stderr.write(
            f"mmoe: error: rank {self.rank}: {why}; start the ranks again with --resume\n"
        )
        sys.stderr.flush()
        os._exit(1)


def _connect() -> Store:
    """The launcher's store; a restart of the ranks begins with an empty one."""
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
    )
    return PrefixStore(f"{attempt_prefix()}/ranks", store)

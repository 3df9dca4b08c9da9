"""`RankWatch`: no rank waits for one that has ended, and the one that failed is named."""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # not in its __all__

from mmoe.parallel.launch.launcher import is_torchrun, launched_rank, launched_ranks
from mmoe.parallel.launch.process_group import VERY_LONG, rendezvous_store
from mmoe.terminal import readable

# Seconds between two signs of life, and without one until a rank counts as gone
_BEAT, _SILENCE = 0.5, 60.0
# Seconds that a rank has to end by itself once another has failed; or the one that holds the store
# for all, and lingers for so long that they can read there why
_GRACE, _GRACE_OF_HOST, _LINGER = 20.0, 2.0, 5.0
# What is wrong for all of them, the ranks find within about as long of each other
_PATIENCE = 5.0
_FAILURE, _DONE = "failure", "done"
# What is said of a rank that could not say it itself; by each of the others
_GONE = (
    "has ended without a word (killed, or its machine is gone); start the ranks again with --resume"
)


@dataclass(frozen=True)
class Failure:
    """Message of the ranks to each other about the first one that failed.

    Attributes:
        rank: That says so.
        text: Why.
        gone: Ranks that ended without a message; then the text is about them.
    """

    rank: int
    text: str
    gone: Sequence[int] = ()

    def encode(self) -> str:
        """Returns the failure as text for the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(record: bytes) -> "Failure":
        """Reads what `encode` returned."""
        said: dict[str, Any] = json.loads(record)
        return Failure(**said)


class RankWatch:
    """Watches the other ranks: signs of life and the first error, in the store they share.

    A rank that dies breaks its connections, so those that wait for it get an error at once, and
    look here for who it was. Where they wait in the store instead (a process group is being made),
    the rank before it tells them: it waits all the time for a goodbye of the next one, and a
    connection that breaks says that none will come. One that is silent (its machine is gone or
    stopped) is noticed after 60 seconds by the watch's own threads, which then end this process: no
    collective can keep it. Seconds are counted in looks, so that ranks that were all stopped for a
    while (a laptop's lid, a scheduler's pause) go on together. Made by all ranks together.

    Args:
        silence: Seconds without a sign of life until a rank counts as gone.

    Raises:
        RuntimeError: The store cannot be reached.
    """

    def __init__(self, silence: float = _SILENCE) -> None:
        self.rank, self.world_size = launched_rank(), launched_ranks()
        self.silence = silence
        # A client that waits blocks its thread
        self._main, self._beats, self._goodbyes = _connect(), _connect(), _connect()
        # A group of its own: whoever waits for a goodbye waits for as long as training takes
        self._ring = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=VERY_LONG))
        self._count = 0
        # Of each rank its last sign, and looks since it came
        self._heard: dict[int, tuple[str, int]] = dict.fromkeys(range(self.world_size), ("0", 0))
        self._ended, self._left = threading.Event(), threading.Event()
        self._beat()
        for run in (self._run, self._run_beside, self._run_next):
            threading.Thread(target=run, name="mmoe-ranks", daemon=True).start()

    def failed(self, text: str, gone: Sequence[int] = ()) -> bool:
        """Tells all ranks why this one ends; returns whether it is the first that does."""
        return self._tell(self._main, text, gone)

    def _tell(self, store: Store, text: str, gone: Sequence[int]) -> bool:
        mine = Failure(self.rank, text, gone).encode()
        try:
            # In one step, so that of ranks that fail together one is the first
            first = store.compare_set(_FAILURE, "", mine).decode() == mine
            if not first:
                store.set(f"{_FAILURE}/{self.rank}", text)
        except RuntimeError:  # the store is gone, and nobody is left to be told
            return True
        return first

    def fails_alone(self, text: str) -> bool:
        """Returns whether rank 0 does not fail with the same words within some seconds."""
        if self.rank == 0:
            return False
        key = f"{_FAILURE}/0"
        with suppress(RuntimeError):  # the store is gone, and with it rank 0's words
            self._main.wait([key], timedelta(seconds=_PATIENCE))
            return self._main.get(key).decode() != text
        return True

    def lost(self) -> str | None:
        """Says in a sentence which ranks have died without a word, or None.

        Tells the other ranks too: those that wait for this one would not notice.
        """
        return self._lost(self._main)

    def _lost(self, store: Store) -> str | None:
        failure = _failure_or_none(store)
        if failure is not None:
            # One that was stopped for a while may be back, and is none of the others
            return failure.text if failure.gone and self.rank not in failure.gone else None
        gone = self._gone(store)
        if not gone:
            return None
        text = f"rank {', '.join(map(str, gone))} {_GONE}"
        self._tell(store, text, gone)
        return text

    def _gone(self, store: Store) -> list[int]:
        """Lists the ranks that give no sign of life for some seconds."""
        try:
            before = self._signs(store)
            time.sleep(3 * _BEAT)  # within it a rank that lives gives a sign
            after = self._signs(store)
        except RuntimeError:
            return [0] if self.rank else []  # the store was rank 0's, or the launcher's
        return [r for r in before if before[r] == after[r] != _DONE and r != self.rank]

    def finish(self, patience: float = _LINGER) -> None:
        """Tells that this rank's work is done, so that none waits for its signs of life.

        Where no launcher holds the store, it is rank 0's, which lets the others finish first.
        """
        self._ended.set()
        with suppress(RuntimeError):  # that rank has ended
            before = (self.rank - 1) % self.world_size
            # Held: the message may be under way for longer than this call
            self._goodbye = dist.isend(torch.zeros(1), dst=before, group=self._ring)
        try:
            self._done(self._main, patience)
        finally:
            self._left.set()

    def _done(self, store: Store, patience: float = _LINGER, gone: Sequence[int] = ()) -> None:
        """Says that this rank is; as host of the store it waits until the others are, some seconds.

        Args:
            store: By which thread it is asked.
            patience: Seconds.
            gone: Ranks that will not say so.
        """
        end = time.monotonic() + patience
        with suppress(RuntimeError):  # the rank that held the store has ended before
            store.set(f"alive/{self.rank}", _DONE)
            # Without torchrun the store that the ranks met at is rank 0's
            while self.rank == 0 and not is_torchrun() and time.monotonic() < end:
                signs = self._signs(store)
                if all(sign == _DONE for rank, sign in signs.items() if rank not in gone):
                    return
                time.sleep(0.01)

    def _run(self) -> None:
        failed, failed_at = None, None
        while not self._ended.wait(_BEAT):
            try:
                self._beat()
                silent = self._silent()
                failed = _failure_in(self._beats)
            except RuntimeError:
                if failed and not self._ended.is_set():  # rank 0 knew it too, and has left first
                    self._leave(failed)
                silent = [0]
            if self._ended.is_set():
                return
            if silent:
                self._end(f"rank {silent[0]} gives no sign of life any more")
            if failed:
                failed_at = failed_at or time.monotonic()
                of_host = failed.rank == 0 and not is_torchrun()
                if time.monotonic() - failed_at > (_GRACE_OF_HOST if of_host else _GRACE):
                    self._leave(failed)

    def _run_beside(self) -> None:
        """Ends this process where a store that neither answers nor breaks keeps `_run` waiting."""
        count, looks = self._count, 0
        while not self._left.wait(_BEAT):
            count, looks = self._count, looks + 1 if count == self._count else 0
            if looks * _BEAT > self.silence:
                self._end("rank 0, or what started the ranks, gives no sign of life any more")

    def _run_next(self) -> None:
        """Tells all ranks, where the next one ends without a goodbye."""
        following = (self.rank + 1) % self.world_size
        try:
            goodbye = dist.irecv(torch.zeros(1), src=following, group=self._ring)
            assert goodbye is not None
            goodbye.wait()
        except RuntimeError:  # the connection broke
            if not self._ended.is_set():
                self._lost(self._goodbyes)

    def _beat(self) -> None:
        self._count += 1
        self._beats.set(f"alive/{self.rank}", str(self._count))

    def _silent(self) -> list[int]:
        for r, sign in self._signs(self._beats).items():
            last, looks = self._heard[r]
            self._heard[r] = (sign, looks + 1 if sign == last != _DONE else 0)
        return [r for r, (_, looks) in self._heard.items() if looks * _BEAT > self.silence]

    def _signs(self, store: Store) -> dict[int, str]:
        keys = {r: f"alive/{r}" for r in range(self.world_size)}
        there = {r: key for r, key in keys.items() if store.check([key])}
        values = store.multi_get(list(there.values()))
        return {r: value.decode() for r, value in zip(there, values, strict=True)}

    def _leave(self, failed: Failure) -> NoReturn:
        """Ends this process; prints why only where ranks are gone, as others say it themselves."""
        if failed.gone:
            self._say(failed.text)
        self._done(self._beats, gone=failed.gone)
        # Not `sys.exit`, which would end this thread alone
        os._exit(1)

    def _end(self, why: str) -> NoReturn:
        self._say(f"{why}; start the ranks again with --resume")
        os._exit(1)

    def _say(self, text: str) -> None:
        stream = sys.__stderr__ or sys.stderr  # that of all ranks but the first leads nowhere
        stream.write(f"mmoe: error: rank {self.rank}: {readable(text)}\n")
        stream.flush()


def _failure_in(store: Store) -> Failure | None:
    return Failure.decode(store.get(_FAILURE)) if store.check([_FAILURE]) else None


def _failure_or_none(store: Store) -> Failure | None:
    """None also where the store is gone."""
    try:
        return _failure_in(store)
    except RuntimeError:
        return None


def _connect() -> Store:
    store = rendezvous_store()
    store.set_timeout(timedelta(seconds=30))
    return store

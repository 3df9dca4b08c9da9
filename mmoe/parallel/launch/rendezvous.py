"""Rendezvous of the ranks of one start, apart from what an earlier start left behind.

torchrun keeps one store over all starts of the ranks, and counts the starts on each machine by
itself (pytorch/pytorch#135712). So a rank may find the address of one that is long dead, and a
restart counter need not be the same on two machines. Here the ranks of one start agree on a name.
"""

import time
import uuid
from datetime import timedelta

from torch.distributed import (
    PrefixStore,  # type: ignore[attr-defined]  # documented, but not in __all__
    Store,  # type: ignore[attr-defined]  # likewise
)

# Seconds between two looks of rank 0 at who has come
_LOOK = 0.01


def store_of_this_start(store: Store, rank: int, ranks: int, seconds: float) -> Store:
    """Returns the part of the launcher's store that only the ranks of this start use.

    Every other rank leaves a name that nobody had before, and rank 0 answers it with the name of
    the start, until all have come: an answer to a rank of an earlier start is read by nobody.

    Args:
        store: Shared by all ranks, and maybe used by ranks that have ended.
        rank: Of this process.
        ranks: How many there are.
        seconds: After which a rank gives up.

    Raises:
        RuntimeError: Not all ranks came in time.
    """
    if rank:
        name = uuid.uuid4().hex
        store.set(f"mmoe/here/{rank}", name)
        store.wait([f"mmoe/start/{name}"], timedelta(seconds=seconds))
        mine = PrefixStore(store.get(f"mmoe/start/{name}").decode(), store)
        mine.set(f"met/{rank}", "")
        return mine
    start = f"mmoe/{uuid.uuid4().hex}"
    mine = PrefixStore(start, store)
    _answer(store, mine, start, set(range(1, ranks)), time.monotonic() + seconds)
    return mine


def _answer(store: Store, mine: Store, start: str, missing: set[int], end: float) -> None:
    while missing:
        for r in sorted(missing):
            if store.check([f"mmoe/here/{r}"]):
                store.set(f"mmoe/start/{store.get(f'mmoe/here/{r}').decode()}", start)
        missing = {r for r in missing if not mine.check([f"met/{r}"])}
        if missing and time.monotonic() > end:
            raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(_LOOK)

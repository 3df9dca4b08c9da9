"""Tells a restart of the ranks which run it goes on with."""

from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from mmoe.parallel.launch.launcher import launcher_holds_store, store_address, was_restarted
from mmoe.parallel.object_collectives import from_all, from_first


def begun_before(out: Path) -> bool:
    """Returns whether an earlier start of these ranks, by this torchrun, began `out`.

    A folder that was there before torchrun came is none of theirs. All ranks call it, and all get
    the answer of rank 0.

    Args:
        out: A folder, which holds something from the moment that the work is begun.
    """
    if not launcher_holds_store():  # the store ends with its ranks
        return any(from_all(was_restarted()))
    return from_first(lambda: _begun(out))


def _begun(out: Path) -> bool:
    key = f"mmoe/begun/{out.resolve()}"
    store = TCPStore(*store_address(), wait_for_workers=False)
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if store.check([key]):
        return taken
    # Only of a folder that holds nothing yet: what a later start finds there is then its own
    if not taken:
        store.set(key, "")
    return False

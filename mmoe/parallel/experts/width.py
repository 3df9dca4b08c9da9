"""`agree_width`: how wide the rows are that experts of all ranks return."""

from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.object_collectives import from_all


def agree_width(wire: Wire, width: int | str | None) -> int:
    """Returns the width on which all ranks of a wire agree; all of them call it together.

    Args:
        wire: Its ranks.
        width: Of what this rank's experts return; None: it has none; text: why they cannot say.

    Returns:
        O, the same on every rank.

    Raises:
        ValueError: An expert cannot say, or ranks differ: on every rank, with one message.

    Example:
        >>> from mmoe.parallel import Wire, ensure_process_group
        >>> from mmoe.parallel.experts.width import agree_width
        >>> ensure_process_group()
        >>> agree_width(Wire(), 16)
        16
    """
    each = from_all(width, wire.group)
    for rank, said in enumerate(each):
        if isinstance(said, str):
            raise ValueError(
                "experts: expected rows [rows, O] from each of them, which travel to other ranks; "
                f"on rank {rank} {said}"
            )
    known = [(rank, said) for rank, said in enumerate(each) if isinstance(said, int)]
    if not known:
        raise ValueError(
            "experts: expected some rank to know how wide their outputs are; pass "
            "ExpertPool(…, output_dim=…)"
        )
    first, agreed = known[0]
    for rank, said in known:
        if said != agreed:
            raise ValueError(
                f"experts: expected rows of one width from all of them, got {agreed} numbers on "
                f"rank {first} and {said} on rank {rank}"
            )
    return agreed

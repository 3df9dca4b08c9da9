"""`Traffic`: what left a rank, and how long it was under way."""

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class Traffic:
    """Traffic that one rank sent so far, over one wire or several that share it.

    The seconds are those of the host: with NCCL, where waiting for rows keeps a stream of the GPU
    and not the host, they say nothing.

    Attributes:
        bytes_sent: What left this rank, sizes included; what a rank sends itself is not counted.
        bytes_between_hosts: Those of them that went to another host.
        collectives: How many all-to-alls this rank took part in.
        seconds_waited: How long this rank stood still for rows that were on their way.
        seconds_under_way: How long rows were on their way until they were here and asked for.

    Example:
        >>> from mmoe.parallel import Traffic
        >>> Traffic(seconds_waited=1.0, seconds_under_way=4.0).share_hidden
        0.75
    """

    bytes_sent: int = 0
    bytes_between_hosts: int = 0
    collectives: int = 0
    seconds_waited: float = 0.0
    seconds_under_way: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Adds both."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Traffic(*(mine + theirs for mine, theirs in pairs))

    @property
    def share_hidden(self) -> float:
        """Share of the time under way in which this rank computed; 1 where nothing was sent."""
        if not self.seconds_under_way:
            return 1.0
        return 1 - self.seconds_waited / self.seconds_under_way

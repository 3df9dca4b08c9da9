"""Work in steps, at whose ends something is under way: so that other work can be done meanwhile."""

from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""A function that yields wherever what it has begun is under way, and returns its result."""


def at_once(steps: Steps[T]) -> T:
    """Takes all steps, one after another, and returns the result.

    Example:
        >>> def three():
        ...     yield
        ...     return 3
        >>> at_once(three())
        3
    """
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def staggered(
    pieces: Sequence[Steps[T]], num_steps: int, meanwhile: Iterator[object] | None = None
) -> list[T]:
    """Takes the steps of several pieces by turns: a piece begins where the one before goes on.

    Three pieces of three steps, in the order of the numbers:

        piece 0      1   3   6
        piece 1          2   5   8
        piece 2              4   7   9

    `meanwhile` gets two turns: before 3, where nothing has come yet, and before 9, where nothing
    else is left to compute. The order is the same on all ranks, as that of their exchanges must be.

    Args:
        pieces: Steps of each.
        num_steps: How many steps each has.
        meanwhile: What this rank can do while it would wait.

    Returns:
        The results, piece by piece.

    Example:
        >>> def piece(number):
        ...     print("send", number)
        ...     yield
        ...     print("compute", number)
        ...     return number
        >>> staggered([piece(0), piece(1)], num_steps=2)
        send 0
        send 1
        compute 0
        compute 1
        [0, 1]
    """
    results: dict[int, T] = {}
    turns = [
        (tick - piece, piece)
        for tick in range(len(pieces) + num_steps - 1)
        for piece in reversed(range(len(pieces)))
        if 0 <= tick - piece < num_steps
    ]
    for turn in turns:
        if meanwhile is not None and turn in {(1, 0), turns[-1]}:
            next(meanwhile, None)
        step, piece = turn
        try:
            next(pieces[piece])
        except StopIteration as done:
            assert step == num_steps - 1, "every piece has as many steps"
            results[piece] = done.value
    return [results[piece] for piece in range(len(pieces))]

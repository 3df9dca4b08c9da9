"""Dense or grouped: which way of running a mixture is the cheaper one."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Execution = Literal["auto", "dense", "grouped", "padded"]

# Where the number of rows must not matter (in evaluation, so that a row's bits do not depend on its
# batch mates; under torch.compile, so that it does not become part of the program), the choice is
# made for this many.
NOMINAL_ROWS = 4096

# Seconds; only their ratios count. The rates are those of two cores of an AMD EPYC (Zen 4, AVX-512)
# in this library's products, and of a copy in memory (2026-11-20). With them 34 settings of B, E, G
# and K that were timed both ways that day (benchmarks.mixture, auto_regret, fp32) are chosen
# right, or cost 3 % more; the same holds for 20 to 40 microseconds per call and 1 to 2 ns per pick.
SECONDS_PER_FLOP = {4: 1 / 200e9, 2: 1 / 400e9, 8: 1 / 95e9}  # by bytes per number
SECONDS_PER_BYTE = 1 / 40e9  # read or written in memory, by one pass over rows
SECONDS_PER_PICK = 2e-9  # plan and slots of one pick
SECONDS_PER_GROUPED_CALL = 20e-6  # plan, gather, combine: what they cost without any rows
# A product runs in blocks of rows; on average half a block of an expert's rows is wasted.
ROWS_PER_BLOCK = 12
# Products forward, and for the gradients of rows and of weights.
PASSES_FORWARD, PASSES_TRAINING = 1, 3


class Work(NamedTuple):
    """What one call of a mixture has to compute.

    Attributes:
        rows: B.
        num_experts: E.
        picks: G · K.
        num_gates: G.
        pairs: R, distinct pairs of row and expert: counted, or expected.
        parameters: Of one expert.
        input_dim: D.
        output_dim: O.
        number_bytes: 4 (float32), 2 (bfloat16) or 8.
        training: Whether gradients will be computed.
    """

    rows: int
    num_experts: int
    picks: int
    num_gates: int
    pairs: float
    parameters: float
    input_dim: int
    output_dim: int
    number_bytes: int = 4
    training: bool = True


def choose_execution(work: Work) -> Literal["dense", "grouped"]:
    """Chooses the way that is estimated to take less time.

    Args:
        work: Sizes of this call.

    Returns:
        `dense` or `grouped`.

    Example:
        >>> from mmoe.mixture.execution import Work, choose_execution
        >>> sizes = {"parameters": 200_000, "input_dim": 330, "output_dim": 128}
        >>> choose_execution(Work(4096, 64, picks=2, num_gates=1, pairs=8192, **sizes))
        'grouped'
        >>> choose_execution(Work(4096, 4, picks=8, num_gates=4, pairs=16384, **sizes))
        'dense'
    """
    return "dense" if dense_seconds(work) <= grouped_seconds(work) else "grouped"


def dense_seconds(work: Work) -> float:
    """Estimated time of dense execution: all experts on all rows, then one combine."""
    pairs = work.rows * work.num_experts
    weights = work.picks * work.rows * SECONDS_PER_PICK  # picks become weights of all experts
    return _product_seconds(work, pairs) + _combine_seconds(work, pairs) + weights


def grouped_seconds(work: Work) -> float:
    """Estimated time of grouped execution: plan, gather, products on uneven rows, combine."""
    passes = PASSES_TRAINING if work.training else PASSES_FORWARD
    blocks = work.pairs + ROWS_PER_BLOCK / 2 * min(work.num_experts, work.pairs)
    gathered = 2 * passes * work.pairs * work.input_dim * work.number_bytes * SECONDS_PER_BYTE
    planned = work.picks * work.rows * SECONDS_PER_PICK + SECONDS_PER_GROUPED_CALL
    return _product_seconds(work, blocks) + gathered + _combine_seconds(work, work.pairs) + planned


def _product_seconds(work: Work, rows: float) -> float:
    passes = PASSES_TRAINING if work.training else PASSES_FORWARD
    per_flop = SECONDS_PER_FLOP.get(work.number_bytes, SECONDS_PER_FLOP[4])
    return 2 * passes * rows * work.parameters * per_flop


def _combine_seconds(work: Work, pairs: float) -> float:
    """Outputs are written by the product and read once forward; gradients written and read."""
    passes = PASSES_TRAINING if work.training else PASSES_FORWARD
    touched = 2 * passes * pairs * work.output_dim * work.number_bytes
    return touched * SECONDS_PER_BYTE


def expected_share(visible: Sequence[Sequence[bool]], k: int) -> float:
    """The expected share of all (sample, expert) pairs, for independent and even gates.

    They leave expert e untouched by a sample with probability `Π_g (1 − k / n_g)` over the gates
    that see e, where `n_g` is how many experts gate g sees. Correlated gates ask for fewer pairs,
    so this is the dear side of grouped execution.

    Example:
        >>> from mmoe.mixture.execution import expected_share
        >>> expected_share([[True] * 4] * 2, k=2)
        0.75
    """
    seen = [sum(row) for row in visible]
    untouched = []
    for e in range(len(visible[0])):
        share = 1.0
        for g, row in enumerate(visible):
            if row[e]:
                share *= 1 - min(k / seen[g], 1.0)
        untouched.append(share)
    return 1 - sum(untouched) / len(untouched)

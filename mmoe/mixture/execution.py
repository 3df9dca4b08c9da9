"""Chooses how a mixture runs a call: dense, grouped or padded.

`ExecutionPolicy` decides, by what was asked for, what is possible, and what the cost model says is
cheaper; `MultiGateMixture.forward` does it. All three give the same numbers.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.traits import DispatcherTraits, GateTraits, PoolTraits, SharedWork
from mmoe.ops import host_is_near

Execution = Literal["auto", "dense", "grouped", "padded"]

# Rates of each type of device, a line each, which says where its numbers come from.
# `python -m benchmarks.gpu_check.cost_rates` measures them and writes a line in the same form: put
# in its place, it is what `auto` goes by.
RATE_TABLE = Path(__file__).with_name("cost_rates.jsonl")

# Where the number of rows must not matter (in evaluation, so that a row's bits do not depend on its
# batch mates; under torch.compile, so that it does not become part of the program), the choice is
# made for this many.
NOMINAL_ROWS = 4096

_NOTHING_SHARED = SharedWork()

# Products forward, and for the gradients of rows and of weights.
_PASSES_FORWARD, _PASSES_TRAINING = 1, 3


class Work(NamedTuple):
    """Amount of work in one call of a mixture.

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
        device_type: Where: `cpu`, `cuda`.
        shared_parameters: Of one expert, those whose products are computed once a request in dense
            execution: next to nothing for each row.
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
    device_type: str = "cpu"
    shared_parameters: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ExecutionPolicy:
    """Decides between dense, grouped and padded, call by call.

    Attributes:
        execution: What the user asked for.
        local: Whether all experts are here.
        pool: What the pool says of itself.
        overlaps: Whether the dispatcher calls the experts itself.
        visible: Which gate sees which expert, `[G][E]`.
        sees_all: Whether every gate sees every expert.
        k: How many experts the gate says that it picks; None: it does not say.
        most_pairs: How many distinct experts all gates together pick for a row at most, as the gate
            says, 1 … E; None: it does not say.
        share: Expected share of all pairs, where the gate says how many experts it picks.
        parameters: Of one expert.
        widths: D and O; 0 = unknown.
        scores_as: In evaluation, decides in this one's place: the policy of the mixture that this
            one grew from, whose gates (the first ones) are to keep the bits of their mixes.
    """

    execution: Execution
    local: bool
    pool: PoolTraits
    overlaps: bool
    visible: Sequence[Sequence[bool]]
    sees_all: bool
    k: int | None
    most_pairs: int | None
    share: float | None
    parameters: float
    widths: tuple[int, int]
    scores_as: "ExecutionPolicy | None" = None

    def with_gate(self, gate: GateTraits) -> "ExecutionPolicy":
        """Returns the policy of the same mixture with gates that pick otherwise."""
        k = gate.k if isinstance(gate.k, int) else None  # a user's gate may have another `k`
        most = gate.most_pairs
        return replace(
            self,
            k=k,
            most_pairs=None if most is None else min(most, len(self.visible[0])),
            share=None if k is None else expected_share(self.visible, k, gate.shared_k, most),
            scores_as=None,
        )

    def counts_pairs(self, experts_BGK: Tensor | None, training: bool) -> bool:
        """Returns whether `choose` wants the number of distinct pairs, free to count here.

        Not in evaluation: what a row's bits are must not depend on its batch mates.
        """
        return (
            self.execution == "auto"
            and self.local
            and training
            and not self.pool.uses_batch
            and experts_BGK is not None
            and host_is_near(experts_BGK)
        )

    def choose(
        self,
        experts_BGK: Tensor | None,
        *,
        training: bool,
        pairs: int | None,
        number_bytes: int,
        device_type: str = "cpu",
        shared: SharedWork = _NOTHING_SHARED,
    ) -> Literal["dense", "grouped", "padded"]:
        """Returns how one call is run: dense, grouped or padded.

        Args:
            experts_BGK: The gates' picks; None: dense weights.
            training: The mixture's mode.
            pairs: R, where `counts_pairs` asked for it.
            number_bytes: Of the numbers that the experts compute in.
            device_type: Where they compute.
            shared: What rows of requests share.

        Raises:
            ValueError: Dense execution of picks was forced on a pool whose batch statistics would
                see rows that nobody picked.
        """
        if self.scores_as is not None and not training:
            # Gates that came later have no say: the first ones' mixes keep the bits of the earlier
            # mixture
            first = len(self.scores_as.visible)
            return self.scores_as.choose(
                None if experts_BGK is None else experts_BGK[:, :first],
                training=False,
                pairs=None,
                number_bytes=number_bytes,
                device_type=device_type,
                shared=shared,
            )
        batch_matters = self.pool.uses_batch and training and experts_BGK is not None
        if self.execution == "dense" and batch_matters:
            raise ValueError(
                "execution: dense shows every expert all rows, and batch normalisation (norm "
                "'batch') would count rows that no gate picked; use grouped or auto"
            )
        # Evaluation drops nothing, so no expert has a number of rows that is known beforehand.
        if self.execution in ("dense", "grouped") or (self.execution == "padded" and training):
            return self.execution
        # Experts elsewhere get rows, not all rows; batch statistics are those of an expert's own
        # rows
        if not self.local or batch_matters:
            return "grouped"
        # Such a pool reads the number of its rows on the host, and a traced program has no host
        if torch.compiler.is_compiling() and not self.pool.static_shapes:
            return "dense"
        if self.execution == "padded":
            return "grouped"
        if experts_BGK is None:
            # Every expert is seen by a gate, and then it is wanted for all rows.
            return "dense"
        work = self._work(experts_BGK, training, pairs, number_bytes, shared.experts)
        work = work._replace(device_type=device_type, shared_parameters=shared.parameters)
        return choose_execution(work)

    def _work(
        self,
        experts_BGK: Tensor,
        training: bool,
        pairs: int | None,
        number_bytes: int,
        shared_experts: int = 0,
    ) -> Work:
        num_gates, k = experts_BGK.shape[1:]
        num_experts = len(self.visible[0]) - shared_experts
        rows, expected = experts_BGK.shape[0], float(pairs or 0)
        if pairs is None:
            # The gate's k before K: DSelect-k gates return E picks, of which they use k once they
            # are trained. Taken for E, they would never run grouped when they score; and to count
            # them would make a row's bits depend on its batch mates.
            share = expected_share(self.visible, k) if self.share is None else self.share
            rows, expected = NOMINAL_ROWS, NOMINAL_ROWS * num_experts * share
        input_dim, output_dim = self.widths
        return Work(
            rows=rows,
            num_experts=num_experts,
            picks=num_gates * k,
            num_gates=num_gates,
            pairs=expected,
            parameters=self.parameters,
            input_dim=input_dim,
            output_dim=output_dim,
            number_bytes=number_bytes,
            # A forward pass without gradients is one product, not three
            training=training and torch.is_grad_enabled(),
        )


def make_policy(
    execution: Execution,
    pool: Pool,
    gate: GateTraits,
    visible: Sequence[Sequence[bool]],
    *,
    input_dim: int | None,
    dispatcher: DispatcherTraits | None,
    limited: bool,
) -> ExecutionPolicy:
    """Makes the policy; refuses what cannot work whatever the batch.

    A `dispatcher` of None means that all experts are here, `limited` that there is a capacity.

    Raises:
        ValueError: Settings that do not go together.
    """
    if execution not in get_args(Execution):
        known = ", ".join(get_args(Execution))
        raise ValueError(f"execution: expected one of {known}, got {execution!r}")
    k = gate.k if isinstance(gate.k, int) else None  # a user's gate may have another `k`
    most = gate.most_pairs
    local, traits = dispatcher is None, pool.traits
    for g, row in enumerate(visible):
        if k is not None and k > sum(row):
            raise ValueError(
                f"gate: gate {g} picks k = {k} experts, but sees {sum(row)}; lower k, or show it "
                "more experts"
            )
    if not local and execution in ("dense", "padded"):
        raise ValueError(
            f"execution: {execution} runs every expert here and cannot go with a dispatcher; use "
            "grouped"
        )
    if execution == "padded" and not limited:
        raise ValueError(
            "execution: padded needs a capacity, which says how many rows an expert gets; pass "
            "capacity=Capacity(…), or use grouped"
        )
    if execution == "padded" and traits.uses_batch:
        raise ValueError(
            "execution: padded shows experts rows of zeros, which batch normalisation (norm "
            "'batch') would count; use grouped"
        )
    return ExecutionPolicy(
        execution=execution,
        local=local,
        pool=traits,
        # Rows that come in parts would give an expert the statistics of a part
        overlaps=not (dispatcher is None or dispatcher.run is None or traits.uses_batch),
        visible=visible,
        sees_all=all(map(all, visible)),
        k=k,
        most_pairs=None if most is None else min(most, len(visible[0])),
        share=None if k is None else expected_share(visible, k, gate.shared_k, most),
        # A rank's pool may have no expert
        parameters=sum(p.numel() for p in pool.parameters()) / max(len(pool), 1),
        widths=(input_dim or 0, pool.output_dim or 0),
    )


def choose_execution(work: Work) -> Literal["dense", "grouped"]:
    """Returns dense or grouped, whichever is estimated to take less time.

    Args:
        work: Sizes of this call.

    Returns:
        `dense` or `grouped`.

    Example:
        >>> sizes = {"parameters": 200_000, "input_dim": 330, "output_dim": 128}
        >>> choose_execution(Work(4096, 64, picks=2, num_gates=1, pairs=8192, **sizes))
        'grouped'
        >>> choose_execution(Work(4096, 4, picks=8, num_gates=4, pairs=16384, **sizes))
        'dense'
    """
    return "dense" if dense_seconds(work) <= grouped_seconds(work) else "grouped"


def dense_seconds(work: Work) -> float:
    """Estimates the time of dense execution: all experts on all rows, then one combine."""
    rates = rates_of(work.device_type)
    pairs = work.rows * work.num_experts
    # Picks become weights of all experts
    weights = work.picks * work.rows * rates.seconds_per_pick
    # What is computed once a request is next to nothing for each row
    alone = work._replace(parameters=work.parameters - work.shared_parameters)
    return _product_seconds(alone, rates.dense, pairs) + _combine_seconds(work, pairs) + weights


def grouped_seconds(work: Work) -> float:
    """Estimates the time of grouped execution: plan, gather, uneven products, combine."""
    rates = rates_of(work.device_type)
    passes = _PASSES_TRAINING if work.training else _PASSES_FORWARD
    # Half a block is wasted at the end of each expert's rows; without rows no block runs
    blocks = work.pairs + rates.rows_per_block / 2 * min(work.num_experts, work.pairs)
    # The gather reads every row once and writes it once
    touched = 2 * passes * work.pairs * work.input_dim * work.number_bytes
    gathered = touched * rates.seconds_per_byte
    planned = work.picks * work.rows * rates.seconds_per_pick + rates.seconds_per_grouped_call
    products = _product_seconds(work, rates.grouped, blocks)
    return products + gathered + _combine_seconds(work, work.pairs) + planned


def _product_seconds(work: Work, rates: "ProductRates", rows: float) -> float:
    passes = _PASSES_TRAINING if work.training else _PASSES_FORWARD
    # Each weight is multiplied and added once a row
    return 2 * passes * rows * work.parameters * rates.seconds(work.number_bytes)


def _combine_seconds(work: Work, pairs: float) -> float:
    """Outputs are written by the product and read once forward; gradients written and read."""
    passes = _PASSES_TRAINING if work.training else _PASSES_FORWARD
    touched = 2 * passes * pairs * work.output_dim * work.number_bytes
    return touched * rates_of(work.device_type).seconds_per_byte


def expected_share(
    visible: Sequence[Sequence[bool]], k: int, shared_k: int = 0, most_pairs: int | None = None
) -> float:
    """Returns the expected share of (sample, expert) pairs for independent, even gates.

    They leave expert e untouched by a sample with probability `Π_g (1 − k / n_g)` over the gates
    that see e, where `n_g` is how many experts gate g sees. Correlated gates ask for fewer pairs,
    so this is the dear side of grouped execution. Of gates that decide together `shared_k` of the k
    are the same, and there are at most `most_pairs` for a row.

    Example:
        >>> expected_share([[True] * 4] * 2, k=2)
        0.75
        >>> expected_share([[True] * 4] * 2, k=2, shared_k=2)
        0.5
    """
    num_experts = len(visible[0])
    seen = [max(sum(row) - shared_k, 1) for row in visible]
    untouched = []
    for e in range(num_experts):
        share = 1.0
        for g, row in enumerate(visible):
            if row[e]:
                # Π_g (1 − k / n_g), of the k that a gate has for itself
                share *= 1 - min((k - shared_k) / seen[g], 1.0)
        untouched.append(share)
    # Of the experts that are not shared
    alone = 1 - sum(untouched) / num_experts
    share = shared_k / num_experts + (1 - shared_k / num_experts) * alone
    return share if most_pairs is None else min(share, most_pairs / num_experts)


@dataclass(frozen=True, kw_only=True)
class ProductRates:
    """Operations a second of products, a multiplication and an addition being two.

    Attributes:
        bf16: Of numbers of 2 bytes.
        fp32: Of 4.
        fp64: Of 8.
    """

    bf16: float
    fp32: float
    fp64: float

    def seconds(self, number_bytes: int) -> float:
        """Returns the time of one operation; numbers of another size count as float32."""
        if number_bytes == 2:
            return 1 / self.bf16
        return 1 / (self.fp64 if number_bytes == 8 else self.fp32)


@dataclass(frozen=True, kw_only=True)
class CostRates:
    """Measured rates of a device type that decide between dense and grouped execution.

    Attributes:
        device: Its type, as torch names it.
        source: Where the numbers come from, and whether they were measured.
        dense: Products of all rows.
        grouped: Products of each expert's rows.
        rows_per_block: A grouped product runs in blocks of rows, and on average half a block of
            an expert's rows is wasted.
        bytes_per_second: Read or written in memory, by one pass over rows.
        seconds_per_pick: Plan and slots of one pick.
        seconds_per_grouped_call: What plan, gather and combine cost without any rows, more than
            dense execution does.
    """

    device: str
    source: str
    dense: ProductRates
    grouped: ProductRates
    rows_per_block: int
    bytes_per_second: float
    seconds_per_pick: float
    seconds_per_grouped_call: float

    @property
    def seconds_per_byte(self) -> float:
        """Seconds per byte of one pass over rows."""
        return 1 / self.bytes_per_second

    def as_line(self) -> str:
        """Returns the line that `from_line` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> "CostRates":
        """Reads a line of the table."""
        values = json.loads(line)
        products = {key: ProductRates(**values[key]) for key in ("dense", "grouped")}
        return cls(**values | products)


def read_table(text: str) -> dict[str, CostRates]:
    """Reads all lines, by type of device."""
    lines = map(CostRates.from_line, filter(None, text.splitlines()))
    return {rates.device: rates for rates in lines}


_RATES_OF = read_table(RATE_TABLE.read_text(encoding="utf-8"))


def rates_of(device_type: str) -> CostRates:
    """Returns the rates of a type of device; those of the CPU where there are none."""
    return _RATES_OF.get(device_type, _RATES_OF["cpu"])

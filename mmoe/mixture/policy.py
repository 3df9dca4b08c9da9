"""Which way a mixture runs a call: what was asked for, what is possible, what is cheaper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mmoe.mixture.execution import (
    NOMINAL_ROWS,
    Execution,
    Work,
    choose_execution,
    expected_share,
)
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.routing.routes import host_is_near


@dataclass(frozen=True, kw_only=True)
class ExecutionPolicy:
    """Decides between dense, grouped and padded, call by call.

    Attributes:
        execution: What the user asked for.
        local: Whether all experts are here.
        static_shapes: Whether the pool runs grouped without reading sizes on the host.
        uses_batch: Whether, in training, the pool must get only the rows that were picked.
        visible: Which gate sees which expert, `[G][E]`.
        sees_all: Whether every gate sees every expert.
        k: How many experts the gate says that it picks; None: it does not say.
        share: Expected share of all pairs, where the gate says how many experts it picks.
        parameters: Of one expert.
        widths: D and O; 0 = unknown.
    """

    execution: Execution
    local: bool
    static_shapes: bool
    uses_batch: bool
    visible: Sequence[Sequence[bool]]
    sees_all: bool
    k: int | None
    share: float | None
    parameters: float
    widths: tuple[int, int]

    def counts_pairs(self, experts_BGK: Tensor | None, training: bool) -> bool:
        """Whether `choose` wants to know the number of distinct pairs, which is free here.

        Not in evaluation: what a row's bits are must not depend on its batch mates.
        """
        return (
            self.execution == "auto"
            and self.local
            and training
            and not self.uses_batch
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
    ) -> Literal["dense", "grouped", "padded"]:
        """Chooses for one call.

        Args:
            experts_BGK: The gates' picks; None: dense weights.
            training: The mixture's mode.
            pairs: R, where `counts_pairs` asked for it.
            number_bytes: Of the numbers that the experts compute in.

        Raises:
            ValueError: Dense execution of picks was forced on a pool whose batch statistics would
                see rows that nobody picked.
        """
        batch_matters = self.uses_batch and training and experts_BGK is not None
        if self.execution == "dense" and batch_matters:
            raise ValueError(
                "execution: dense shows every expert all rows, and batch normalisation (norm "
                "'batch') would count rows that no gate picked; use grouped or auto"
            )
        # Evaluation drops nothing, so no expert has a number of rows that is known beforehand.
        if self.execution in ("dense", "grouped") or (self.execution == "padded" and training):
            return self.execution
        if not self.local or batch_matters:
            return "grouped"
        if torch.compiler.is_compiling() and not self.static_shapes:
            return "dense"
        if self.execution == "padded":
            return "grouped"
        if experts_BGK is None:
            # Every expert is seen by a gate, and then it is wanted for all rows.
            return "dense"
        return choose_execution(self._work(experts_BGK, training, pairs, number_bytes))

    def _work(
        self, experts_BGK: Tensor, training: bool, pairs: int | None, number_bytes: int
    ) -> Work:
        num_gates, k = experts_BGK.shape[1:]
        num_experts = len(self.visible[0])
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
            training=training and torch.is_grad_enabled(),
        )


def make_policy(
    execution: Execution,
    pool: Pool,
    gate: nn.Module,
    visible: Sequence[Sequence[bool]],
    *,
    input_dim: int | None,
    local: bool,
    limited: bool,
) -> ExecutionPolicy:
    """Checks what cannot work whatever the batch; the gate's attribute `k` says how it picks.

    Args:
        execution: What the user asked for.
        pool: The experts.
        gate: The gate.
        visible: Which gate sees which expert.
        input_dim: D, if it is known.
        local: Whether all experts are here.
        limited: Whether there is a capacity.

    Raises:
        ValueError: Settings that do not go together.
    """
    if execution not in get_args(Execution):
        known = ", ".join(get_args(Execution))
        raise ValueError(f"execution: expected one of {known}, got {execution!r}")
    k: Any = getattr(gate, "k", None)
    k = k if isinstance(k, int) else None
    for g, row in enumerate(visible):
        if k is not None and k > sum(row):
            raise ValueError(
                f"gate: gate {g} picks k = {k} experts, but sees {sum(row)}; lower k, or show it "
                "more experts"
            )
    uses_batch = bool(getattr(pool, "uses_batch", False))
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
    if execution == "padded" and uses_batch:
        raise ValueError(
            "execution: padded shows experts rows of zeros, which batch normalisation (norm "
            "'batch') would count; use grouped"
        )
    parameters = list(pool.parameters()) if isinstance(pool, nn.Module) else []
    return ExecutionPolicy(
        execution=execution,
        local=local,
        static_shapes=bool(getattr(pool, "static_shapes", False)),
        uses_batch=uses_batch,
        visible=visible,
        sees_all=all(map(all, visible)),
        k=k,
        share=None if k is None else expected_share(visible, k),
        parameters=sum(p.numel() for p in parameters) / max(len(pool), 1),
        widths=(input_dim or 0, pool.output_dim or 0),
    )

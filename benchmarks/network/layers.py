"""Inside a rank: a layer of a setting, and its steps in one mode or another."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn

from benchmarks.mixture.layers import GivenLogits, contestant, leaf, our_experts
from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import Workload, correlated_logits, draw, skewed_logits
from benchmarks.network.grid import Setting
from mmoe.mixture import MultiGateMixture, PoolTraits
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, Mode, rank, world_size

# More than any batch has: own rows wait for the others, strictly one after another
NEVER = 2**40


class FreeExperts(nn.Module):
    """Experts that cost nothing: each returns its rows as they are."""

    traits = PoolTraits(static_shapes=True)

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.num_experts, self.output_dim = num_experts, width

    def __len__(self) -> int:
        """How many are here."""
        return self.num_experts

    def dense(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The rows, for each expert."""
        return [inputs[0]] * self.num_experts

    def grouped(self, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """The rows."""
        return rows


class RankLayer:
    """This rank's part of a layer that lies on all ranks.

    Args:
        setting: Sizes; the experts are spread evenly.
        free: Whether experts cost nothing, where D = O.
        logits_BGE: Of this rank's rows; None: as the setting says.
        placement: Who holds which expert; None: evenly.
        settings: Of the dispatcher.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        free: bool = False,
        logits_BGE: Tensor | None = None,
        placement: ExpertPlacement | None = None,
        **settings: Any,
    ) -> None:
        self.work = setting.work
        self.logits_BGE = own_logits(setting) if logits_BGE is None else logits_BGE
        placement = placement or ExpertPlacement.even(setting.experts, world_size())
        self.dispatcher = AllToAllDispatcher(placement, **settings)
        # The weights of experts are everybody's; the rows are each rank's own
        everybody = draw(replace(self.work, B=1))
        own = draw(replace(self.work, E=1), seed=1 + rank())
        held = placement.on(rank())
        pool = our_experts(self.work, everybody).part(held)
        if free:
            pool = FreeExperts(len(held), self.work.output_dim)
        self.layer = MultiGateMixture(
            self.work.D,
            self.work.G,
            pool,
            gate=GivenLogits(self.logits_BGE, setting.k),
            dispatcher=self.dispatcher,
        ).train()
        x_BD = leaf(own.x_BD)
        self.contestant = contestant(
            lambda: [self.layer(x_BD).out_BGO], [own.grad_BGO], x_BD, [self.layer]
        )

    def step(self, how: "How") -> Callable[[], None]:
        """What is timed: forward and backward in a mode."""
        return self.as_contestant(how).step

    def as_contestant(self, how: "How") -> Contestant:
        """The layer in a mode."""

        def forward() -> Sequence[Tensor]:
            self.dispatcher.mode = how.mode
            self.dispatcher.overlap_rows = 0 if how.overlaps else NEVER
            return self.contestant.forward()

        return replace(self.contestant, forward=forward)


class How:
    """How a layer runs, from and to JSON.

    Args:
        overlaps: Whether a rank's own rows are computed while others travel.
        shadowed: Experts, or `all`.
        others: Of the mode.
    """

    def __init__(
        self, *, overlaps: bool = False, shadowed: Sequence[int] | str = (), **others: Any
    ) -> None:
        self.overlaps = overlaps
        every = isinstance(shadowed, str)
        self.mode = Mode(shadowed="all" if every else tuple(shadowed), **others)

    def as_json(self) -> dict[str, Any]:
        """What makes the same one."""
        return {**asdict(self.mode), "overlaps": self.overlaps}


def own_logits(setting: Setting) -> Tensor:
    """`logits_BGE` of this rank's rows, of those that are drawn for all ranks."""
    work, ranks = setting.work, world_size()
    whole: Workload = replace(work, B=work.B * ranks)
    drawn = skewed_logits(whole, setting.skew) if setting.skew else correlated_logits(whole, 0.0)
    return drawn[rank() * work.B : (rank() + 1) * work.B]

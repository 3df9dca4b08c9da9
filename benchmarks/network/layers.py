"""Inside a rank: a layer of a setting, and its steps in one mode or another."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.mixture.layers import GivenLogits, contestant, leaf, our_experts
from benchmarks.mixture.race import Contestant
from benchmarks.mixture.workloads import Workload, correlated_logits, draw, skewed_logits
from benchmarks.network.grid import Setting
from mmoe.mixture import MultiGateMixture, Pool, PoolTraits
from mmoe.parallel import AdaptiveMode, AllToAllDispatcher, ExpertPlacement, Mode, rank, world_size

OVERLAP_ROWS = 1024  # the dispatcher's own
MUCH = 100.0  # beside all logits that are drawn
# More than any batch has: own rows wait for the others, strictly one after another
NEVER = 2**40


class FreeExperts(Pool):
    """Experts that cost nothing: each returns its rows as they are."""

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.num_experts, self.output_dim = num_experts, width

    @property
    def traits(self) -> PoolTraits:
        """They read no sizes."""
        return PoolTraits(static_shapes=True)

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
        setting: Sizes.
        free: Whether experts cost nothing, where D = O.
        shared: Of the logits of gates, see `correlated_logits`.
        hot: Share of all rows whose gates want expert 0 most.
        uneven: Share of all rows whose gates want experts of the first half alone, those of others
            the other half.
        placement: Who holds which expert; None: evenly.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        free: bool = False,
        shared: float = 0.0,
        hot: float = 0.0,
        uneven: float = 0.5,
        placement: ExpertPlacement | None = None,
    ) -> None:
        self.setting, self.free, self.work = setting, free, setting.work
        self.logits_BGE = own_logits(setting, shared, hot, uneven)
        self.placement = placement or ExpertPlacement.even(setting.experts, world_size())
        self.dispatcher = AllToAllDispatcher(self.placement)
        # The weights of experts are everybody's; the rows are each rank's own
        everybody = draw(replace(self.work, B=1))
        own = draw(replace(self.work, E=1), seed=1 + rank())
        held = self.placement.on(rank())
        pool = our_experts(self.work, everybody).part(held)
        self.layer = MultiGateMixture(
            self.work.D,
            self.work.G,
            FreeExperts(len(held), self.work.output_dim) if free else pool,
            gate=GivenLogits(self.logits_BGE, setting.k),
            dispatcher=self.dispatcher,
        ).train()
        x_BD = leaf(own.x_BD)
        self.contestant = contestant(
            lambda: [self.layer(x_BD).out_BGO], [own.grad_BGO], x_BD, [self.layer]
        )

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "RankLayer":
        """From JSON: sizes as `setting`, and the rest."""
        return cls(Setting.of(raw["setting"]), **{k: v for k, v in raw.items() if k != "setting"})

    def as_contestant(self, how: "How | Choosing") -> Contestant:
        """The layer in a mode."""

        def forward() -> Sequence[Tensor]:
            how.set(self.dispatcher)
            return self.contestant.forward()

        return replace(self.contestant, forward=forward)


class How:
    """How a layer runs, from and to JSON.

    Args:
        overlaps: Whether a rank's own rows are computed while others travel; None: as the
            dispatcher finds best.
        shadowed: Experts, or `all`.
        others: Of the mode.
    """

    def __init__(
        self,
        *,
        overlaps: bool | None = None,
        shadowed: Sequence[int] | str = (),
        **others: Any,
    ) -> None:
        self.overlaps = overlaps
        every = isinstance(shadowed, str)
        self.mode = Mode(shadowed="all" if every else tuple(shadowed), **others)

    @classmethod
    def of(cls, mode: Mode) -> "How":
        """A mode, else as it is by default."""
        return cls(**asdict(mode))

    def as_json(self) -> dict[str, Any]:
        """What makes the same one."""
        return {**asdict(self.mode), "overlaps": self.overlaps}

    def set(self, dispatcher: AllToAllDispatcher) -> None:
        """For the calls to come."""
        dispatcher.mode = self.mode
        dispatcher.overlap_rows = {None: OVERLAP_ROWS, True: 0, False: NEVER}[self.overlaps]


class Choosing:
    """The layer chooses how it runs.

    Args:
        adaptive: By this.
    """

    def __init__(self, adaptive: AdaptiveMode) -> None:
        self.adaptive = adaptive

    def set(self, dispatcher: AllToAllDispatcher) -> None:
        """For the calls to come."""
        dispatcher.mode = self.adaptive
        dispatcher.overlap_rows = OVERLAP_ROWS


def own_logits(setting: Setting, shared: float, hot: float, uneven: float) -> Tensor:
    """`logits_BGE` of this rank's rows, of those that are drawn for all ranks."""
    work, ranks = setting.work, world_size()
    whole: Workload = replace(work, B=work.B * ranks)
    drawn = skewed_logits(whole, setting.skew) if setting.skew else correlated_logits(whole, shared)
    of_hundred_B = torch.arange(len(drawn)) % 100
    if hot:
        drawn[of_hundred_B < 100 * hot, :, 0] += MUCH
    if uneven != 0.5:
        first_B = of_hundred_B < 100 * uneven
        drawn[first_B, :, : work.E // 2] += MUCH
        drawn[~first_B, :, work.E // 2 :] += MUCH
    return drawn[rank() * work.B : (rank() + 1) * work.B]

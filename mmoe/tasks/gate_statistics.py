"""How the gates use the experts, summed up over batches: the `gates` section of curves.json."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmoe.errors import WHAT_TO_CHANGE, Diverged


@dataclass
class _DomainSums:
    """Sums over rows by their domain, in float64; the last entry is that of other domains.

    Attributes:
        names: Of the M domains.
        weight_NGE: Sum of the weights, of N = M + 1.
        entropy_NG: Sum of the entropies of a row's weights, in nats.
        rows_NG: Rows that asked each gate.
    """

    names: tuple[str, ...]
    weight_NGE: Tensor
    entropy_NG: Tensor
    rows_NG: Tensor

    @classmethod
    def zeros(cls, names: tuple[str, ...], weights_BGE: Tensor) -> "_DomainSums":
        """Makes sums of no rows, of the gates and experts that weights have."""
        _, G, E = weights_BGE.shape
        sums = {"dtype": torch.float64, "device": weights_BGE.device}
        N = len(names) + 1
        zeros_NG = torch.zeros(N, G, **sums)
        return cls(names, torch.zeros(N, G, E, **sums), zeros_NG, zeros_NG.clone())

    def add(self, weights_BGE: Tensor, domains_B: Tensor, asked_BG: Tensor | None) -> None:
        """Adds the rows of a batch; gates that rows do not ask weigh nothing."""
        codes_B = domains_B.long()
        share_BGE = weights_BGE / weights_BGE.sum(2, keepdim=True).clamp(min=1e-300)
        self.weight_NGE.index_add_(0, codes_B, weights_BGE)
        self.entropy_NG.index_add_(0, codes_B, torch.special.entr(share_BGE).sum(2))
        rows_BG = torch.ones_like(weights_BGE[..., 0]) if asked_BG is None else asked_BG
        self.rows_NG.index_add_(0, codes_B, rows_BG.to(torch.float64))

    def __add__(self, other: "_DomainSums") -> "_DomainSums":
        return _DomainSums(
            self.names,
            self.weight_NGE + other.weight_NGE,
            self.entropy_NG + other.entropy_NG,
            self.rows_NG + other.rows_NG,
        )

    def summary(self) -> dict[str, Any]:
        """Returns, of the domains that had rows, means over these; 0 of gates they do not ask."""
        names = (*self.names, None)
        seen = [n for n in range(len(names)) if bool(self.rows_NG[n].any())]
        asked_NG = self.rows_NG.clamp(min=1)
        return {
            "names": [names[n] for n in seen],
            "rows": self.rows_NG[seen].long().tolist(),
            "mean_weight": (self.weight_NGE / asked_NG.unsqueeze(2))[seen].tolist(),
            "entropy": (self.entropy_NG / asked_NG)[seen].tolist(),
        }


class GateRecord(NamedTuple):
    """What the gates of one level did with a batch.

    Attributes:
        level: From 1 on.
        gate_names: G names: a task's, `all tasks` or `shared`.
        expert_names: E names.
        weights_BGE: Each gate's weights, detached.
        visibility_GE: Which gate may see which expert, bool.
        wanted_BGE: What gates that decide together would have weighed alone; None: each did.
        asked_BG: Bool, which gates each row asks; None: all.
        domains_B: Number of each row's domain, of `domain_names`, or of none; None: no domains.
        domain_names: M names; empty: there are no domains.
    """

    level: int
    gate_names: tuple[str, ...]
    expert_names: tuple[str, ...]
    weights_BGE: Tensor
    visibility_GE: Tensor
    wanted_BGE: Tensor | None = None
    asked_BG: Tensor | None = None
    domains_B: Tensor | None = None
    domain_names: tuple[str, ...] = ()


# Of shares from 0 to 1, whose percentiles are told to a thousandth
_BINS = 1000


@dataclass
class _KeptSums:
    """What is left of what gates wanted, where they decide together."""

    kept_G: Tensor
    missing_G: Tensor
    counts_GN: Tensor

    @classmethod
    def zeros(cls, num_gates: int, device: torch.device) -> "_KeptSums":
        whole = {"dtype": torch.int64, "device": device}
        kept_G = torch.zeros(num_gates, dtype=torch.float64, device=device)
        missing_G = torch.zeros(num_gates, **whole)
        return cls(kept_G, missing_G, torch.zeros(num_gates, _BINS + 1, **whole))

    def add(self, picked_BGE: Tensor, wanted_BGE: Tensor, asked_BG: Tensor | None) -> None:
        asked_BG = picked_BGE.new_ones(()) if asked_BG is None else asked_BG
        total_BG = wanted_BGE.sum(2)
        kept_BG = torch.where(picked_BGE, wanted_BGE, 0).sum(2) / total_BG.clamp(min=1e-300)
        self.kept_G += (kept_BG * asked_BG).sum(0)
        first_BG1 = wanted_BGE.argmax(2, keepdim=True)
        self.missing_G += (~picked_BGE.gather(2, first_BG1).squeeze(2) & asked_BG).sum(0)
        bins_GB = (kept_BG.clamp(0, 1) * _BINS).round().long().T
        self.counts_GN.scatter_add_(1, bins_GB, asked_BG.expand_as(kept_BG).T.long())

    def __add__(self, other: "_KeptSums") -> "_KeptSums":
        return _KeptSums(
            self.kept_G + other.kept_G,
            self.missing_G + other.missing_G,
            self.counts_GN + other.counts_GN,
        )

    def summary(self, asked_G: Tensor) -> dict[str, list[float]]:
        """Mean and 5th percentile of the kept probability; how often the first choice is not."""
        below_GN = self.counts_GN.cumsum(1) >= 0.05 * asked_G.unsqueeze(1)
        return {
            "kept_probability": (self.kept_G / asked_G).tolist(),
            "kept_probability_p5": (below_GN.int().argmax(1).double() / _BINS).tolist(),
            "first_choice_missing": (self.missing_G / asked_G).tolist(),
        }


@dataclass
class _LevelSums:
    """Sums over the samples seen so far, in float64, on the device the weights come from."""

    gates: list[str]
    experts: list[str]
    visible_GE: Tensor
    weight_GE: Tensor
    share_GE: Tensor
    entropy_G: Tensor
    picks: Tensor
    pairs: Tensor
    asked_G: Tensor
    samples: int = field(default=0)
    domains: _DomainSums | None = None
    kept: _KeptSums | None = None


_ADDED = ("weight_GE", "share_GE", "entropy_G", "picks", "pairs", "asked_G", "samples")


class GateStatistics:
    """Adds up mean gate weights, their entropy, and how many experts they amount to.

    With `p = weights / Σ_e weights` of one sample and gate (the same thing for a softmax) and
    `H(p) = −Σ_e p_e ln p_e` in nats:

    - `mean_weight`: the mean over samples of the weights, [G, E];
    - `entropy`: the mean over samples of H(p): how widely *one sample* spreads itself;
    - `effective_experts`: exp(`entropy`), `exp(mean H(p))`: the experts one sample uses, 1 … E;
    - `entropy_of_mean`: H(mean over samples of p): how widely the *task* spreads itself;
    - `effective_experts_of_mean`: exp of that, `exp(H(mean p))`: the experts the task uses over all
      samples. It is never the smaller one. The two are equal where the gate gives every sample the
      same weights, so where it ignores its input (the log of their ratio says how much it heeds it,
      in nats);
    - `distinct_pair_ratio`: distinct (sample, expert) pairs over (sample, gate, expert) picks, from
      1/G (all gates pick the same experts) to 1 (no two gates share one); None for dense gates.

    Where gates decide together, of what each would have weighed alone (`wanted_BGE`):

    - `kept_probability`, `kept_probability_p5`: mean and 5th percentile over the samples of the
      share that the experts have which it then mixed, the percentile in steps of a thousandth;
    - `first_choice_missing`: the share of samples whose largest of it was not among them.

    Samples of a gate are those that asked it (`asked_BG`). Where samples have domains
    (`domains_B`), `domains` has their names, how many asked each gate, and its mean weights there.

    Example:
        >>> record = GateRecord(
        ...     level=1, gate_names=("click",), expert_names=("expert 1", "expert 2"),
        ...     weights_BGE=torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]),
        ...     visibility_GE=torch.ones(1, 2, dtype=torch.bool),
        ... )
        >>> statistics = GateStatistics()
        >>> statistics.update([record])
        >>> level = statistics.summary()[0]
        >>> level["mean_weight"], level["effective_experts"], level["effective_experts_of_mean"]
        ([[0.5, 0.5]], [1.0], [2.0])

    Source: exp(entropy) is the perplexity, or Hill number of order 1 (Hill, Ecology 54(2), 1973).
    """

    def __init__(self) -> None:
        self._levels: dict[int, _LevelSums] = {}

    @torch.no_grad()
    def update(self, records: Iterable[GateRecord], num_rows: int | None = None) -> None:
        """Adds one batch.

        Args:
            records: One a level: weights_BGE of any float dtype, visibility_GE bool, and names.
            num_rows: The real rows come first, where a batch is padded at its end; None = all.

        Raises:
            ValueError: Names and shapes disagree, or with the earlier batches.
        """
        for record in records:
            weights_BGE = record.weights_BGE.detach()[:num_rows]
            _check(record, weights_BGE)
            if record.level not in self._levels:
                self._levels[record.level] = _new_sums(record)
            sums = self._levels[record.level]
            if sums.gates != list(record.gate_names) or sums.experts != list(record.expert_names):
                raise ValueError(
                    f"level {record.level}: gates and experts are {list(record.gate_names)} × "
                    f"{list(record.expert_names)}, earlier batches had {sums.gates} × "
                    f"{sums.experts}; use one GateStatistics for each model"
                )
            asked_BG = record.asked_BG
            asked_BG = None if asked_BG is None else asked_BG[:num_rows]
            _add(sums, weights_BGE.to(torch.float64), asked_BG)
            domains_B = record.domains_B
            if domains_B is not None:
                names = record.domain_names
                if sums.domains is None:
                    sums.domains = _DomainSums.zeros(names, weights_BGE)
                sums.domains.add(weights_BGE.to(torch.float64), domains_B[:num_rows], asked_BG)
            wanted_BGE = record.wanted_BGE
            if wanted_BGE is not None:
                if sums.kept is None:
                    sums.kept = _KeptSums.zeros(len(sums.gates), weights_BGE.device)
                wanted_BGE = wanted_BGE.detach()[:num_rows].to(torch.float64)
                sums.kept.add(weights_BGE > 0, wanted_BGE, asked_BG)

    def add(self, others: "GateStatistics") -> None:
        """Adds what another one of the same model saw."""
        for level, theirs in others._levels.items():
            mine = self._levels.setdefault(level, theirs)
            if mine is not theirs:
                for name in _ADDED:
                    setattr(mine, name, getattr(mine, name) + getattr(theirs, name))
                if theirs.domains is not None:
                    both = mine.domains
                    mine.domains = theirs.domains if both is None else both + theirs.domains
                if theirs.kept is not None:
                    mine.kept = theirs.kept if mine.kept is None else mine.kept + theirs.kept

    def summary(self) -> list[dict[str, Any]]:
        """Returns the statistics as plain lists, an entry a level; [] without gates.

        Raises:
            ValueError: A weight was NaN, infinite or negative.
        """
        return [
            _summarise(level, self._levels[level])
            for level in sorted(self._levels)
            if self._levels[level].samples > 0
        ]


def _new_sums(record: GateRecord) -> _LevelSums:
    device = record.weights_BGE.device
    num_gates, num_experts = len(record.gate_names), len(record.expert_names)
    zeros_GE = torch.zeros(num_gates, num_experts, dtype=torch.float64, device=device)
    return _LevelSums(
        gates=list(record.gate_names),
        experts=list(record.expert_names),
        visible_GE=record.visibility_GE.detach().to(device=device, dtype=torch.bool),
        weight_GE=zeros_GE,
        share_GE=zeros_GE.clone(),
        entropy_G=torch.zeros(num_gates, dtype=torch.float64, device=device),
        picks=torch.zeros((), dtype=torch.int64, device=device),
        pairs=torch.zeros((), dtype=torch.int64, device=device),
        asked_G=torch.zeros(num_gates, dtype=torch.int64, device=device),
    )


def _add(sums: _LevelSums, weights_BGE: Tensor, asked_BG: Tensor | None) -> None:
    """Adds up on the weights' own device, so that a GPU never waits for it."""
    total_BG1 = weights_BGE.sum(dim=2, keepdim=True)
    # A gate with nothing left (every pick dropped) counts as zero share and zero entropy.
    share_BGE = weights_BGE / torch.where(total_BG1 > 0, total_BG1, 1.0)
    sums.weight_GE += weights_BGE.sum(dim=0)
    sums.share_GE += share_BGE.sum(dim=0)
    sums.entropy_G += torch.special.entr(share_BGE).sum(dim=(0, 2))
    picked_BGE = weights_BGE > 0
    sums.picks += picked_BGE.sum()
    sums.pairs += picked_BGE.any(dim=1).sum()
    sums.samples += weights_BGE.shape[0]
    sums.asked_G += weights_BGE.shape[0] if asked_BG is None else asked_BG.sum(0)


def _summarise(level: int, sums: _LevelSums) -> dict[str, Any]:
    # entr() of a negative number is −inf, so this catches negative weights as well.
    if not bool(torch.isfinite(sums.weight_GE).all() and torch.isfinite(sums.entropy_G).all()):
        raise Diverged(
            f"level {level}: a gate weight is NaN, infinite or negative; training diverged: "
            f"{WHAT_TO_CHANGE}"
        )
    asked_G = sums.asked_G.clamp(min=1)
    share_GE = sums.share_GE / asked_G.unsqueeze(1)
    share_GE = share_GE / share_GE.sum(dim=1, keepdim=True).clamp_min(
        torch.finfo(torch.float64).tiny
    )
    entropy_G = sums.entropy_G / asked_G
    entropy_of_mean_G = torch.special.entr(share_GE).sum(dim=1)
    picks = int(sums.picks)
    dense = picks == int((sums.asked_G * sums.visible_GE.sum(1)).sum())
    return {
        "level": level,
        "gates": sums.gates,
        "experts": sums.experts,
        "mean_weight": (sums.weight_GE / asked_G.unsqueeze(1)).tolist(),
        "entropy": entropy_G.tolist(),
        "effective_experts": entropy_G.exp().tolist(),
        "entropy_of_mean": entropy_of_mean_G.tolist(),
        "effective_experts_of_mean": entropy_of_mean_G.exp().tolist(),
        "visible": sums.visible_GE.tolist(),
        "distinct_pair_ratio": None if dense or picks == 0 else int(sums.pairs) / picks,
        "samples": sums.samples,
        **({} if sums.kept is None else sums.kept.summary(asked_G)),
        **({} if sums.domains is None else {"domains": sums.domains.summary()}),
    }


def _check(record: GateRecord, weights_BGE: Tensor) -> None:
    expected = (len(record.gate_names), len(record.expert_names))
    if weights_BGE.ndim != 3 or tuple(weights_BGE.shape[1:]) != expected:
        raise ValueError(
            f"level {record.level}: weights_BGE has shape {tuple(weights_BGE.shape)}; expected "
            f"[batch, {expected[0]} gates, {expected[1]} experts] as the names say"
        )
    if tuple(record.visibility_GE.shape) != expected:
        raise ValueError(
            f"level {record.level}: visibility_GE has shape {tuple(record.visibility_GE.shape)}; "
            f"expected {list(expected)}"
        )

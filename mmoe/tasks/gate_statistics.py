"""Use of experts by gates, summed up over batches: the `gates` section of curves.json."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmoe.errors import WHAT_TO_CHANGE, Diverged

# Of shares from 0 to 1, whose percentiles are told to a thousandth
_BINS = 1000


class GateRecord(NamedTuple):
    """Weights that the gates of one level gave to the rows of a batch.

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


@dataclass
class _Level:
    """Sums over the samples seen so far, by their names, on the device the weights come from."""

    gates: list[str]
    experts: list[str]
    visible_GE: Tensor
    domains: tuple[str, ...]
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, amounts: Mapping[str, Tensor]) -> None:
        for name, amount in amounts.items():
            self.sums[name] = self.sums[name] + amount if name in self.sums else amount


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
        self._levels: dict[int, _Level] = {}

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
            _check(record)
            gates, experts = list(record.gate_names), list(record.expert_names)
            visible_GE = record.visibility_GE.detach().to(record.weights_BGE.device, torch.bool)
            new = _Level(gates, experts, visible_GE, record.domain_names)
            level = self._levels.setdefault(record.level, new)
            if (level.gates, level.experts) != (gates, experts):
                raise ValueError(
                    f"level {record.level}: gates and experts are {gates} × {experts}, earlier "
                    f"batches had {level.gates} × {level.experts}; use one GateStatistics for each "
                    "model"
                )
            _add(level, record, num_rows)

    def add(self, others: "GateStatistics") -> None:
        """Adds what another one of the same model saw."""
        for number, theirs in others._levels.items():
            mine = self._levels.setdefault(number, theirs)
            if mine is not theirs:
                mine.add(theirs.sums)

    def summary(self) -> list[dict[str, Any]]:
        """Returns the statistics as plain lists, an entry a level; [] without gates.

        Raises:
            ValueError: A weight was NaN, infinite or negative.
        """
        return [
            _summarise(number, level)
            for number, level in sorted(self._levels.items())
            if int(level.sums["samples"]) > 0
        ]


def _add(level: _Level, record: GateRecord, num_rows: int | None) -> None:
    """Adds up on the weights' own device, so that a GPU never waits for it."""
    weights_BGE = record.weights_BGE.detach()[:num_rows].to(torch.float64)
    asked_BG = torch.ones_like(weights_BGE[..., 0], dtype=torch.bool)
    if record.asked_BG is not None:
        asked_BG = record.asked_BG[:num_rows]
    total_BG1 = weights_BGE.sum(dim=2, keepdim=True)
    # A gate with nothing left (every pick dropped) counts as zero share and zero entropy.
    share_BGE = weights_BGE / torch.where(total_BG1 > 0, total_BG1, 1.0)
    entropy_BGE = torch.special.entr(share_BGE)
    picked_BGE = weights_BGE > 0
    level.add(
        {
            "weight_GE": weights_BGE.sum(dim=0),
            "share_GE": share_BGE.sum(dim=0),
            "entropy_G": entropy_BGE.sum(dim=(0, 2)),
            "picks": picked_BGE.sum(),
            "pairs": picked_BGE.any(dim=1).sum(),
            "asked_G": asked_BG.sum(0),
            "samples": torch.tensor(len(weights_BGE)),
        }
    )
    if record.domains_B is not None:
        codes_B = record.domains_B[:num_rows].long()
        for name, rows_BX in (
            ("weight_NGE", weights_BGE),
            ("entropy_NG", entropy_BGE.sum(2)),
            ("rows_NG", asked_BG.to(torch.float64)),
        ):
            if name not in level.sums:  # the last row is that of other domains
                level.sums[name] = rows_BX.new_zeros(len(level.domains) + 1, *rows_BX.shape[1:])
            level.sums[name].index_add_(0, codes_B, rows_BX)
    if record.wanted_BGE is not None:
        wanted_BGE = record.wanted_BGE.detach()[:num_rows].to(torch.float64)
        level.add(_kept(picked_BGE, wanted_BGE, asked_BG))


def _kept(picked_BGE: Tensor, wanted_BGE: Tensor, asked_BG: Tensor) -> dict[str, Tensor]:
    """The share that gates keep of what each wanted, where they decide together."""
    total_BG = wanted_BGE.sum(2)
    kept_BG = torch.where(picked_BGE, wanted_BGE, 0).sum(2) / total_BG.clamp(min=1e-300)
    first_BG1 = wanted_BGE.argmax(2, keepdim=True)
    bins_GB = (kept_BG.clamp(0, 1) * _BINS).round().long().T
    counts_GN = bins_GB.new_zeros(len(bins_GB), _BINS + 1)
    return {
        "kept_G": (kept_BG * asked_BG).sum(0),
        "missing_G": (~picked_BGE.gather(2, first_BG1).squeeze(2) & asked_BG).sum(0),
        "counts_GN": counts_GN.scatter_add_(1, bins_GB, asked_BG.T.long()),
    }


def _summarise(number: int, level: _Level) -> dict[str, Any]:
    sums = level.sums
    # entr() of a negative number is −inf, so this catches negative weights as well.
    if not bool(sums["weight_GE"].isfinite().all() and sums["entropy_G"].isfinite().all()):
        raise Diverged(
            f"level {number}: a gate weight is NaN, infinite or negative; training diverged: "
            f"{WHAT_TO_CHANGE}"
        )
    asked_G = sums["asked_G"].clamp(min=1)
    share_GE = sums["share_GE"] / asked_G.unsqueeze(1)
    share_GE = share_GE / share_GE.sum(dim=1, keepdim=True).clamp_min(
        torch.finfo(torch.float64).tiny
    )
    entropy_G = sums["entropy_G"] / asked_G
    entropy_of_mean_G = torch.special.entr(share_GE).sum(dim=1)
    picks = int(sums["picks"])
    dense = picks == int((sums["asked_G"] * level.visible_GE.sum(1)).sum())
    found = {
        "level": number,
        "gates": level.gates,
        "experts": level.experts,
        "mean_weight": (sums["weight_GE"] / asked_G.unsqueeze(1)).tolist(),
        "entropy": entropy_G.tolist(),
        "effective_experts": entropy_G.exp().tolist(),
        "entropy_of_mean": entropy_of_mean_G.tolist(),
        "effective_experts_of_mean": entropy_of_mean_G.exp().tolist(),
        "visible": level.visible_GE.tolist(),
        "distinct_pair_ratio": None if dense or picks == 0 else int(sums["pairs"]) / picks,
        "samples": int(sums["samples"]),
    }
    if "kept_G" in sums:
        below_GN = sums["counts_GN"].cumsum(1) >= 0.05 * asked_G.unsqueeze(1)
        found["kept_probability"] = (sums["kept_G"] / asked_G).tolist()
        found["kept_probability_p5"] = (below_GN.int().argmax(1).double() / _BINS).tolist()
        found["first_choice_missing"] = (sums["missing_G"] / asked_G).tolist()
    if "rows_NG" in sums:  # of the domains that had rows; 0 of gates they do not ask
        names, rows_NG = (*level.domains, None), sums["rows_NG"]
        seen = [n for n in range(len(names)) if bool(rows_NG[n].any())]
        asked_NG = rows_NG.clamp(min=1)
        found["domains"] = {
            "names": [names[n] for n in seen],
            "rows": rows_NG[seen].long().tolist(),
            "mean_weight": (sums["weight_NGE"] / asked_NG.unsqueeze(2))[seen].tolist(),
            "entropy": (sums["entropy_NG"] / asked_NG)[seen].tolist(),
        }
    return found


def _check(record: GateRecord) -> None:
    weights_BGE = record.weights_BGE
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

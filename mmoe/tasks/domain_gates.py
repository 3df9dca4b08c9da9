"""How the gates of each domain weigh the experts, summed up over batches."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class DomainSums:
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
    def zeros(cls, names: tuple[str, ...], weights_BGE: Tensor) -> "DomainSums":
        """Makes sums of no rows.

        Args:
            names: Of the domains.
            weights_BGE: Of any number of rows: the gates and experts there are.
        """
        _, G, E = weights_BGE.shape
        sums = {"dtype": torch.float64, "device": weights_BGE.device}
        N = len(names) + 1
        zeros_NG = torch.zeros(N, G, **sums)
        return cls(names, torch.zeros(N, G, E, **sums), zeros_NG, zeros_NG.clone())

    def add(self, weights_BGE: Tensor, domains_B: Tensor, asked_BG: Tensor | None) -> None:
        """Adds the rows of a batch; gates that rows do not ask weigh nothing.

        Args:
            weights_BGE: float64.
            domains_B: Number of each row's domain.
            asked_BG: Bool, which gates each row asks; None: all.
        """
        codes_B = domains_B.long()
        share_BGE = weights_BGE / weights_BGE.sum(2, keepdim=True).clamp(min=1e-300)
        self.weight_NGE.index_add_(0, codes_B, weights_BGE)
        self.entropy_NG.index_add_(0, codes_B, torch.special.entr(share_BGE).sum(2))
        rows_BG = torch.ones_like(weights_BGE[..., 0]) if asked_BG is None else asked_BG
        self.rows_NG.index_add_(0, codes_B, rows_BG.to(torch.float64))

    def __add__(self, other: "DomainSums") -> "DomainSums":
        return DomainSums(
            self.names,
            self.weight_NGE + other.weight_NGE,
            self.entropy_NG + other.entropy_NG,
            self.rows_NG + other.rows_NG,
        )

    def summary(self) -> dict[str, Any]:
        """Returns, of the domains that had rows, means over these; 0 of gates they do not ask.

        Example:
            >>> weights_BGE = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)
            >>> sums = DomainSums.zeros(("feed", "live"), weights_BGE)
            >>> sums.add(weights_BGE, torch.tensor([0, 0]), None)
            >>> sums.summary()["mean_weight"]
            [[[0.75, 0.25]]]
        """
        names = (*self.names, None)
        seen = [n for n in range(len(names)) if bool(self.rows_NG[n].any())]
        asked_NG = self.rows_NG.clamp(min=1)
        return {
            "names": [names[n] for n in seen],
            "rows": self.rows_NG[seen].long().tolist(),
            "mean_weight": (self.weight_NGE / asked_NG.unsqueeze(2))[seen].tolist(),
            "entropy": (self.entropy_NG / asked_NG)[seen].tolist(),
        }

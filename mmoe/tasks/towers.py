"""One head per task: a tower over its mixture, and a logit."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config.experts import Activation
from mmoe.mixture import MLP
from mmoe.mixture.batch_invariant import stable_linear


class Tower(nn.Module):
    """Tower of one task, an MLP and a linear layer: `logit = v · mlp(h) + c`.

    The last product runs in fp32 under autocast too: in bf16 a logit has 8 bits, and rows that the
    model tells apart would tie.

    Args:
        input_dim: Width of the mixture's output.
        hidden: Widths of the MLP; `[]` = only the linear layer.
        activation: `relu`, `gelu` or `silu`.
        dropout: Of the MLP's units, while training.

    Example:
        >>> import torch
        >>> from mmoe.tasks import Tower
        >>> Tower(16, [8])(torch.zeros(4, 16))
        tensor([0., 0., 0., 0.], grad_fn=<SelectBackward0>)

    Source: The last layer starts as in LeCun et al., "Efficient backprop" (1998), section 4.6:
        variance 1 / fan-in; its bias at zero, a probability of one half.
    """

    def __init__(
        self,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.mlp = MLP(input_dim, hidden, activation=activation, dropout=dropout)
        self.logit = nn.Linear(self.mlp.output_dim, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights for the last layer from torch's random generator."""
        nn.init.kaiming_normal_(self.logit.weight, nonlinearity="linear")
        nn.init.zeros_(self.logit.bias)

    def start_at_zero(self) -> None:
        """Gives the last layer weights of zero, so that every logit is 0 until it is trained."""
        nn.init.zeros_(self.logit.weight)

    def forward(self, h_BO: Tensor) -> Tensor:
        """Computes `logit_B` from `h_BO`, fp32 (fp64 where the weights are)."""
        h_BH = self.mlp(h_BO)
        with torch.autocast(h_BH.device.type, enabled=False):
            dtype = torch.promote_types(self.logit.weight.dtype, torch.float32)
            weight, bias = self.logit.weight.to(dtype), self.logit.bias.to(dtype)
            linear = F.linear if self.training else stable_linear
            return linear(h_BH.to(dtype), weight, bias)[:, 0]


class TaskTowers(nn.ModuleList):
    """Towers of T tasks; arguments are those of `Tower`.

    Example:
        >>> import torch
        >>> from mmoe.tasks import TaskTowers
        >>> h_BO = torch.zeros(4, 16)
        >>> TaskTowers(2, 16, [8])([h_BO, h_BO]).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        num_tasks: int,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            Tower(input_dim, hidden, activation=activation, dropout=dropout)
            for _ in range(num_tasks)
        )

    @classmethod
    def of(cls, towers: Iterable[nn.Module]) -> "TaskTowers":
        """Makes them of modules of any class that map `h_BO` to `logit_B`, one per task."""
        made = cls(0, 1, [])
        made.extend(towers)
        return made

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Computes `logits_BT` from T inputs `h_BO`, one per task."""
        if len(inputs) != len(self):
            raise ValueError(
                f"inputs: expected {len(self)} tensors, one per task, got {len(inputs)}"
            )
        return torch.stack([tower(h) for tower, h in zip(self, inputs, strict=True)], dim=1)

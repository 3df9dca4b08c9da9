"""The head of one task: a tower over its mixture, and a logit."""

from collections.abc import Sequence

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
        variance 1 / fan-in. Its bias is zero until a run starts it at the task's base rate
        (`start_at`).
    """

    constants_J: nn.Parameter | None

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
        self.register_parameter("constants_J", None)
        self.reset_parameters()

    @property
    def num_logits(self) -> int:
        """Numbers that it computes of a row: 1, unless `widen` says more."""
        return self.logit.out_features

    def widen(self, num_logits: int, num_constants: int = 0) -> None:
        """Gives it more columns; the last layer is drawn anew.

        Args:
            num_logits: Numbers that it computes of a row.
            num_constants: Learnt numbers, the same for all rows and zero at first, that stand
                behind these.

        Example:
            >>> import torch
            >>> from mmoe.tasks import Tower
            >>> tower = Tower(16, [8])
            >>> tower.widen(1, 4)
            >>> tower(torch.zeros(3, 16)).shape
            torch.Size([3, 5])
        """
        self.logit = nn.Linear(self.mlp.output_dim, num_logits)
        self.constants_J = nn.Parameter(torch.zeros(num_constants)) if num_constants else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights for the last layer from torch's random generator."""
        nn.init.kaiming_normal_(self.logit.weight, nonlinearity="linear")
        nn.init.zeros_(self.logit.bias)

    def start_at_zero(self) -> None:
        """Gives the last layer weights of zero, so that every logit is 0 until it is trained."""
        nn.init.zeros_(self.logit.weight)

    def start_at(self, values: Sequence[float]) -> None:
        """Gives the bias of the last layer, and then the constants, their first values.

        Args:
            values: At most as many as there are; the others stay.

        Example:
            >>> from mmoe.tasks import Tower
            >>> tower = Tower(16, [8])
            >>> tower.start_at([-5.0])
            >>> tower.logit.bias.tolist()
            [-5.0]
        """
        with torch.no_grad():
            own = values[: self.num_logits]
            self.logit.bias[: len(own)] = torch.tensor(own)
            if self.constants_J is not None:
                behind = values[self.num_logits :]
                self.constants_J[: len(behind)] = torch.tensor(behind)

    def forward(self, h_BO: Tensor) -> Tensor:
        """Computes `logit_B` from `h_BO`, fp32 (fp64 where the weights are).

        Of several columns, `logits_BK`.
        """
        return self.head(self.mlp(h_BO))

    def head(self, h_BH: Tensor) -> Tensor:
        """Computes `logit_B` (or `logits_BK`) from what the MLP gave, likewise."""
        with torch.autocast(h_BH.device.type, enabled=False):
            dtype = torch.promote_types(self.logit.weight.dtype, torch.float32)
            weight, bias = self.logit.weight.to(dtype), self.logit.bias.to(dtype)
            linear = F.linear if self.training else stable_linear
            return self.columns_of(linear(h_BH.to(dtype), weight, bias))

    def columns_of(self, logits_BK: Tensor) -> Tensor:
        """Returns the last layer's columns as the tower's: `logit_B` of one, constants behind."""
        if self.constants_J is not None:
            constants_BJ = self.constants_J.to(logits_BK.dtype).expand(len(logits_BK), -1)
            return torch.cat([logits_BK, constants_BJ], dim=1)
        return logits_BK[:, 0] if self.num_logits == 1 else logits_BK

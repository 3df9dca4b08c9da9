"""`DINEncoder`: events weighed by how much they have to do with the target."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import MLP, stable_linear
from mmoe.models.sequences.events import Events
from mmoe.ops import TargetAttention, target_attention
from mmoe.ops.target_attention import MOST_DEEPER


class DINEncoder(nn.Module):
    """Sum of a row's events, each weighed by an MLP that sees it beside the target.

    `out = Σ_v a(e_v, q) e_v`, `a = mlp([ē, q̄, ē − q̄, ē ⊙ q̄])`, with `x̄ = x / √(mean x² + 10⁻⁶)`.
    The weights do not sum to 1 unless `softmax` is set: their sum says how strong the interest is.
    The first layer's product with ē, q̄ and their difference is taken apart, since it is linear:
    `A ē + C (ē ⊙ q̄)` is computed for each event, `B q̄` once for each row. There is no padding.
    All of it is one operator, `mmoe.ops.target_attention`, in fp32 also under autocast.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width D of an event and of the target.
        max_length: Most events of a row; of no use here.
        hidden: Widths of the MLP, 1 to 8, ReLU after each.
        softmax: Weights that sum to 1.

    Example:
        >>> import torch
        >>> events = Events(torch.ones(3, 4), torch.tensor([2, 1]), torch.ones(2, 4))
        >>> DINEncoder(4, 10)(events).shape
        torch.Size([2, 4])

    Source: Zhou et al., "Deep interest network for click-through rate prediction" (KDD 2018),
        section 4.3 and equation 3, with ReLU instead of Dice, and with e and q scaled before the
        MLP reads them. Rows of tables begin near zero: without it two epochs over the 60,000 rows
        of `benchmarks.inputs` end 0.066 above the oracle's log-loss, where the mean of the events
        does, with it 0.043. Its mini-batch aware regularisation
        (section 5.1), which decays the rows of a batch alone, is
        `training.embedding_optimizer.weight_decay`.
    """

    def __init__(
        self,
        input_dim: int,
        max_length: int,
        *,
        hidden: Sequence[int] = (36,),
        softmax: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= len(hidden) <= 1 + MOST_DEEPER:
            raise ValueError(
                f"hidden: expected 1 to {1 + MOST_DEEPER} widths, got {len(hidden)}: {list(hidden)}"
            )
        self.output_dim, self.softmax = input_dim, softmax
        self.of_event = nn.Linear(2 * input_dim, hidden[0], bias=False)
        self.of_target = nn.Linear(input_dim, hidden[0])
        self.rest = MLP(hidden[0], hidden[1:])
        self.weight = nn.Linear(hidden[-1], 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer in (self.of_event, self.of_target):
            # As one layer that reads all four
            nn.init.normal_(layer.weight, std=(2 / (4 * self.output_dim)) ** 0.5)
        nn.init.zeros_(self.of_target.bias)
        self.rest.reset_parameters()
        nn.init.kaiming_normal_(self.weight.weight, nonlinearity="linear")
        nn.init.zeros_(self.weight.bias)

    def forward(self, events: Events) -> Tensor:
        """Computes `[B, output_dim]`."""
        return self._attend(events).out_BD

    def weights(self, events: Events) -> Tensor:
        """Computes `a(e_v, q)`, how much each event counts: to look inside.

        Without `softmax` they may be negative, and only compare within one model: another scale of
        the events undoes another scale of the weights.

        Args:
            events: V events of B rows, with targets.

        Returns:
            `[V]`, float32 or float64.

        Example:
            >>> import torch
            >>> events = Events(torch.ones(3, 4), torch.tensor([2, 1]), torch.ones(2, 4))
            >>> DINEncoder(4, 10, softmax=True).eval().weights(events).tolist()
            [0.5, 0.5, 1.0]
        """
        return self._attend(events).weights_V

    def _attend(self, events: Events) -> TargetAttention:
        e_VD, q_BD = events.e_VD, events.target_BD
        assert q_BD is not None, "the config has seen to it that there is a target"
        q_BD = _of_unit_size(q_BD)
        return target_attention(
            e_VD,
            events.lengths_B,
            q_BD,
            self.of_event.weight.t(),
            self._apply_layer(self.of_target, q_BD),
            self.weight.weight[0],
            self.weight.bias,
            deeper=[_of_layer(layer) for layer in self.rest.layers],
            softmax=self.softmax,
        )

    def _apply_layer(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return layer(x) if self.training else stable_linear(x, layer.weight, layer.bias)


def _of_layer(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    return layer.weight.t(), layer.bias


def _of_unit_size(x_ND: Tensor) -> Tensor:
    """Scales rows to a mean square of 1; those near zero less, which keeps their gradients small.

    Rows of tables begin near zero, and products of two of them are nothing that a unit could see.
    """
    return F.rms_norm(x_ND, (x_ND.shape[1],), eps=1e-6)

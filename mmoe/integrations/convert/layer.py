"""`ConvertedMoE`: a mixture in place of a feed-forward part, and what is read from all of them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture import GateTraits, MoE, MoEOutput, Tree, traits_of


class ConvertedMoE(MoE):
    """A `MoE` that returns its output alone, as what it stands for did, and keeps its losses.

    What a call's gate adds to the loss, and how many picks a capacity dropped, stay with the layer
    until `auxiliary_losses` takes them or the next call comes.

    Attributes:
        last_losses: Of the last call, by name; empty where there are none, or they were taken.
        last_dropped: Picks that a capacity dropped in the last call, int64; None: nothing can be.
    """

    last_losses: dict[str, Tensor]
    last_dropped: Tensor | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.last_losses, self.last_dropped = {}, None

    def forward(
        self, x: Tree, return_auxiliary: bool = False, return_statistics: bool = False
    ) -> Tree | MoEOutput:
        """Mixes the experts for every row, as `MoE` does.

        Args:
            x: `[..., D]`.
            return_auxiliary: Return a `MoEOutput` with the gate's losses.
            return_statistics: Also what the gate did.
        """
        result = super().forward(x, return_auxiliary=True, return_statistics=return_statistics)
        assert isinstance(result, MoEOutput)
        if _is_a_call():
            self._keep(result)
        return result if return_auxiliary or return_statistics else result.out

    def _keep(self, result: MoEOutput) -> None:
        # Asked before anything is set, so that a program that has no losses sets nothing
        if result.auxiliary_losses or self.last_losses:
            self.last_losses = dict(result.auxiliary_losses)
        if result.dropped is not None or self.last_dropped is not None:
            self.last_dropped = result.dropped

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the losses, whose history cannot be copied."""
        return self.__dict__ | {"last_losses": {}, "last_dropped": None}

    def extra_repr(self) -> str:
        """Returns how many parameters it has, and how many of them one row uses."""
        counts = parameter_counts(self)
        return f"parameters={counts.total}, active={counts.active}"


def _is_a_call() -> bool:
    """Whether it is a call, not a forward repeated by checkpointing or traced for export."""
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return torch._C._current_graph_task_id() == -1


def converted(model: nn.Module) -> Iterator[tuple[str, ConvertedMoE]]:
    """Yields the mixtures of a model that `convert` made, and their names."""
    for name, module in model.named_modules():
        if isinstance(module, ConvertedMoE):
            yield name, module


def auxiliary_losses(model: nn.Module) -> dict[str, Tensor]:
    """Takes the gates' losses of the last forward pass from all converted mixtures of a model.

    They are already scaled: add them to the loss, before `backward`. Each is taken once: a second
    call gives nothing until there was another forward pass. There are some in training alone, and
    of gates that have one (`gate={"kind": "top_k", "balance_loss": 0.01}`). Of a mixture that is
    called several times in one pass, as where layers share it, they are those of its last call.

    Args:
        model: The converted network, wrapped or not.

    Returns:
        Scalars by `MIXTURE.LOSS`, the name of the mixture's module and of its loss.

    Raises:
        ValueError: Losses that no gradient can pass through, of re-entrant checkpointing.

    Example:
        >>> import torch
        >>> from mmoe.integrations.convert import auxiliary_losses, convert
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = convert(layer, 4, gate={"kind": "top_k", "balance_loss": 0.01})
        >>> loss = model(torch.randn(2, 5, 16)).square().mean()
        >>> losses = auxiliary_losses(model)
        >>> list(losses), auxiliary_losses(model)
        (['linear1.balance_loss'], {})
        >>> (loss + sum(losses.values())).backward()
    """
    taken: dict[str, Tensor] = {}
    for name, layer in converted(model):
        losses, layer.last_losses = layer.last_losses, {}
        learns = any(weight.requires_grad for weight in layer.mixture.gate.parameters())
        for loss_name, loss in losses.items():
            if torch.is_grad_enabled() and learns and not loss.requires_grad:
                raise ValueError(
                    f"{name or 'model'}: expected a {loss_name} with a gradient, got one computed "
                    "without; checkpoint layers with use_reentrant=False, or read it under "
                    "torch.no_grad() as well"
                )
            taken[f"{name}.{loss_name}" if name else loss_name] = loss
    return taken


class ParameterCounts(NamedTuple):
    """Numbers of a network's parameters.

    Attributes:
        total: All of them.
        active: Those that one row uses: of experts, as many as its gate picks.
    """

    total: int
    active: int


def parameter_counts(model: nn.Module) -> ParameterCounts:
    """Counts a network's parameters, and those that one row uses.

    Where experts lie on several ranks, they are those of this rank.

    Example:
        >>> import torch
        >>> from mmoe.integrations.convert import convert, parameter_counts
        >>> linears = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        >>> layer = torch.nn.Sequential(linears[0], torch.nn.ReLU(), linears[1])
        >>> parameter_counts(layer), parameter_counts(convert(layer, num_experts=4, k=1))
        (ParameterCounts(total=552, active=552), ParameterCounts(total=2240, active=584))
    """
    total = sum(weight.numel() for weight in model.parameters())
    resting = 0
    for _, layer in converted(model):
        mixture = layer.mixture
        k = traits_of(mixture.gate, GateTraits).k
        picks = k if isinstance(k, int) else mixture.num_experts
        own = sum(weight.numel() for weight in mixture.experts.parameters())
        resting += own * (mixture.num_experts - picks) // mixture.num_experts
    return ParameterCounts(total, total - resting)

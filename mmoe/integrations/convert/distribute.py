"""`distribute`: the experts of a network's mixtures over ranks; DDP or FSDP2 does the rest."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mmoe.integrations.convert.conversion import put_in_place
from mmoe.mixture import LocalDispatcher, MultiGateMixture, Pool
from mmoe.mixture.dispatcher import OneRank
from mmoe.mixture.gates.learned import GateSettings
from mmoe.mixture.multi_gate import mixtures_in
from mmoe.parallel import AllReduceSums, AllToAllDispatcher, ExpertPlacement

Gradients = Literal["mean", "sum"]


def distribute(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    replicas: DeviceMesh | None = None,
    gradients: Gradients = "mean",
) -> nn.Module:
    """Spreads the experts of all mixtures of a network over ranks, in place.

    Each rank keeps its share of every mixture's experts, all starting as on the first rank; rows
    travel. Gates and all that is no expert stay whole on every rank, for DDP or FSDP2:

        model = distribute(convert(model), mesh)
        model = DistributedDataParallel(model)  # leaves experts alone; or:
        fully_shard(model, mesh=mesh, ignored_params=set(spread_parameters(model)))

    Both average gradients over ranks, so each rank calls `backward` on the mean over its own rows,
    and the loss is the mean of the ranks'. An expert gets the sum over the rows of all ranks, which
    is therefore divided by their number; losses of gates are those of all ranks' rows. All of that
    is training in one process on the rows of all, where ranks have equally many.

    Hooks on the experts' parameters do it: call it again on the original where parameters were put
    in the place of others (`copy.deepcopy`, `load_state_dict(assign=True)`).

    Args:
        model: The network, on its device, not yet wrapped. Its own mixtures are spread as well.
        mesh: One dimension of ranks, such as `mesh["experts"]`. A rank holds E / W of E experts,
            or one more; none where there are more ranks than experts.
        replicas: Another dimension, over which the same experts are repeated: their gradients are
            added up over it too. With `mesh` it covers the ranks that share a batch.
        gradients: `mean`: as DDP and FSDP2 average. `sum`: the loss is the sum of what each rank
            calls `backward` on, and the caller adds up gradients of what all ranks have.

    Returns:
        The model.

    Raises:
        ValueError: No mixtures; a mesh of several dimensions; a network that is spread, wrapped or
            sharded already; a pool that cannot be shared out.

    Example:
        >>> import torch
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> from mmoe.integrations.convert import convert, distribute
        >>> from mmoe.parallel import ensure_process_group
        >>> ensure_process_group()
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = distribute(convert(layer, 4), init_device_mesh("cpu", (1,)))
        >>> type(model.linear1.mixture.dispatcher).__name__, model(torch.zeros(2, 5, 16)).shape
        ('AllToAllDispatcher', torch.Size([2, 5, 16]))
    """
    _check_meshes(mesh, replicas)
    if gradients not in get_args(Gradients):
        raise ValueError(f"gradients: expected 'mean' or 'sum', got {gradients!r}")
    mixtures = _mixtures_to_spread(model)
    _same_on_all(model, [mesh] if replicas is None else [replicas, mesh])
    for _, mixture in mixtures:
        put_in_place(model, mixture, _spread(mixture, mesh, replicas, gradients))
    _hide_from_ddp(model)
    return model


def _same_on_all(model: nn.Module, meshes: Sequence[DeviceMesh]) -> None:
    """Gives all ranks the first one's weights: along one dimension after another."""
    for tensor in (*model.parameters(), *model.buffers()):
        for mesh in meshes:
            dist.broadcast(tensor.detach(), group=mesh.get_group(), group_src=0)


class _Gradient:
    """An expert's gradient: over its replicas, and by how many ranks' means it came of."""

    def __init__(self, replicas: dist.ProcessGroup | None, means: int) -> None:
        self.replicas, self.means = replicas, means

    def __call__(self, gradient: Tensor) -> Tensor:
        if self.replicas is not None:
            gradient = gradient.clone()
            dist.all_reduce(gradient, group=self.replicas)
        return gradient if self.means == 1 else gradient / self.means


class LossSums:
    """Sums of what gates' losses are computed from, for gradients that are averaged over ranks.

    Every rank computes the same loss, and knows its gradient by its own rows alone. Averaged over W
    ranks it would come to a W-th of itself, so each rank's is taken W times.

    Args:
        groups: Over which sums go, one after another.
        scale: W.
    """

    def __init__(self, groups: list[dist.ProcessGroup], scale: int) -> None:
        self.sums, self.scale = [AllReduceSums(group) for group in groups], scale

    def __deepcopy__(self, memo: dict[int, Any]) -> "LossSums":
        """Copies share it: it holds no state, and a process group cannot be copied."""
        return self

    def of_losses(self, *amounts: Tensor | int) -> tuple[Any, ...]:
        """Adds up over ranks; the gradient of an amount is `scale` times its own."""
        totals: tuple[Any, ...] = amounts
        for sums in self.sums:
            totals = sums.of_losses(*totals)
        return tuple(self._scaled(total) for total in totals)

    def of_rows(self, *amounts: Tensor) -> tuple[Tensor, ...]:
        """Adds up what the rows of every rank read, and gradients likewise."""
        for sums in self.sums:
            amounts = sums.of_rows(*amounts)
        return amounts

    def _scaled(self, total: Any) -> Any:
        if self.scale == 1 or not isinstance(total, Tensor) or not total.is_floating_point():
            return total
        # 0, with the gradient that is missing
        return total + (self.scale - 1) * (total - total.detach())


def _sum_losses(gate: nn.Module, groups: list[dist.ProcessGroup], scale: int) -> None:
    options = getattr(gate, "options", None)
    if isinstance(options, GateSettings) and isinstance(options.ranks, OneRank):
        options.ranks = LossSums(groups, scale)


def _spread(
    mixture: MultiGateMixture, mesh: DeviceMesh, replicas: DeviceMesh | None, gradients: Gradients
) -> MultiGateMixture:
    """The mixture with this rank's experts, and the others elsewhere."""
    group, shared = mesh.get_group(), None if replicas is None else replicas.get_group()
    ranks = mesh.size() * (1 if replicas is None else replicas.size())
    means = 1 if gradients == "sum" else ranks
    placement = ExpertPlacement.even(mixture.num_experts, mesh.size())
    dispatcher = AllToAllDispatcher(placement, group=group)
    spread = MultiGateMixture(
        mixture.input_dim,
        mixture.num_gates,
        mixture.experts.part(placement.on(mesh.get_local_rank())),
        gate=mixture.gate,
        visibility=mixture.visibility_GE.cpu(),
        expert_source=mixture.expert_source,
        gate_source=mixture.gate_source,
        execution=mixture.execution,
        dispatcher=dispatcher,
        capacity=mixture.capacity,
    )
    spread = spread.to(mixture.visibility_GE.device).train(mixture.training)
    for weight in spread.experts.parameters():
        if weight.requires_grad:
            weight.register_hook(_Gradient(shared, means))
    _sum_losses(spread.gate, [group] if shared is None else [group, shared], means)
    return spread


def _hide_from_ddp(model: nn.Module) -> None:
    """DDP neither copies nor averages what each rank has of its own."""
    names = [
        f"{name}.experts.{inner}"
        for name, mixture in mixtures_in(model)
        for inner, _ in (*mixture.experts.named_parameters(), *mixture.experts.named_buffers())
    ]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


def _check_meshes(mesh: DeviceMesh, replicas: DeviceMesh | None) -> None:
    for name, each in (("mesh", mesh), *([] if replicas is None else [("replicas", replicas)])):
        if not isinstance(each, DeviceMesh):
            raise ValueError(
                f"{name}: expected a DeviceMesh, got {each!r}; make one, as "
                "init_device_mesh('cpu', (world_size(),))"
            )
        if each.ndim != 1:
            names = each.mesh_dim_names or ("without names",)
            raise ValueError(
                f"{name}: expected one dimension of ranks, got {each.ndim} ({', '.join(names)}); "
                "pass one, as mesh['experts']"
            )


def _mixtures_to_spread(model: nn.Module) -> list[tuple[str, MultiGateMixture]]:
    if isinstance(model, DistributedDataParallel) or any(
        isinstance(weight, DTensor) for weight in model.parameters()
    ):
        raise ValueError(
            "model: expected one that is neither wrapped nor sharded, got parameters of DDP or "
            "FSDP; call distribute first"
        )
    mixtures = list(mixtures_in(model))
    if not mixtures:
        raise ValueError("model: it has no mixture of experts; make some with convert(model)")
    for name, mixture in mixtures:
        _check_mixture(name, mixture)
    return mixtures


def _check_mixture(name: str, mixture: MultiGateMixture) -> None:
    if not name:
        raise ValueError("model: expected a network that holds mixtures, got a mixture itself")
    if not isinstance(mixture.dispatcher, LocalDispatcher):
        raise ValueError(f"model: the experts of {name} are spread already; distribute once")
    if type(mixture.experts).part is Pool.part:
        kind = type(mixture.experts).__name__
        raise ValueError(
            f"model: the experts of {name} are a {kind}, which has no part(experts); use "
            "MLPExperts or ExpertPool"
        )

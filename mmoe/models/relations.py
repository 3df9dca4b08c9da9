"""Makes what relations between tasks ask for: transfers between towers, imputation towers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mmoe.config import ModelConfig, TaskConfig
from mmoe.config.relations import TRANSFERS, AdaptiveTransferConfig, parents_of
from mmoe.config.tasks import EntireSpaceTask
from mmoe.models.network import ImputationTowers, Level, MixtureNetwork
from mmoe.models.sections import build_towers
from mmoe.tasks.calibrator import Calibrator
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer

Transfer = AdaptiveTransfer | BayesianTransfer

# Of a network, its config and its tasks
MakeTransfer = Callable[[MixtureNetwork, ModelConfig, Sequence[TaskConfig]], Transfer | None]


class Relations(NamedTuple):
    """Modules by which tasks of a network learn from others.

    Attributes:
        transfer: Between towers; None: they stand alone.
        imputation: Towers of tasks with `counterfactual: dr`; None: there are none.
    """

    transfer: Transfer | None
    imputation: ImputationTowers | None


def relate_tasks(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> Relations:
    """Makes what lets towers read others, as `model.transfer` says, and imputation towers.

    What it adds draws its weights from torch's random generator, after all that the network has.

    Args:
        network: Of `model`.
        model: The `model` section of a config.
        tasks: In the order of the towers.

    Example:
        >>> from mmoe.config import ModelConfig, TaskConfig
        >>> from mmoe.models import build_network
        >>> from mmoe.models.relations import relate_tasks
        >>> tasks = [TaskConfig(name="click", label="click"),
        ...          TaskConfig(name="buy", label="buy", after="click")]
        >>> model = ModelConfig(transfer="aitm")
        >>> network = build_network(model, 20, ["click", "buy"])
        >>> type(relate_tasks(network, model, tasks).transfer).__name__
        'AdaptiveTransfer'
    """
    make: MakeTransfer = TRANSFERS.implementation(model.transfer)
    transfer, imputation = make(network, model, tasks), None
    asking = [
        column
        for column, task in enumerate(tasks)
        if isinstance(task, EntireSpaceTask) and task.counterfactual == "dr"
    ]
    if asking:
        towers = build_towers(model, len(asking), _width(network))
        imputation = ImputationTowers(dict(zip(asking, towers, strict=True)))
    return Relations(transfer, imputation)


def no_transfer(network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]) -> None:
    """Makes none."""


def adaptive_transfer(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> AdaptiveTransfer:
    """Makes AITM's attention, through which goes what towers read."""
    settings = model.transfer
    assert isinstance(settings, AdaptiveTransferConfig)
    trained = model.trained_tasks(tasks)
    weight, pairs = settings.calibrator(trained)
    return AdaptiveTransfer(
        parents_of(tasks),
        _width(network),
        dim=settings.dim,
        calibrator=Calibrator(weight, pairs, trained) if pairs else None,
    )


def bayesian_transfer(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> BayesianTransfer:
    """Makes layers by which towers' hidden layers read one another, as in DBMTL."""
    return BayesianTransfer(parents_of(tasks), network.towers)


def _width(network: MixtureNetwork) -> int:
    """Of what towers read."""
    last = network.levels[-1]
    assert isinstance(last, Level) and last.mixture.output_dim is not None
    return last.mixture.output_dim

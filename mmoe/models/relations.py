"""Puts into a network what relations between its tasks ask for: transfers, imputation towers."""

from collections.abc import Callable, Sequence

from mmoe.config import ModelConfig, TaskConfig
from mmoe.config.relations import TRANSFERS, AdaptiveTransferConfig, parents_of
from mmoe.config.tasks import EntireSpaceTask
from mmoe.models.network import ImputationTowers, Level, MixtureNetwork
from mmoe.models.sections import build_towers
from mmoe.tasks.calibrator import Calibrator
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer

# Of a network, its config and its tasks
AddTransfer = Callable[[MixtureNetwork, ModelConfig, Sequence[TaskConfig]], None]


def relate_tasks(network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]) -> None:
    """Lets towers read others as `model.transfer` says, and adds imputation towers.

    What it adds draws its weights from torch's random generator, after all that the network has.

    Args:
        network: Of `model`; changed in place.
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
        >>> relate_tasks(network, model, tasks)
        >>> type(network.transfer).__name__
        'AdaptiveTransfer'
    """
    add: AddTransfer = TRANSFERS.implementation(model.transfer)
    add(network, model, tasks)
    asking = [
        column
        for column, task in enumerate(tasks)
        if isinstance(task, EntireSpaceTask) and task.counterfactual == "dr"
    ]
    if asking:
        towers = build_towers(model, len(asking), _width(network))
        network.imputation = ImputationTowers(dict(zip(asking, towers, strict=True)))


def no_transfer(network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]) -> None:
    """Leaves the network as it is."""


def adaptive_transfer(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> None:
    """Lets what towers read go through AITM's attention."""
    settings = model.transfer
    assert isinstance(settings, AdaptiveTransferConfig)
    trained = model.trained_tasks(tasks)
    weight, pairs = settings.calibrator(trained)
    network.transfer = AdaptiveTransfer(
        parents_of(tasks),
        _width(network),
        dim=settings.dim,
        calibrator=Calibrator(weight, pairs, trained) if pairs else None,
    )


def bayesian_transfer(
    network: MixtureNetwork, model: ModelConfig, tasks: Sequence[TaskConfig]
) -> None:
    """Lets towers' hidden layers read one another, as in DBMTL."""
    network.transfer = BayesianTransfer(parents_of(tasks), network.towers)


def _width(network: MixtureNetwork) -> int:
    """Of what towers read."""
    last = network.levels[-1]
    assert isinstance(last, Level) and last.mixture.output_dim is not None
    return last.mixture.output_dim

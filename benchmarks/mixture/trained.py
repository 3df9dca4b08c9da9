"""Logits of gates that were trained on the synthetic funnel."""

import torch
from torch import Tensor, nn

from benchmarks.mixture.workloads import Workload
from benchmarks.racing.clock import Clock
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.recipes import load_recipe
from mmoe.mixture.gates.logits import GateLogits
from mmoe.models.build import build_ranker
from mmoe.parallel.launch.process_group import ensure_process_group
from mmoe.train import PreparedData, prepare
from mmoe.train.optim import build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import train_step

BATCHES = 3  # of the test rows, which the gates have not seen
# The recipe knows two labels; a shop's ranker has more of them, made of the same events.
TASKS = (
    {"name": "click", "label": "click"},
    {"name": "purchase", "label": "purchase", "observed_when": "click"},
    {"name": "long_visit", "label": "click == 1 and session_minutes >= 12"},
    {"name": "big_purchase", "label": "purchase == 1 and price >= 20"},
)


def trained_logits(num_experts: int, work: Workload, clock: Clock) -> list[Tensor]:
    """Trains the `synthetic-funnel` recipe with four tasks and top-k gates.

    Args:
        num_experts: E.
        work: How many rows a batch has, k, and where the logits go.
        clock: Told of progress; a single round asks for a short training.

    Returns:
        `logits_BGE` of a few batches of test rows.
    """
    config = _config(num_experts, work.k, quick=clock.rounds == 1)
    ensure_process_group()
    data = prepare(config)
    torch.manual_seed(config.seed)
    ranker = build_ranker(config, data.encoder)
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    state = TrainingState(ranker, optimizer, None, Position())
    _train(config, state, data, clock)
    ranker.eval()
    return [_logits(state, data, number, work) for number in range(BATCHES)]


def _config(num_experts: int, k: int | None, *, quick: bool) -> RunConfig:
    overrides = [
        f"model.num_experts={num_experts}",
        "model.gate.kind=top_k",
        f"model.gate.k={k}",
    ]
    if quick:
        overrides += ["data.options.rows=200000", "training.epochs=1"]
    raw = load_recipe("synthetic-funnel", overrides).model_dump(mode="json")
    return config_from_dict({**raw, "tasks": list(TASKS)})


def _train(config: RunConfig, state: TrainingState, data: PreparedData, clock: Clock) -> None:
    training = config.training
    steps_per_epoch = -(-len(data.train) // training.batch_size)
    state.ranker.train()
    for epoch in range(training.epochs):
        for batch in data.train.epoch_batches(config.seed, epoch, training.batch_size):
            train_step(state, [batch], config, steps_per_epoch * training.epochs)
            state.position.step += 1
        clock.say(f"trained gates of {config.model.num_experts} experts: epoch {epoch + 1}")


def _logits(state: TrainingState, data: PreparedData, number: int, work: Workload) -> Tensor:
    """What the gates make of one batch, caught on its way through the network."""
    gates = [m for m in state.ranker.modules() if isinstance(m, GateLogits)]
    assert len(gates) == 1, "the MMoE has one gate module"
    caught: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, logits_BGE: Tensor) -> None:
        caught.append(logits_BGE)

    hook = gates[0].register_forward_hook(keep)
    assert data.test.held is not None, "the recipe's rows are in memory"
    batch = data.test.held.batch(slice(number * work.B, (number + 1) * work.B))
    with torch.no_grad():
        state.ranker(batch)
    hook.remove()
    return caught[0].to(work.device)

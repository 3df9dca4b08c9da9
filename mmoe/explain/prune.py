"""`prune_run`: a new run without some experts, and trained on where that is asked for."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from mmoe.checkpoint import CheckpointFolder, CheckpointSaver
from mmoe.checkpoint.weights import outline
from mmoe.config import DeviceKind, ModelConfig, RunConfig
from mmoe.datasets import FeatureEncoder, Splits, load_splits
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.explain.experts import ExpertPlace, check_explainable, places_of
from mmoe.mixture import GateTraits, traits_of
from mmoe.mixture.moves import TensorSource
from mmoe.models import Level, MixtureNetwork
from mmoe.parallel import training_group
from mmoe.run import Reporter, RunDirectory, SilentReporter, write_json
from mmoe.train import FinishedRun, PreparedData, prepare, train_run
from mmoe.train.claim import RunClaim, with_absolute_paths, without_paths
from mmoe.train.run_data import RunMaturity
from mmoe.train.state import Position
from mmoe.train.warm_start.places import NamedNetwork, tensor_sources

# Of a checkpoint: what scores, the weights behind an average, moments by `PARAMETER/MOMENT`
_PARTS = ("network", "raw", "optimizer")
# What pruned.json is called, beside config.yaml
RECORD = "pruned.json"


def prune_run(
    run: RunDirectory,
    experts: Sequence[int],
    out: str | Path,
    *,
    finetune_epochs: int = 0,
    data: str | Path | TableLike | None = None,
    splits: Splits | None = None,
    reporter: Reporter | None = None,
    device: DeviceKind | None = None,
) -> FinishedRun:
    """Writes a run without some experts, evaluated as any; trains it on where that is asked for.

    Weights of the best checkpoint stay as they are, but for the experts' and their columns of the
    gates: at first it predicts what `mmoe explain` measured (of gates that pick, where the next
    best takes the place). Epochs of fine-tuning are those of a warm start: a schedule of their own,
    the optimizer's moments kept; where none is better than the start, that stays the best.

    Args:
        run: A trained run; it is not changed.
        experts: Numbers from 1 on, as `mmoe explain` has them.
        out: Folder of the new run; must be empty or absent.
        finetune_epochs: How many to train on.
        data: Where the run's rows are now, or rows in memory; None: where they were.
        splits: Tables that are split already.
        reporter: Told of progress.
        device: Overrides training.device.

    Returns:
        The new run, and what its metrics.json holds.

    Raises:
        ValueError: There is no such expert, a task depends on one alone, or `out` or the data
            cannot be used. Nothing is written then.
    """
    reporter, out = reporter or SilentReporter(), Path(out)
    config, encoder = run.config(), FeatureEncoder.load(run.vocabulary)
    folder = CheckpointFolder(run.checkpoint)
    stored = folder.tensors("best", "model")
    network = check_explainable(outline(config, encoder, stored), str(run.path))
    gone = _chosen_places(network, experts)
    pruned = _pruned_config(config, network, gone)
    if holds_rows(data):
        pruned, splits, data = without_paths(pruned), load_splits(pruned, data), None
    pruned = _trained_for(with_absolute_paths(pruned, data), finetune_epochs)
    pruned_network = outline(pruned, encoder, stored)  # refuses what cannot be, before all else
    kept = _sources(network, pruned_network, gone)
    with training_group(), RunClaim(reporter.say) as claim:
        if claim.find(out, pruned, resume=False) is not None:
            raise ValueError(f"{out}: exists already; choose another --out")
        prepared = _prepared(run, pruned, encoder, splits, reporter)
        states = _left_of(folder, kept, pruned_network)
        new = claim.start(pruned, prepared, out, None)
        _begin(claim, new, run, states, finetune_epochs, gone)
    names = ", ".join(place.title(len(network.levels)) for place in gone)
    reporter.say(f"{out}: {run.path} without {names}")
    return train_run(
        pruned, out, splits=splits, shared=prepared, resume=True, reporter=reporter, device=device
    )


def _trained_for(config: RunConfig, epochs: int) -> RunConfig:
    """The config with so many epochs; 0: unchanged."""
    if epochs < 0:
        raise ValueError(f"--finetune-epochs: expected 0 or more, got {epochs}")
    if epochs == 0:
        return config
    training = config.training.model_copy(update={"epochs": epochs})
    return config.model_copy(update={"training": training})


def _prepared(
    run: RunDirectory,
    pruned: RunConfig,
    encoder: FeatureEncoder,
    splits: Splits | None,
    reporter: Reporter,
) -> PreparedData:
    """Reads the rows of a pruned run as those of the whole one."""
    with reporter.track(f"reading {pruned.name}", None, "rows") as tracker:
        return prepare(
            pruned,
            encoder=FeatureEncoder(config=pruned, rules=encoder.rules),
            splits=splits,
            advance=tracker.advance,
            matured=RunMaturity.resumed(run, pruned),
        )


def _sources(
    network: MixtureNetwork, pruned: MixtureNetwork, gone: Sequence[ExpertPlace]
) -> dict[str, TensorSource]:
    """Returns each pruned tensor's source: experts that stay keep their order."""
    before, now = NamedNetwork(network, {}), NamedNetwork(pruned, {})
    origins: list[dict[str, str]] = []
    for number, (level, old) in enumerate(zip(pruned.levels, network.levels, strict=True)):
        mine = {place.expert for place in gone if place.level == number}
        kept = [name for e, name in enumerate(old.expert_names) if e not in mine]
        origins.append(dict(zip(level.expert_names, kept, strict=True)))
    return tensor_sources(now, before, origins, regroups=True)


def _left_of(
    folder: CheckpointFolder, sources: Mapping[str, TensorSource], network: MixtureNetwork
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns what is left of the best checkpoint's two states, which fits the pruned network."""
    model = _left(folder.tensors("best", "model").whole(), sources)
    _check_fits(network, model)
    return model, _left(folder.tensors("best", "training").whole(), sources)


def _left(tensors: Mapping[str, Tensor], sources: Mapping[str, TensorSource]) -> dict[str, Tensor]:
    """Returns what is left of a checkpoint's tensors, averages and moments too."""
    found = {name: t for name, t in tensors.items() if name.partition(".")[0] not in _PARTS}
    stored: dict[str, list[str]] = {}
    for full_name in (name for name in tensors if name not in found):
        part = full_name.partition(".")[0]
        of = full_name.rpartition("/")[0] if part == "optimizer" else full_name
        stored.setdefault(of, []).append(full_name)
    for name, source in sources.items():
        for part in _PARTS:
            old = f"{part}.{source.name}"
            for full_name in stored.get(old, ()):
                left = tensors[full_name]
                for dim, places in source.places.items() if left.dim() else ():
                    left = left.index_select(dim, torch.from_numpy(places))
                found[f"{part}.{name}{full_name.removeprefix(old)}"] = left
    return found


def _check_fits(network: MixtureNetwork, model: Mapping[str, Tensor]) -> None:
    """Refuses a model of somebody's whose tensors are not those of fewer experts."""
    for name, own in network.state_dict().items():
        there = model.get(f"network.{name}")
        if there is None or there.shape != own.shape:
            shape = "none" if there is None else str(list(there.shape))
            raise ValueError(
                f"--experts: tensor {name!r} of the pruned model has shape {list(own.shape)}, and "
                f"what is left of the run's {shape}; a gate or pool of your own has to say "
                "which dimensions are the experts' (`axes`)"
            )


def _begin(
    claim: RunClaim,
    new: RunDirectory,
    run: RunDirectory,
    states: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    finetune_epochs: int,
    gone: Sequence[ExpertPlace],
) -> None:
    """Writes the first checkpoint of the new run, which training then judges."""
    record = {
        "run": str(run.path.absolute()),
        "experts": [
            {"number": one.number, "level": one.level + 1, "name": one.name} for one in gone
        ],
    }
    position = asdict(Position(finished=finetune_epochs == 0))
    try:
        write_json(new.path / RECORD, record)
        if run.columns_file.exists():  # of a stream nobody reads the training rows again
            shutil.copyfile(run.columns_file, new.columns_file)
        with CheckpointSaver(CheckpointFolder(new.checkpoint), background=False) as saver:
            saver.save(0, *states, position, best=True)
    except BaseException:
        claim.give_up(new)  # half a run must not stand in the way of the next try
        raise


def _chosen_places(network: MixtureNetwork, numbers: Sequence[int]) -> list[ExpertPlace]:
    """The experts with these numbers; refuses those that cannot go."""
    places = places_of(network)
    if not numbers:
        raise ValueError("--experts: expected numbers such as 3,5, got none")
    for number in numbers:
        if not 1 <= number <= len(places):
            raise ValueError(
                f"--experts: there is no expert {number}; the run has 1 to {len(places)}, as "
                "`mmoe explain` numbers them"
            )
    gone = [places[number - 1] for number in sorted(set(numbers))]
    for index, level in enumerate(network.levels):
        mine = {place.expert for place in gone if place.level == index}
        if not mine:
            continue
        traits = traits_of(level.mixture.gate, GateTraits)
        if traits.spells_numbers:
            raise ValueError(
                "--experts: the codes of model.gate.kind dselect_k spell the experts' numbers, so "
                "none can go; train with another gate to prune"
            )
        _check_gates(level, mine, least=traits.k or 1)
    return gone


def _check_gates(level: Level, gone: set[int], least: int) -> None:
    """Refuses to leave a gate no expert, or fewer than the `least` that it picks."""
    seen_GE = level.mixture.visibility_GE.tolist()
    for name, row in zip(level.gate_names, seen_GE, strict=True):
        left = [e for e, sees in enumerate(row) if sees and e not in gone]
        who = "all tasks" if name == "all tasks" else f"{name!r}"
        if not left:
            raise ValueError(
                f"--experts: the gate of {who} would see no expert, and what it is for depends on "
                "one of these alone; keep one that it sees (`mmoe explain` says which is worth "
                "most)"
            )
        if len(left) < least:
            raise ValueError(
                f"--experts: the gate of {who} picks {least} experts and would see {len(left)}; "
                "prune fewer, or train with a smaller model.gate.k first"
            )


def _pruned_config(
    config: RunConfig, network: MixtureNetwork, gone: Sequence[ExpertPlace]
) -> RunConfig:
    """The config of the same model without some experts.

    One pool has fewer experts then (`num_experts`, or the counts under `experts`), numbered anew;
    of own and shared experts those that are gone are named under `model.pruned`.
    """
    model = config.model
    if any(stage.experts for stage in model.stages):
        raise ValueError(
            "--experts: gates and experts of this run came one after another (model.stages), and "
            "frozen ones score as before; prune the run that it began with, and train on that"
        )
    raw = model.model_dump()
    if always := raw.get("gate", {}).get("always", 0):
        raw["gate"]["always"] -= sum(one.expert < always for one in gone)
        if not raw["gate"]["always"]:
            raise ValueError(
                "--experts: no expert of every row (model.gate.always) would be left, which all "
                "rows are mixed of; keep one"
            )
    if not model.has_one_pool:
        raw["pruned"] += [{"level": one.level + 1, "name": one.name} for one in gone]
    elif model.experts is None:
        raw["num_experts"] = len(places_of(network)) - len(gone)
        raw["request_experts"] -= sum(one.expert < model.experts_of_requests for one in gone)
        if model.experts_of_requests and not raw["request_experts"]:
            raise ValueError(
                "--experts: no expert of the request would be left; keep one, or train anew with "
                "num_experts a number alone"
            )
    else:
        places, left = {one.expert for one in gone}, []
        first = 0
        for kind in raw["experts"]:
            mine = range(first, first + kind["count"])
            first = mine.stop
            count = sum(e not in places for e in mine)
            left += [{**kind, "count": count}] if count else []
        raw["experts"] = left
        raw["num_experts"] = sum(kind["count"] for kind in left)
    try:
        pruned: ModelConfig = type(model).model_validate(raw)
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ValueError(f"--experts: {reason}") from None
    numbers = {one.number for one in gone}
    shadowed = [
        number - sum(n < number for n in numbers)
        for number in config.parallel.shadowed
        if number not in numbers
    ]
    parallel = config.parallel.model_copy(update={"shadowed": shadowed})
    return config.model_copy(update={"model": pruned, "parallel": parallel})

"""`prune_run`: a new run without some experts, and trained on where that is asked for."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.outline import outline
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.checkpoint.weights import load_weights
from mmoe.config import DeviceKind, RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.rows.splits import Splits
from mmoe.explain.places import ExpertPlace, check_explainable, levels_of
from mmoe.explain.pruned_config import chosen_places, pruned_config
from mmoe.metrics.of_tasks import monitor_value
from mmoe.mixture.draws import borrowed_generators
from mmoe.models.build import build_ranker
from mmoe.models.frozen import without_weight_files
from mmoe.models.network import MixtureNetwork
from mmoe.parallel import spread_layout, training_group
from mmoe.predictor import Predictor
from mmoe.run.atomic_files import write_json
from mmoe.run.console import Reporter, SilentReporter
from mmoe.run.directory import RunDirectory
from mmoe.train import train_run
from mmoe.train.evaluate import split_metrics
from mmoe.train.fit import FinishedRun
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.run_folder.claim import RunClaim
from mmoe.train.run_folder.data import RunMaturity
from mmoe.train.run_folder.start import with_absolute_paths, without_paths
from mmoe.train.state import Position
from mmoe.train.warm_start.places import NamedNetwork, TensorSource, tensor_sources

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
    if finetune_epochs < 0:
        raise ValueError(f"--finetune-epochs: expected 0 or more, got {finetune_epochs}")
    config, encoder = run.config(), FeatureEncoder.load(run.vocabulary)
    folder = CheckpointFolder(run.checkpoint)
    stored = folder.tensors("best", "model")
    network = check_explainable(outline(config, encoder, stored), str(run.path))
    gone = chosen_places(network, experts)
    pruned = pruned_config(config, network, gone)
    if holds_rows(data):
        pruned, splits, data = without_paths(pruned), load_splits(pruned, data), None
    pruned = with_absolute_paths(pruned, data)
    if finetune_epochs:
        training = pruned.training.model_copy(update={"epochs": finetune_epochs})
        pruned = pruned.model_copy(update={"training": training})
    pruned_network = outline(pruned, encoder, stored)  # refuses what cannot be, before all else
    kept = _sources(network, pruned_network, gone)
    with training_group(), RunClaim(reporter.say) as claim:
        if claim.find(out, pruned, resume=False) is not None:
            raise ValueError(f"{out}: exists already; choose another --out")
        with reporter.track(f"reading {config.name}", None, "rows") as tracker:
            prepared = prepare(
                pruned,
                encoder=FeatureEncoder(config=pruned, rules=encoder.rules),
                splits=splits,
                advance=tracker.advance,
                matured=RunMaturity.resumed(run, pruned),
            )
        model, training = (
            _left(folder.tensors("best", state).whole(), kept) for state in ("model", "training")
        )
        _check_fits(pruned_network, model)
        new = claim.start(pruned, prepared, out, None)
        claim.run = new
        try:
            _begin(new, run, (model, training), pruned, prepared, finetune_epochs, gone)
        except BaseException:
            claim.give_up(new)
            raise
    names = ", ".join(place.title(len(levels_of(network))) for place in gone)
    reporter.say(f"{out}: {run.path} without {names}")
    return train_run(
        pruned, out, splits=splits, shared=prepared, resume=True, reporter=reporter, device=device
    )


def _sources(
    network: MixtureNetwork, pruned: MixtureNetwork, gone: Sequence[ExpertPlace]
) -> dict[str, TensorSource]:
    """What each tensor of the pruned network was: experts that stay keep their order."""
    before, now = NamedNetwork(network, {}), NamedNetwork(pruned, {})
    origins: list[dict[str, str]] = []
    for number, (level, old) in enumerate(zip(now.levels, before.levels, strict=True)):
        mine = {place.expert for place in gone if place.level == number}
        kept = [name for e, name in enumerate(old.expert_names) if e not in mine]
        origins.append(dict(zip(level.expert_names, kept, strict=True)))
    return tensor_sources(now, before, origins, regroups=True)


def _left(tensors: Mapping[str, Tensor], sources: Mapping[str, TensorSource]) -> dict[str, Tensor]:
    """What is left of a checkpoint's tensors, of its averages and moments too."""
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
    """Refuses a model of somebody's whose tensors are not those of fewer experts.

    Raises:
        ValueError: Names the tensor.
    """
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
    new: RunDirectory,
    run: RunDirectory,
    states: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    config: RunConfig,
    prepared: PreparedData,
    finetune_epochs: int,
    gone: Sequence[ExpertPlace],
) -> None:
    """Writes the first checkpoint of the new run, as judged on its validation rows."""
    model, training = states
    record = {
        "run": str(run.path.absolute()),
        "experts": [
            {"number": one.number, "level": one.level + 1, "name": one.name} for one in gone
        ],
    }
    write_json(new.path / RECORD, record)
    if run.columns_file.exists():  # of a stream nobody reads the training rows again
        shutil.copyfile(run.columns_file, new.columns_file)
    position = Position(finished=finetune_epochs == 0)
    with CheckpointSaver(CheckpointFolder(new.checkpoint), background=False) as saver:
        saver.save(0, model, training, asdict(position), best=True)
        value, metrics = _judged(new, config, prepared)
        if value is not None:  # else there is nothing to compare by: the newest weights are kept
            position.best_value = value
            entry = {"epoch": 0, "step": 0, "validation": metrics, "monitor": value, "best": True}
            position.history.append(entry)
            saver.save(0, model, training, asdict(position), best=True)


def _judged(
    new: RunDirectory, config: RunConfig, prepared: PreparedData
) -> tuple[float | None, dict[str, Any]]:
    """What the model that is left is worth on the validation rows."""
    with borrowed_generators():
        ranker = build_ranker(without_weight_files(config), prepared.encoder)
    stored = CheckpointFolder(new.checkpoint).tensors("best", "model")
    load_weights(ranker, stored, spread_layout(ranker.network))
    metrics, _ = split_metrics(config, Predictor(ranker, config), prepared.validation)
    return monitor_value(metrics, config.training.monitor), metrics

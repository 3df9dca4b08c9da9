"""Accuracy of a SwinV2-like classifier beside the same with mixtures, at equal FLOPs a place."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.convert.bench import GATE, Bench, PictureSettings
from benchmarks.convert.pictures import CLASSES, draw_pictures
from benchmarks.convert.swin import SwinClassifier
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from mmoe.integrations.convert import auxiliary_losses, convert

RATE, DECAY = 1e-3, 0.05  # both networks'
_TEST_SEED = 1_000_000


def dense_classifier(settings: PictureSettings, seed: int) -> nn.Module:
    """The network before it is converted."""
    torch.manual_seed(seed)
    return SwinClassifier(settings.width, CLASSES)


def converted_classifier(settings: PictureSettings, seed: int) -> nn.Module:
    """The same with mixtures whose picked experts are as wide together."""
    network, k = dense_classifier(settings, seed), settings.k
    # Stage by stage, since the second is twice as wide
    for stage, width in (("first", settings.width), ("second", 2 * settings.width)):
        mixture = convert(
            getattr(network, stage),
            settings.num_experts,
            k=k,
            gate=GATE,
            init="fresh",
            hidden=4 * width // k,
        )
        setattr(network, stage, mixture)
    return network


CLASSIFIERS: Mapping[str, Callable[[PictureSettings, int], nn.Module]] = {
    "dense": dense_classifier,
    "converted": converted_classifier,
}


def accuracies(bench: Bench) -> list[Result]:
    """Trains both with every seed."""
    jobs = [(name, seed) for seed in range(bench.seeds) for name in CLASSIFIERS]
    found = dict(zip(jobs, bench.each(partial(accuracy, bench.pictures), jobs), strict=True))
    shares = {name: [found[name, seed] for seed in range(bench.seeds)] for name in CLASSIFIERS}
    less = [ours - dense for ours, dense in zip(shares["converted"], shares["dense"], strict=True)]
    mean = sum(less) / len(less)
    note = f"share of pictures, {CLASSES} classes; {mean:+.4f} to the dense network's, paired"
    return [
        Result(key="swin_accuracy", spread=Spread.of(shares["converted"]), note=note),
        Result(key="swin_accuracy_dense", spread=Spread.of(shares["dense"])),
    ]


def accuracy(settings: PictureSettings, job: tuple[str, int]) -> float:
    """Trains a network and says the share of test pictures whose class it names.

    Args:
        settings: Of pictures and training.
        job: The network's name, and the seed.
    """
    name, seed = job
    network = CLASSIFIERS[name](settings, seed)
    train(network, settings, seed)
    pictures, classes = draw_pictures(settings.tests, _TEST_SEED)
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(part).argmax(1) for part in pictures.split(256)])
    return (found == classes).double().mean().item()


def train(network: nn.Module, settings: PictureSettings, seed: int) -> None:
    """Several times over the same pictures, the rate falling to 0."""
    pictures, classes = draw_pictures(settings.pictures, seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    steps = settings.epochs * (settings.pictures // settings.batch)
    factor = partial(rate_factor, steps=steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(settings.epochs):
        order = torch.randperm(settings.pictures, generator=generator)
        for rows in order.split(settings.batch)[: settings.pictures // settings.batch]:
            loss = F.cross_entropy(network(pictures[rows]), classes[rows])
            loss = loss + sum(auxiliary_losses(network).values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def rate_factor(step: int, steps: int) -> float:
    """Share of the highest rate: up over a tenth of the steps, then down as half a cosine."""
    return min(1.0, 10 * (step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


RACES = (Race(("swin_accuracy",), accuracies),)

"""Races of converted networks against the dense ones."""

import ast
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.convert import example
from benchmarks.convert.networks import (
    CLASSES,
    FORMS,
    OWN,
    CharTransformer,
    Grammar,
    SwinClassifier,
    best_loss,
    draw_grammar,
    draw_pictures,
    own_part,
)
from benchmarks.racing.child import onednn_is_exact, onednn_products
from benchmarks.racing.harness import Clock, Race, Result, Spread, Target, speedup
from benchmarks.racing.layers import (
    Contestant,
    IndexLayer,
    MaskLayer,
    check_equal,
    contestant,
    leaf,
)
from mmoe.integrations.convert import RECOGNISERS, ConvertedMoE, auxiliary_losses, convert, register

# What every race gets, and how much is trained

FEWEST_SEEDS = 3
# Of every mixture that is trained: without the loss some experts get few rows
GATE = {"kind": "top_k", "balance_loss": 0.01}
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
Job = TypeVar("Job")
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The grammar, the network and its training."""

    words: int = 1024
    states: int = 256
    of_state: int = 16  # Words that a state may write
    width: int = 64  # D of the Transformer
    layers: int = 2  # Of the Transformer
    hidden: int = 256  # Units of a dense feed-forward layer
    context: int = 64  # Characters of a window
    batch: int = 16  # Windows of a step
    steps: int = 1500  # Of the dense network
    evaluations: int = 25  # In as many steps
    windows: int = 256  # That are evaluated
    num_experts: int = 16  # Of each converted layer
    k: int = 2  # Experts of a character, each `hidden / k` wide

    @property
    def every(self) -> int:
        return self.steps // self.evaluations


@dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """Images, the network and its training."""

    pictures: int = 16384  # To train on
    tests: int = 2048  # Pictures whose class is told at the end
    width: int = 48  # Channels of the first stage
    batch: int = 64  # Pictures of a step
    epochs: int = 5  # Over the pictures
    num_experts: int = 8  # Of each converted layer
    k: int = 2  # Experts of a place


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The clock, and what is trained."""

    clock: Clock  # For times, and told of progress
    seeds: int = 3  # Of trainings that are compared
    text: TextSettings = field(default_factory=TextSettings)  # Of `steps_to_dense_loss`
    pictures: PictureSettings = field(default_factory=PictureSettings)  # Of `swin_accuracy`
    workers: int = 1  # Processes that train at a time, of one thread each; 1: this one

    def each(self, train: Callable[[Job], Found], jobs: Sequence[Job]) -> list[Found]:
        """Trains several networks, as many at a time as there are workers.

        Networks as small as these gain little from a second thread. What comes out is the same.
        """
        if self.workers == 1:
            return list(self._told(map(train, jobs), len(jobs)))
        with ProcessPoolExecutor(
            self.workers, get_context("spawn"), torch.set_num_threads, (1,)
        ) as pool:
            return list(self._told(pool.map(train, jobs), len(jobs)))

    def _told(self, trained: Iterable[Found], count: int) -> Iterator[Found]:
        for number, found in enumerate(trained, start=1):
            self.clock.say(f"  {number}/{count} trained")
            yield found


# Trains a network that predicts the next character, on text that never repeats

WARM_UP = 100  # steps
FLOOR = 0.1  # of the highest rate, at the end of the dense network's steps and from there on
DECAY, LARGEST_NORM = 0.01, 1.0
_GRAMMAR_SEED, _TEST_SEED, _CHUNK = 0, 1_000_000, 50  # _CHUNK: batches that are drawn at once


@dataclass(frozen=True)
class Text:
    """The grammar, and windows of it that no training meets."""

    grammar: Grammar  # What writes
    settings: TextSettings  # Of the windows
    test_WL: Tensor  # Characters, `[windows, context + 1]`

    def batches(self, seed: int) -> Iterator[Tensor]:
        batch, chunk = self.settings.batch, 0
        while True:
            own_seed = _TEST_SEED + 1 + 1000 * seed + chunk
            yield from _windows(
                self.grammar, batch * _CHUNK, self.settings.context, own_seed
            ).split(batch)
            chunk += 1


@functools.cache
def text_of(settings: TextSettings) -> Text:
    grammar = draw_grammar(
        _GRAMMAR_SEED, words=settings.words, states=settings.states, of_state=settings.of_state
    )
    test_WL = _windows(grammar, settings.windows, settings.context, _TEST_SEED)
    return Text(grammar, settings, test_WL)


def _windows(grammar: Grammar, count: int, context: int, seed: int) -> Tensor:
    """Windows one behind the other in texts of their own, so that they begin anywhere in a word."""
    length = context + 1
    streams = min(count, 64)
    in_stream = math.ceil(count / streams)
    text_NC = grammar.text(streams * in_stream * length, seed, streams)
    windows_WL = torch.from_numpy(text_NC).long().view(-1, length)
    shuffled = torch.randperm(len(windows_WL), generator=torch.Generator().manual_seed(seed))
    return windows_WL[shuffled[:count]]


def dense_network(settings: TextSettings, seed: int) -> CharTransformer:
    torch.manual_seed(seed)
    return CharTransformer(settings.width, settings.layers, settings.hidden, settings.context)


class Training:
    """Trains a network, and says its loss on the test windows from time to time.

    The rate falls as half a cosine over the dense network's steps, to a tenth, and stays there.
    """

    def __init__(self, network: nn.Module, text: Text, rate: float, seed: int) -> None:
        self.network, self.text, self.rate = network, text, rate
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=rate, weight_decay=DECAY, fused=True
        )
        self.batches, self.steps = text.batches(seed), 0
        self.curve: list[tuple[int, float]] = []

    def until(self, steps: int) -> list[tuple[int, float]]:
        """Goes on until so many steps are done; returns steps, and nats of a character then."""
        while self.steps < steps:
            self.step()
            if self.steps % self.text.settings.every == 0:
                self.curve.append((self.steps, round(self.loss(), 5)))
        return list(self.curve)

    def step(self) -> None:
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * schedule(self.steps, self.text.settings.steps)
        self.network.train()
        loss = next_loss(self.network, next(self.batches))
        loss = loss + sum(auxiliary_losses(self.network).values())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), LARGEST_NORM)
        self.optimizer.step()

    @torch.no_grad()
    def loss(self) -> float:
        self.network.eval()
        parts = self.text.test_WL.split(64)
        total = sum(len(part_BL) * next_loss(self.network, part_BL).item() for part_BL in parts)
        return total / len(self.text.test_WL)


def schedule(step: int, steps: int) -> float:
    falling = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return min(1.0, step / WARM_UP) * (FLOOR + (1 - FLOOR) * falling)


def next_loss(network: nn.Module, window_BL: Tensor) -> Tensor:
    logits_BLA = network(window_BL[:, :-1])
    return F.cross_entropy(logits_BLA.flatten(0, 1), window_BL[:, 1:].flatten())


# Lines that a user adds to a program, counted in one that runs

_PACKAGE = "mmoe"


def lines(bench: Bench) -> list[Result]:
    source = Path(example.__file__).read_text(encoding="utf-8")
    found = added_lines(source)
    loss = example.main()
    if not math.isfinite(loss):
        raise ValueError(f"example: expected a loss that is a number, got {loss}")
    texts = [source.splitlines()[number - 1].strip() for number in found]
    spread = Spread.single(float(len(found)))
    return [Result("lines", spread, note="; ".join(texts), digits=0)]


def added_lines(source: str) -> list[int]:
    """Numbers of the lines, imports left out, that say anything which was imported from mmoe.

    A call that goes over several lines counts as all of them.
    """
    tree, own = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _PACKAGE:
            own |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] == _PACKAGE]
            own |= {alias.asname or _PACKAGE for alias in names}
    found: set[int] = set()
    for statement in ast.walk(tree):
        # A body's statements are looked at one by one
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body"):
            names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if names & own:
                found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return sorted(found)


LINE_RACES = (Race({"lines": Target(1, at_most=True)}, lines),)


# A step of a converted layer over a Python loop over the same experts

ROWS, WIDTH, HIDDEN, NUM_EXPERTS, K = 4096, 256, 512, 16, 2
TOLERANCE = 1e-4


class _Experts(nn.Module):
    """The experts of a converted layer as modules, and its gate's logits as a linear layer."""

    def __init__(self, layer: ConvertedMoE) -> None:
        nn.Module.__init__(self)  # the loops' own would draw experts
        mixture = layer.mixture
        gate: Any = mixture.gate
        self.k, self.num_experts, self.output_dim = K, mixture.num_experts, WIDTH
        self.gate_ED = nn.Parameter(gate.logits.weights[0][0].detach().clone())
        pool: Any = mixture.experts
        self.experts = nn.ModuleList(feed_forward() for _ in range(mixture.num_experts))
        with torch.no_grad():
            expert: Any
            for e, expert in enumerate(self.experts):
                for linear, weight_EIO, bias_EO in zip(
                    expert[::2], pool.weights, pool.biases, strict=True
                ):
                    linear.weight.copy_(weight_EIO[e].T)
                    linear.bias.copy_(bias_EO[e])


class IndexLoop(_Experts, IndexLayer):
    """For every expert: find its rows, gather, run, weigh, add."""


class MaskLoop(_Experts, MaskLayer):
    """Every expert on all rows, times its weight, which is 0 where it was not picked."""


def feed_forward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))


def against_loops(bench: Bench) -> list[Result]:
    torch.manual_seed(0)
    network = convert(feed_forward(), NUM_EXPERTS, k=K, init="fresh")
    (layer,) = (module for module in network.modules() if isinstance(module, ConvertedMoE))
    gate: Any = layer.mixture.gate
    with torch.no_grad():  # as spread out as a trained gate
        gate.logits.weights[0].normal_(std=WIDTH**-0.5)
    x_BD, grad_BD = torch.randn(2, ROWS, WIDTH)
    loops = {"index": IndexLoop(layer), "mask": MaskLoop(layer)}
    contestants = {"mmoe": _of(network, x_BD, grad_BD)}
    contestants |= {name: _of(loop, x_BD, grad_BD) for name, loop in loops.items()}
    if onednn_is_exact(bench.clock.device):
        contestants |= {
            f"{name}_onednn": _of(loop, x_BD, grad_BD, outside=onednn_products)
            for name, loop in loops.items()
        }
    check_equal("loops", contestants, TOLERANCE)
    times = bench.clock.race("loops", {name: each.step for name, each in contestants.items()})
    return [speedup(_key(name), times, name) for name in contestants if name != "mmoe"]


def _key(name: str) -> str:
    loop, _, backend = name.partition("_")
    return f"vs_naive_{loop}_E{NUM_EXPERTS}" + (f"_{backend}" if backend else "")


def _of(module: nn.Module, x_BD: Tensor, grad_BD: Tensor, **settings) -> Contestant:
    x_BD = leaf(x_BD)
    return contestant(lambda: [module(x_BD)], [grad_BD], x_BD, [module.train()], **settings)


LOOP_RACES = (Race({_key("index"): Target(1.2), _key("mask"): Target(4)}, against_loops),)


# Steps to the dense Transformer's final loss for a converted one, at equal FLOPs a token

PATIENCE = 2  # times the dense network's steps: then a loss counts as not reached
FEWEST_NATS = 0.05  # that the dense network's loss has to be above the entropy
SWEEP_SEED = 100  # no seed of a comparison
Curve = Sequence[tuple[int, float]]


def converted_network(settings: TextSettings, seed: int) -> nn.Module:
    """The dense network of that seed with mixtures whose picked experts are as wide together."""
    dense, width = dense_network(settings, seed), settings.hidden // settings.k
    return convert(dense, settings.num_experts, k=settings.k, gate=GATE, init="fresh", hidden=width)


NETWORKS: Mapping[str, Callable[[TextSettings, int], nn.Module]] = {
    "dense": dense_network,
    "converted": converted_network,
}


@dataclass(frozen=True)
class TextJob:
    """One training."""

    network: str  # Of `NETWORKS`
    rate: float  # The highest learning rate
    seed: int  # Of weights and batches
    # A loss for which it goes on longer than the dense network; None: none
    wanted: float | None = None


def steps_to_dense_loss(bench: Bench) -> list[Result]:
    """Chooses both learning rates by the same sweep, then trains both with every seed."""
    text, steps = text_of(bench.text), bench.text.steps
    entropy, best = text.grammar.entropy(), best_loss(text.grammar, text.test_WL.numpy())
    rates, details = _sweep(bench)
    train, seeds = partial(trained, bench.text), range(bench.seeds)
    dense = bench.each(train, [TextJob("dense", rates["dense"], seed) for seed in seeds])
    finals = [curve[-1][1] for curve in dense]
    check_above(max(entropy, best), finals)
    converted = bench.each(
        train,
        [
            TextJob("converted", rates["converted"], seed, wanted)
            for seed, wanted in zip(seeds, finals, strict=True)
        ],
    )
    shares = []
    for seed, curve, wanted, of_dense in zip(seeds, converted, finals, dense, strict=True):
        shares.append(reached(curve, wanted, steps) / steps)
        bench.clock.say(f"  seed {seed}: {wanted:.4f} after {shares[-1]:.3f} of the steps")
        details.append({"seed": seed, "dense": of_dense, "converted": curve})
    others = [dict(curve)[steps] for curve in converted]
    note = (
        f"dense {_mean(finals):.3f}, converted {_mean(others):.3f} nats a character; entropy "
        f"{entropy:.3f}, best reader of a window {best:.3f}; "
        f"seeds: {', '.join(f'{share:.3f}' for share in shares)}"
    )
    result = Result("steps_to_dense_loss", Spread.of(shares), note=note, details=details)
    return [result, _in_time(bench, rates, result.spread)]


def trained(settings: TextSettings, job: TextJob) -> Curve:
    """Trains one network from its start; returns its losses on the test windows, by steps."""
    network = NETWORKS[job.network](settings, job.seed)
    training = Training(network, text_of(settings), job.rate, job.seed)
    curve = training.until(settings.steps)
    while job.wanted is not None and min(loss for _, loss in curve) > job.wanted:
        if training.steps >= PATIENCE * settings.steps:
            break
        curve = training.until(training.steps + settings.every)
    return curve


def reached(curve: Curve, loss: float, steps: int) -> float:
    """Where a curve first is at a loss, on a line between evaluations.

    Returns:
        Steps; where it never is, `PATIENCE * steps`.
    """
    before: tuple[int, float] | None = None
    for step, value in curve:
        if value <= loss:
            if before is None:
                return step
            return before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - value)
        before = step, value
    return PATIENCE * steps


def check_above(floor: float, losses: Sequence[float]) -> None:
    """Refuses a text that the dense network learns whole."""
    if min(losses) < floor + FEWEST_NATS:
        raise ValueError(
            f"text: expected dense losses of {floor + FEWEST_NATS:.4f} or more, "
            f"{FEWEST_NATS} above the best there is, got {min(losses):.4f}; take more words"
        )


def _sweep(bench: Bench) -> tuple[dict[str, float], list[dict[str, object]]]:
    jobs = [TextJob(name, rate, SWEEP_SEED) for name in NETWORKS for rate in RATES]
    curves = bench.each(partial(trained, bench.text), jobs)
    losses = {(job.network, job.rate): c[-1][1] for job, c in zip(jobs, curves, strict=True)}
    rates, details = {}, []
    for name in NETWORKS:
        rates[name] = min(RATES, key=lambda rate: losses[name, rate])
        swept = {f"{rate:g}": losses[name, rate] for rate in RATES}
        details.append({"network": name, "rate": rates[name], "sweep": swept})
        bench.clock.say(f"  {name}, rate {rates[name]:g} of {swept}")
    return rates, details


def _in_time(bench: Bench, rates: Mapping[str, float], share: Spread) -> Result:
    """The same in seconds: steps of both in turn, of networks whose gates have begun to learn."""
    text = text_of(bench.text)
    trainings = {
        name: Training(network(bench.text, 0), text, rates[name], 0)
        for name, network in NETWORKS.items()
    }
    for each in trainings.values():
        each.until(bench.text.steps // 10)
    calls = {name: each.step for name, each in trainings.items()}
    times = bench.clock.race("steps of the Transformers", calls, share=0.2)
    slower = times.ratio("converted", "dense").median
    return Result(
        "steps_to_dense_loss_in_time",
        share.times(slower),
        times.ms("converted"),
        times.ms("dense"),
        f"the same times {slower:.2f}, what a step takes of a dense step's time",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


TEXT_RACES = (Race({"steps_to_dense_loss": Target(0.85, at_most=True)}, steps_to_dense_loss),)


# Accuracy of a SwinV2-like classifier beside the same with mixtures, at equal FLOPs a place

RATE, PICTURE_DECAY = 1e-3, 0.05  # both networks'
_PICTURE_TEST_SEED = 1_000_000


def dense_classifier(settings: PictureSettings, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return SwinClassifier(settings.width, CLASSES)


def converted_classifier(settings: PictureSettings, seed: int) -> nn.Module:
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
    jobs = [(name, seed) for seed in range(bench.seeds) for name in CLASSIFIERS]
    found = dict(zip(jobs, bench.each(partial(accuracy, bench.pictures), jobs), strict=True))
    shares = {name: [found[name, seed] for seed in range(bench.seeds)] for name in CLASSIFIERS}
    less = [ours - dense for ours, dense in zip(shares["converted"], shares["dense"], strict=True)]
    mean = sum(less) / len(less)
    note = f"share of pictures, {CLASSES} classes; {mean:+.4f} to the dense network's, paired"
    return [
        Result("swin_accuracy", Spread.of(shares["converted"]), note=note),
        Result("swin_accuracy_dense", Spread.of(shares["dense"])),
    ]


def accuracy(settings: PictureSettings, job: tuple[str, int]) -> float:
    """Trains a network and says the share of test pictures whose class it names."""
    name, seed = job
    network = CLASSIFIERS[name](settings, seed)
    train(network, settings, seed)
    pictures, classes = draw_pictures(settings.tests, _PICTURE_TEST_SEED)
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(part).argmax(1) for part in pictures.split(256)])
    return (found == classes).double().mean().item()


def train(network: nn.Module, settings: PictureSettings, seed: int) -> None:
    pictures, classes = draw_pictures(settings.pictures, seed)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=RATE, weight_decay=PICTURE_DECAY, fused=True
    )
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


PICTURE_RACES = (Race({"swin_accuracy": None}, accuracies),)


# How far a converted network's outputs are from the dense one's at the start, in every mode

Inputs = tuple[Tensor, ...]
Mode = Callable[[nn.Module, Inputs], Tensor]
EQUAL_EXPERTS = 4
# Key → type, and digits that are shown
PRECISIONS: Mapping[str, tuple[torch.dtype, int]] = {
    "equal_at_start": (torch.float32, 9),
    "equal_at_start_fp64": (torch.float64, 17),
}


def _train(network: nn.Module, inputs: Inputs) -> Tensor:
    return network.train()(*inputs)


def _eval(network: nn.Module, inputs: Inputs) -> Tensor:
    return network.eval()(*inputs)


def _no_grad(network: nn.Module, inputs: Inputs) -> Tensor:
    # torch's layers have a path of their own here
    with torch.no_grad():
        return network.eval()(*inputs)


def _compile(network: nn.Module, inputs: Inputs) -> Tensor:
    torch.compiler.reset()
    return torch.compile(network.train())(*inputs)


def _export(network: nn.Module, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return torch.export.export(network.eval(), inputs).module()(*inputs)


MODES: Mapping[str, Mode] = {
    "train": _train, "eval": _eval, "no_grad": _no_grad, "compile": _compile, "export": _export,
}  # fmt: skip


def equal_at_start(bench: Bench, forms: Sequence[str] = tuple(FORMS)) -> list[Result]:
    results = []
    with own_form_known():
        for key, (dtype, digits) in PRECISIONS.items():
            found = {name: differences(name, dtype) for name in forms}
            for name, by_mode in found.items():
                shown = ", ".join(f"{mode} {value:.1e}" for mode, value in by_mode.items())
                bench.clock.say(f"  {dtype}, {name}: {shown}")
            flat = [(x, f"{name}, {mode}") for name, by in found.items() for mode, x in by.items()]
            worst, where = max(flat)
            results.append(
                Result(
                    key,
                    Spread(worst, worst, worst, len(flat)),
                    note=f"{worst:.1e}, the worst of {len(flat)}: {where}",
                    details=[{"form": name, **by_mode} for name, by_mode in found.items()],
                    digits=digits,
                )
            )
    return results


def differences(name: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest difference in each mode, over the dense network's largest output."""
    torch.manual_seed(0)
    form = FORMS[name]
    dense = form.make().to(dtype)
    inputs = tuple(torch.randn(shape, dtype=dtype) for shape in form.shapes)
    with torch.no_grad():
        wanted = dense.train()(*inputs)  # never by a fused path
    found = {}
    for mode, run in MODES.items():
        out = run(convert(dense, EQUAL_EXPERTS), inputs).detach()
        # An output that is no number is the worst there is
        apart = (out - wanted).abs().nan_to_num(torch.inf)
        found[mode] = float(apart.max() / wanted.abs().max())
    return found


@contextmanager
def own_form_known() -> Iterator[None]:
    register(OWN, own_part)
    try:
        yield
    finally:
        RECOGNISERS.remove(OWN)


EQUAL_RACES = (
    Race(
        {
            "equal_at_start": Target(1e-5, at_most=True),
            "equal_at_start_fp64": Target(1e-10, at_most=True),
        },
        equal_at_start,
    ),
)
# Equality last: compilers leave threads and memory behind
RACES = (*LINE_RACES, *LOOP_RACES, *TEXT_RACES, *PICTURE_RACES, *EQUAL_RACES)

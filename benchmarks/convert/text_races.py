"""Steps to the dense Transformer's final loss for a converted one, at equal FLOPs a token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from benchmarks.convert.bench import GATE, RATES, Bench, TextSettings
from benchmarks.convert.best_loss import best_loss
from benchmarks.convert.text_training import Training, dense_network, text_of
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from mmoe.integrations.convert import convert

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
class Job:
    """One training.

    Attributes:
        network: Of `NETWORKS`.
        rate: The highest learning rate.
        seed: Of weights and batches.
        wanted: A loss for which it goes on longer than the dense network; None: none.
    """

    network: str
    rate: float
    seed: int
    wanted: float | None = None


def steps_to_dense_loss(bench: Bench) -> list[Result]:
    """Chooses both learning rates by the same sweep, then trains both with every seed."""
    text, steps = text_of(bench.text), bench.text.steps
    entropy, best = text.grammar.entropy(), best_loss(text.grammar, text.test_WL.numpy())
    rates, details = _sweep(bench)
    train, seeds = partial(trained, bench.text), range(bench.seeds)
    dense = bench.each(train, [Job("dense", rates["dense"], seed) for seed in seeds])
    finals = [curve[-1][1] for curve in dense]
    check_above(max(entropy, best), finals)
    converted = bench.each(
        train,
        [
            Job("converted", rates["converted"], seed, wanted)
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
    result = Result(key="steps_to_dense_loss", spread=Spread.of(shares), note=note, details=details)
    return [result, _in_time(bench, rates, result.spread)]


def trained(settings: TextSettings, job: Job) -> Curve:
    """Trains one network from its start.

    Returns:
        Its losses on the test windows, by steps.
    """
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
    """Refuses a text that the dense network learns whole.

    Args:
        floor: The entropy, and what a window's best reader reaches, which sees no further back.
        losses: Of the dense network, at the end.

    Raises:
        ValueError: A final loss is too near to the entropy.
    """
    if min(losses) < floor + FEWEST_NATS:
        raise ValueError(
            f"text: expected dense losses of {floor + FEWEST_NATS:.4f} or more, "
            f"{FEWEST_NATS} above the best there is, got {min(losses):.4f}; take more words"
        )


def _sweep(bench: Bench) -> tuple[dict[str, float], list[dict[str, object]]]:
    """The best rate of each network after all steps, and what each rate reached."""
    jobs = [Job(name, rate, SWEEP_SEED) for name in NETWORKS for rate in RATES]
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
        key="steps_to_dense_loss_in_time",
        spread=share.times(slower),
        ours_ms=times.median("converted") * 1e3,
        other_ms=times.median("dense") * 1e3,
        note=f"the same times {slower:.2f}, what a step takes of a dense step's time",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


RACES = (Race(("steps_to_dense_loss",), steps_to_dense_loss),)

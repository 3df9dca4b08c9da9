"""Trains a network that predicts the next character, on text that never repeats."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.convert.bench import TextSettings
from benchmarks.convert.grammar import Grammar, draw_grammar
from benchmarks.convert.text_model import CharTransformer
from mmoe.integrations.convert import auxiliary_losses

WARM_UP = 100  # steps
FLOOR = 0.1  # of the highest rate, at the end of the dense network's steps and from there on
DECAY, LARGEST_NORM = 0.01, 1.0
_GRAMMAR_SEED, _TEST_SEED, _CHUNK = 0, 1_000_000, 50  # _CHUNK: batches that are drawn at once


@dataclass(frozen=True)
class Text:
    """The grammar, and windows of it that no training meets.

    Attributes:
        grammar: What writes.
        settings: Of the windows.
        test_WL: Characters, `[windows, context + 1]`.
    """

    grammar: Grammar
    settings: TextSettings
    test_WL: Tensor

    def batches(self, seed: int) -> Iterator[Tensor]:
        """New windows without end, `[batch, context + 1]`."""
        batch, chunk = self.settings.batch, 0
        while True:
            own_seed = _TEST_SEED + 1 + 1000 * seed + chunk
            yield from _windows(
                self.grammar, batch * _CHUNK, self.settings.context, own_seed
            ).split(batch)
            chunk += 1


@functools.cache
def text_of(settings: TextSettings) -> Text:
    """Draws grammar and test windows, once a process."""
    sizes = {"words": settings.words, "states": settings.states, "of_state": settings.of_state}
    grammar = draw_grammar(_GRAMMAR_SEED, **sizes)
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
    """The network before it is converted."""
    torch.manual_seed(seed)
    return CharTransformer(settings.width, settings.layers, settings.hidden, settings.context)


class Training:
    """Trains a network, and says its loss on the test windows from time to time.

    The rate falls as half a cosine over the dense network's steps, to a tenth, and stays there.

    Args:
        network: Characters to logits; its mixtures' auxiliary losses are added.
        text: What to learn.
        rate: The highest learning rate.
        seed: Of the batches.
    """

    def __init__(self, network: nn.Module, text: Text, rate: float, seed: int) -> None:
        self.network, self.text, self.rate = network, text, rate
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=rate, weight_decay=DECAY, fused=True
        )
        self.batches, self.steps = text.batches(seed), 0
        self.curve: list[tuple[int, float]] = []

    def until(self, steps: int) -> list[tuple[int, float]]:
        """Goes on until so many steps are done.

        Returns:
            Steps, and nats of a character then.
        """
        while self.steps < steps:
            self.step()
            if self.steps % self.text.settings.every == 0:
                self.curve.append((self.steps, round(self.loss(), 5)))
        return list(self.curve)

    def step(self) -> None:
        """Forward, backward, update."""
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
        """Nats of a character over the test windows."""
        self.network.eval()
        parts = self.text.test_WL.split(64)
        total = sum(len(part_BL) * next_loss(self.network, part_BL).item() for part_BL in parts)
        return total / len(self.text.test_WL)


def schedule(step: int, steps: int) -> float:
    """Share of the highest rate."""
    falling = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return min(1.0, step / WARM_UP) * (FLOOR + (1 - FLOOR) * falling)


def next_loss(network: nn.Module, window_BL: Tensor) -> Tensor:
    """Mean nats of each character, told those before it in the window."""
    logits_BLA = network(window_BL[:, :-1])
    return F.cross_entropy(logits_BLA.flatten(0, 1), window_BL[:, 1:].flatten())

"""Report of a run's ranks: who holds what, what moved, what steps sent."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

from mmoe.config import ParallelConfig
from mmoe.embeddings import plan_table
from mmoe.models import MixtureNetwork, Ranker
from mmoe.parallel import (
    Balance,
    CannotMove,
    Hosts,
    Mode,
    Traffic,
    dispatchers_of,
    is_spread,
    parameters_by_replicas,
    rank,
    stop_counting,
    world_size,
)
from mmoe.run import Reporter, RunDirectory, write_json
from mmoe.train.state import TrainingState
from mmoe.train.step import StepRanks

_MOVES_SHOWN = 8


def say_plan(
    ranker: Ranker, parallel: ParallelConfig, run: RunDirectory, reporter: Reporter
) -> None:
    """Prints who holds which experts and tables, and writes plan.json; on one rank nothing."""
    if world_size() == 1:
        return
    experts = "spread" if is_spread(ranker.network) else "replicated"
    groups = [group for group, _ in parameters_by_replicas(ranker.network) if group is not None]
    replicas = max(map(dist.get_world_size, groups), default=1)
    each = f" in {replicas} groups, each with all of them" if replicas > 1 else ""
    slices = max((d.placement.slices for d in dispatchers_of(ranker.network)), default=1)
    cut = f", cut into {slices} slices" if slices > 1 else ""
    tables = ranker.tables.plan_summary()
    reporter.say(
        f"{world_size()} ranks: gates and towers on every one, experts {experts}{cut}{each}, "
        "each batch shared out"
    )
    for line in unused_settings(parallel, ranker.network):
        reporter.say(line)
    if tables:
        text = io.StringIO()
        Console(file=text, width=140).print(plan_table(tables))
        for line in text.getvalue().rstrip().splitlines():
            reporter.say(line.rstrip())
    if rank() == 0:
        plan = {"ranks": world_size(), "experts": experts, "slices": slices, "replicas": replicas}
        write_json(run.plan_file, {**plan, "tables": tables})


def describe_moves(state: TrainingState) -> list[str]:
    """Lets experts change ranks, and returns a line for each mixture in which some did."""
    network = state.ranker.network
    try:
        better = state.rebalance()
    except CannotMove as error:
        stop_counting(network)
        return [f"parallel.rebalance: {error}; experts stay where they are from now on"]
    return [_describe_balance(network, name, balance) for name, balance in better.items()]


def _describe_balance(network: MixtureNetwork, name: str, balance: Balance) -> str:
    names: Sequence[str] = network.levels[int(name.split(".")[1])].expert_names
    slices = balance.placement.slices
    if slices > 1:
        names = [f"{name} slice {s}" for name in names for s in range(1, slices + 1)]
    moved = ", ".join(
        f"{names[expert]} to rank {balance.placement.rank_of(expert)}"
        for expert in balance.moved[:_MOVES_SHOWN]
    )
    more = len(balance.moved) - _MOVES_SHOWN
    moved += f" and {more} more" if more > 0 else ""
    return (
        f"{name}: {moved}; the busiest rank had {balance.before:.2f} times the "
        f"mean load, from now on {balance.after:.2f} if loads stay: predicted to be done "
        f"{balance.gain:.2f} times faster"
    )


_OF_SPREAD_EXPERTS = (
    *("replicas", "experts_per_rank", "slices", "shadowed", "exchange", "chunks", "rebalance"),
    "wire_precision",
)


def unused_settings(parallel: ParallelConfig, network: nn.Module) -> list[str]:
    """Returns a line for what was asked for, and does nothing with this network on these ranks.

    Args:
        parallel: Of the run.
        network: As it lies over the ranks.

    Example:
        >>> from torch import nn
        >>> [line] = unused_settings(ParallelConfig(chunks=2), nn.Linear(1, 1))
        >>> line[:54]
        'parallel.chunks: for spread experts; here every rank h'
    """
    dispatchers = dispatchers_of(network)
    if not dispatchers:
        usual = ParallelConfig()
        asked = [k for k in _OF_SPREAD_EXPERTS if getattr(parallel, k) != getattr(usual, k)]
        said = ", ".join(f"parallel.{key}" for key in asked)
        why = "for spread experts; here every rank has all of them, so nothing changes by it"
        return [f"{said}: {why} (parallel.experts: spread)"] if asked else []
    said, idle = [], 0
    if parallel.slices == "auto":
        idle = max(dispatcher.placement.experts.count(()) for dispatcher in dispatchers)
    if idle:
        said.append(
            f"parallel.slices: auto cuts experts of kind mlp with two widths, no norm and "
            f"output_activation: none; others are whole here, so {idle} rank(s) compute none"
        )
    if parallel.exchange == "hierarchical" and not any(d.hosts.are_levels for d in dispatchers):
        hosts = dispatchers[0].hosts
        said.append(
            f"parallel.exchange: hierarchical is for several hosts of several ranks; here are "
            f"{hosts.count} of {hosts.size}, so rows go in one level (parallel.host_size)"
        )
    return said


# What a step sends that is counted; rows of tables are TorchRec's, and are not
_ROADS = ("experts", "gradients")


class CommunicationLog:
    """Counts what an epoch's steps send for spread experts and for sums of gradients.

    Args:
        network: What is trained.
        ranks: That train it.
        host_size: Ranks on each host; None: as the launcher says.
    """

    def __init__(self, network: nn.Module, ranks: StepRanks, host_size: int | None) -> None:
        self._ranks, self._alone = ranks, ranks.alone
        self._dispatchers = [] if self._alone else dispatchers_of(network)
        counts = [dispatcher.num_experts for dispatcher in self._dispatchers]
        self._experts_before = [sum(counts[:level]) for level in range(len(counts))]
        self._hosts = None if self._alone else Hosts.of_group(host_size=host_size)
        self.begin()
        self._told: dict[int, int] = {}  # choices of each level

    def begin(self) -> None:
        """Forgets what was sent until now, such as in validation."""
        if self._hosts is not None:  # sums may be others than before, where experts have moved
            for sums in self._ranks.gradients:
                ranks = dist.get_process_group_ranks(sums.group)
                sums.hosts = [self._hosts.of(rank) for rank in ranks]
        self._before = self._counted()

    def end(self, steps: int) -> dict[str, Any] | None:
        """Returns what the steps since `begin` sent, over all ranks; every rank must call it.

        Args:
            steps: How many there were.

        Returns:
            None on one rank, or where there was no step. Else `steps`; `modes`, how the experts of
            each level and their rows met at the end; `choices`, where that changed meanwhile
            (`level`, `call` of the process, `mode`, `why`); and, for `experts` and `gradients`, of
            one step and all ranks `megabytes_inside_hosts`, `megabytes_between_hosts`,
            `collectives` (of one rank), `seconds_under_way` and `seconds_waited` (means of ranks),
            and `share_hidden`, None where nothing was under way.
        """
        if self._alone or not steps:
            return None
        amounts = [
            now - before
            for road, old in zip(self._counted(), self._before, strict=True)
            for now, before in zip(road, old, strict=True)
        ]
        sums = self._ranks.add_up(torch.tensor(amounts, dtype=torch.float64)).tolist()
        each = len(sums) // len(_ROADS)
        modes = [
            _said(d.mode_used, before)
            for d, before in zip(self._dispatchers, self._experts_before, strict=True)
        ]
        found: dict[str, Any] = {"steps": steps, "modes": modes}
        if choices := self._new_choices():
            found["choices"] = choices
        for place, road in enumerate(_ROADS):
            total = Traffic(*sums[place * each : (place + 1) * each])
            if total.collectives:
                found[road] = _of_a_step(total, steps)
        return found

    def _new_choices(self) -> list[dict[str, Any]]:
        """Choices of another mode than the one before."""
        found = []
        for level, dispatcher in enumerate(self._dispatchers, start=1):
            made = [] if dispatcher.adaptive is None else dispatcher.adaptive.history
            changes = [next(alike) for _, alike in groupby(made, key=lambda choice: choice.mode)]
            found += [
                {
                    "level": level,
                    "call": choice.step,
                    "mode": _said(choice.mode, self._experts_before[level - 1]),
                    "why": choice.why,
                }
                for choice in changes[self._told.get(level, 0) :]
            ]
            self._told[level] = len(changes)
        return found

    def _counted(self) -> list[tuple[float, ...]]:
        """Counts what this rank has sent so far, by road."""
        experts = sum((d.wire.traffic for d in self._dispatchers), Traffic())
        gradients = sum((sums.traffic for sums in self._ranks.gradients), Traffic())
        return [astuple(experts), astuple(gradients)]


def _said(mode: Mode, before: int) -> str:
    """A mode in words; experts by the numbers of `mmoe explain`, from 1 on over all levels."""
    if mode.shadowed == "all":
        return str(mode)
    return str(replace(mode, shadowed=tuple(before + 1 + e for e in mode.shadowed)))


def _of_a_step(total: Traffic, steps: int) -> dict[str, float | None]:
    ranks = world_size()
    inside = total.bytes_sent - total.bytes_between_hosts
    return {
        "megabytes_inside_hosts": inside / steps / 1e6,
        "megabytes_between_hosts": total.bytes_between_hosts / steps / 1e6,
        "collectives": total.collectives / ranks / steps,
        "seconds_under_way": total.seconds_under_way / ranks / steps,
        "seconds_waited": total.seconds_waited / ranks / steps,
        "share_hidden": total.share_hidden if total.seconds_under_way else None,
    }


def describe_communication(found: Mapping[str, Any] | None) -> list[str]:
    r"""Returns the lines that a log says of it.

    Example:
        >>> sent = {"megabytes_inside_hosts": 1.5, "megabytes_between_hosts": 0.25,
        ...         "seconds_under_way": 0.02, "seconds_waited": 0.005, "share_hidden": 0.75}
        >>> [line] = describe_communication({"steps": 9, "modes": ["rows travel"], "experts": sent})
        >>> print(line.replace("; ", "\n"))
        a step sends 1.75 MB for experts (0.25 MB between hosts
        20 ms under way, 75% hidden
        rows travel)
    """
    if found is None:
        return []
    lines = []
    for road in _ROADS:
        sent = found.get(road)
        if sent is None:
            continue
        between = sent["megabytes_between_hosts"]
        details = [f"{between:.3g} MB between hosts"]
        if sent["share_hidden"] is not None:
            under_way = 1e3 * sent["seconds_under_way"]
            details.append(f"{under_way:.3g} ms under way, {sent['share_hidden']:.0%} hidden")
        modes = list(dict.fromkeys(found["modes"])) if road == "experts" else []
        total = between + sent["megabytes_inside_hosts"]
        what = {"experts": "experts", "gradients": "sums of gradients"}[road]
        lines.append(f"a step sends {total:.3g} MB for {what} ({'; '.join([*details, *modes])})")
    return lines + [
        f"from call {choice['call']} of level {choice['level']}: {choice['mode']} ({choice['why']})"
        for choice in found.get("choices", [])
    ]

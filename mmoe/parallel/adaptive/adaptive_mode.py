"""`AdaptiveMode`: the mode of a dispatcher, chosen by a cost model and by the clock.

What the model reads is gathered from all ranks, and what the clock says is that of the slowest:
all of them have to choose alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from mmoe.mixture import Compute, DispatchPlan, Tree
from mmoe.mixture.experts.contract import pool_of
from mmoe.mixture.experts.lender import lender_of
from mmoe.parallel.adaptive.cost_model import Call, candidates
from mmoe.parallel.adaptive.link_rates import LinkRates, measure_links
from mmoe.parallel.experts.balance import pairs_of_experts
from mmoe.parallel.experts.mode import ROWS_TRAVEL, Mode
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.shadow import can_be_joined
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.hosts import Hosts


class Asking(Protocol):
    """Part of a dispatcher that a gathered call reads."""

    wire: Wire
    wire_dtype: torch.dtype | None

    @property
    def placement(self) -> ExpertPlacement:
        """Placement of the experts."""
        ...

    @property
    def hosts(self) -> Hosts:
        """Hosts of the ranks."""
        ...

    @property
    def num_experts(self) -> int:
        """E, over all ranks."""
        ...


def _gathered_call(
    dispatcher: Asking, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute
) -> Call:
    """Returns what the cost model wants to know of a call of all ranks; all have to ask."""
    picks_BGK, pool = plan.experts_BGK, pool_of(compute)
    weights = [] if pool is None else list(pool.parameters())
    own = [len(picks_BGK), sum(w.numel() for w in weights), sum(w.nbytes for w in weights)]
    # All in one message: float64 holds counts and sizes exactly
    told = torch.cat([pairs_of_experts(plan).double().cpu(), torch.tensor(own).double()])
    *pairs, rows, numbers, size = _reduced(told, dispatcher.wire.group).tolist()
    x_BD = cast(Tensor, sources[plan.expert_source[0]])
    wire = dispatcher.wire_dtype or x_BD.dtype
    return Call(
        rows=max(rows / dispatcher.wire.world_size, 1.0),
        picks=(picks_BGK.shape[1], picks_BGK.shape[2]),
        pairs_per_row=sum(pairs) / max(rows, 1.0),
        widths=(x_BD.shape[1], plan.output_dim or x_BD.shape[1]),
        parameters=numbers / plan.num_experts,
        number_bytes=min(wire.itemsize, x_BD.dtype.itemsize),
        parameter_bytes=round(size / max(numbers, 1.0)),
        loads=tuple(count / max(sum(pairs), 1.0) for count in pairs),
        placement=dispatcher.placement,
        hosts=dispatcher.hosts,
        device_type=x_BD.device.type,
    )


def _reduced(
    values: Tensor,
    group: dist.ProcessGroup | None,
    op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM,
) -> Tensor:
    """Over all ranks; small numbers of the host, where the group's backend takes them."""
    if dist.get_backend(group) == "nccl":
        values = values.cuda()
    dist.all_reduce(values, op, group=group)
    return values.cpu()


Run = Callable[[Sequence[Tree], DispatchPlan, Compute], Tensor]


class CallClock:
    """Times one call: the forward pass, and the backward pass when autograd gets there.

    The backward pass lasts from when the gradient of the output is there until those of the rows
    and of the gates' weights are.

    Args:
        device: What it waits for, where that is a GPU.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> picks = torch.zeros(2, 1, 1, dtype=torch.int32)
        >>> plan = DispatchPlan(
        ...     experts_BGK=picks,
        ...     weights_BGK=torch.ones(2, 1, 1),
        ...     num_experts=1,
        ...     expert_source=(0,),
        ... )
        >>> clock, x_BD = CallClock(torch.device("cpu")), torch.ones(2, 3, requires_grad=True)
        >>> out = clock.time(lambda sources, plan, _: sources[0] * 2, [x_BD], plan, lambda x, _: x)
        >>> before = clock.seconds
        >>> out.sum().backward()
        >>> 0 < before < clock.seconds, x_BD.grad.sum()
        (True, tensor(12.))
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._forward = self._backward = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the forward pass, and of the backward pass where there was one."""
        return self._forward + self._backward

    def time(
        self, run: Run, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute
    ) -> Tensor:
        """Runs a call, and returns its output.

        Args:
            run: The call.
            sources: S tensors `x_BD`.
            plan: The picks.
            compute: Runs the experts.
        """
        started = self._now()
        # Marks at both ends: the backward pass goes from the output's to those of what was read
        *marked, weights_BGK = _marked(self._end, [*sources, plan.weights_BGK])
        out_BGO = run(marked, replace(plan, weights_BGK=weights_BGK), compute)
        self._forward = self._now() - started
        return _marked(self._begin, [out_BGO])[0]

    def _begin(self) -> None:
        self._begun = self._now()

    def _end(self) -> None:
        self._backward = self._now() - self._begun

    def _now(self) -> float:
        if self._device.type == "cuda":
            # The host runs ahead of a GPU
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _marked(note: Callable[[], None], values: Sequence[Any]) -> list[Any]:
    """The same values, whose gradients are noted once all of them are there."""
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    found = list(values)
    if places:
        views = _Mark.apply(note, *(values[i] for i in places))
        for i, view in zip(places, views, strict=True):
            found[i] = view
    return found


class _Mark(torch.autograd.Function):
    """Does nothing; in the backward pass it says so."""

    @staticmethod
    def forward(ctx: Any, note: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.note = note
        # What has no gradient stays without: zeros in its place would be work, and timed
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.note()
        return None, *grads


# A mode that was timed is tried again where it is no more than so many times as slow as the best
_TIMED_WITHIN = 1.2
# What the mode that is used may be slower than the best one, by noise
_NOISE = 1.03

# Half a GiB: ranks of one machine each have their copies, and as many bytes of gradients
_COPIED_BYTES = 2**29


class Choice(NamedTuple):
    """A mode that was chosen.

    Attributes:
        step: The how manieth call in training, from 0.
        mode: From that call on.
        why: In words.
    """

    step: int
    mode: Mode
    why: str


class AdaptiveMode:
    """Chooses how rows or weights travel, again and again while a network is trained.

    At calls 0, 10, 50 and then every 200th, all ranks add up how often each expert is picked, and a
    cost model ranks the modes by that, by the sizes and by the rates that were measured before the
    first choice. Those within a factor of two of the cheapest take turns for a few calls each; the
    one whose slowest rank is fastest is used until the next choice. A mode that has been timed is
    known from then on by how far off its prediction was, and is timed again where it comes near the
    best. All ranks choose alike.

    What it chooses changes no number but by rounding; as it goes by the clock, two runs may choose
    otherwise and differ in their last bits. Without gradients, rows travel, whatever was chosen.

    Args:
        every: Calls between two choices.
        first: The first ones.
        repeats: How many calls of a mode count; one more is not counted.
        within: How many times as slow as the cheapest a mode may be predicted to be.
        most: How many modes are timed for a choice.
        rates: What sending and computing cost; default: it is measured before the first choice.
        copied_bytes: Of shadowed experts' weights, at most, on a rank; their gradients come on top.
            Modes that need more are not even tried.

    Attributes:
        history: What was chosen, and why.

    Raises:
        ValueError: A number that is too small.

    Example:
        >>> from mmoe.parallel import AdaptiveMode
        >>> AdaptiveMode(every=1000).mode
        Mode(hierarchical=False, chunks=1, shadowed=())

    Source: Hwang et al., "Tutel" (MLSys 2023), section 3.3, for a choice that is looked for while
        training goes on; He et al., "FasterMoE" (PPoPP 2022), for the model of what is shadowed.
    """

    def __init__(
        self,
        *,
        every: int = 200,
        first: Sequence[int] = (0, 10, 50),
        repeats: int = 3,
        within: float = 2.0,
        most: int = 6,
        rates: LinkRates | None = None,
        copied_bytes: int = _COPIED_BYTES,
    ) -> None:
        for name, value in (
            ("every", every),
            ("repeats", repeats),
            ("within", within),
            ("most", most),
        ):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, got {value}")
        self.every, self.first, self.repeats = every, frozenset(first), repeats
        self.within, self.most, self.rates = within, most, rates
        self.copied_bytes = copied_bytes
        self.mode = ROWS_TRAVEL
        self.history: list[Choice] = []
        self._calls = 0
        self._trial: _Trial | None = None
        # How many times as long as predicted a kind of mode took
        self._off: dict[tuple[object, ...], float] = {}
        self._lendable: bool | None = None

    def next(
        self, dispatcher: Asking, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute
    ) -> tuple[Mode, CallClock | None]:
        """Returns the mode of a call, and the clock by which it is to be timed, if it is.

        Args:
            dispatcher: Whose call it is.
            sources: S tensors `x_BD`.
            plan: The picks.
            compute: Runs the experts.
        """
        # A score must not depend on what was fast
        if not torch.is_grad_enabled() or dispatcher.wire.world_size == 1:
            return ROWS_TRAVEL, None
        # Counted alike on all ranks, which must begin and end a trial in the same call
        step, self._calls = self._calls, self._calls + 1
        if self._trial is not None and self._trial.is_over:
            self._settle(self._trial, step, dispatcher.wire.group)
        elif self._trial is None and (step in self.first or step % self.every == 0):
            self._begin(dispatcher, sources, plan, compute, step)
        if self._trial is None:
            return self.mode, None
        return self._trial.next(plan.experts_BGK.device)

    def _begin(
        self,
        dispatcher: Asking,
        sources: Sequence[Tree],
        plan: DispatchPlan,
        compute: Compute,
        step: int,
    ) -> None:
        """Ranks the modes; where several come near the cheapest, they are to be timed."""
        if self.rates is None:
            self.rates = measure_links(dispatcher.hosts, plan.experts_BGK.device)
        if self._lendable is None:
            self._lendable = can_be_joined(lender_of(pool_of(compute)), dispatcher.wire.group)
        call = _gathered_call(dispatcher, sources, plan, compute)
        ranked = candidates(
            call,
            self.rates,
            shadows=self._lendable,
            # Modes name whole experts
            some=dispatcher.num_experts == dispatcher.placement.num_experts,
        )
        size = call.parameters * call.parameter_bytes
        ranked = [(m, cost) for m, cost in ranked if _copies(m, call) * size <= self.copied_bytes]
        # A kind that nobody has timed is taken to be off as the others are
        known = statistics.median(self._off.values()) if self._off else 1.0
        predicted = {mode: cost.seconds for mode, cost in ranked}
        seconds = {
            mode: took * self._off.get(_kind(mode), known) for mode, took in predicted.items()
        }
        # All ranks have the same numbers, and so the same order of equal ones
        best = min(seconds.values())
        near = sorted(
            (m for m, took in seconds.items() if took <= best * self._within(m)),
            key=seconds.__getitem__,
        )[: self.most]
        if len(near) == 1:
            self._choose(step, near[0], f"predicted {best * 1e3:.3g} ms")
        else:
            self._trial = _Trial({mode: predicted[mode] for mode in near}, self.repeats)

    def _within(self, mode: Mode) -> float:
        """Returns how many times as slow as the best a mode may be predicted and still be timed."""
        return _TIMED_WITHIN if _kind(mode) in self._off else self.within

    def _settle(self, trial: "_Trial", step: int, group: dist.ProcessGroup | None) -> None:
        """Settles on a mode by the median of its calls, each as slow as its slowest rank."""
        self._trial = None
        seconds = trial.seconds(group)
        # A factor, which other sizes of calls share rather than a difference
        for mode, took in seconds.items():
            self._off[_kind(mode)] = took / trial.predicted[mode]
        fastest = min(seconds, key=seconds.__getitem__)
        # Within noise nothing is changed
        if seconds.get(self.mode, float("inf")) <= _NOISE * seconds[fastest]:
            fastest = self.mode
        others = sorted(took for mode, took in seconds.items() if mode != fastest)
        why = f"{seconds[fastest] * 1e3:.3g} ms, the best other one {others[0] * 1e3:.3g}"
        self._choose(step, fastest, why)

    def _choose(self, step: int, mode: Mode, why: str) -> None:
        self.mode = mode
        self.history.append(Choice(step, mode, why))


class _Trial:
    """Modes that take turns, and their clocks.

    Args:
        predicted: Seconds of each mode.
        repeats: How many calls of each count; the first one, which warms it up, does not.
    """

    def __init__(self, predicted: dict[Mode, float], repeats: int) -> None:
        self.predicted = predicted
        modes = list(predicted)
        # Each round begins with another mode: what drifts in the course of one hits all alike
        rounds = [
            modes[turn % len(modes) :] + modes[: turn % len(modes)] for turn in range(repeats)
        ]
        self._left = [*modes, *(mode for order in rounds for mode in order)]
        self._clocks: list[tuple[Mode, CallClock]] = []

    @property
    def is_over(self) -> bool:
        """Returns whether all calls have been made."""
        return not self._left

    def next(self, device: torch.device) -> tuple[Mode, CallClock]:
        """Returns the mode of the next call, and its clock."""
        mode, clock = self._left.pop(0), CallClock(device)
        self._clocks.append((mode, clock))
        return mode, clock

    def seconds(self, group: dist.ProcessGroup | None) -> dict[Mode, float]:
        """Seconds of each mode, the same on every rank."""
        # The first call of each mode warms it up
        counted = self._clocks[len(self.predicted) :]
        slowest = torch.tensor([clock.seconds for _, clock in counted], dtype=torch.float64)
        # Ranks wait for each other in a call, and all have to choose alike
        slowest = _reduced(slowest, group, dist.ReduceOp.MAX)
        by_mode: dict[Mode, list[float]] = {mode: [] for mode in self.predicted}
        for (mode, _), took in zip(counted, slowest.tolist(), strict=True):
            by_mode[mode].append(took)
        return {mode: statistics.median(took) for mode, took in by_mode.items()}


def _copies(mode: Mode, call: Call) -> int:
    """Returns the number of experts that are copied to every rank."""
    return len(call.loads) if mode.shadowed == "all" else len(mode.shadowed)


def _kind(mode: Mode) -> tuple[object, ...]:
    """Returns the key that modes share whose predictions are wrong alike."""
    shadowed = mode.shadowed if mode.shadowed == "all" else bool(mode.shadowed)
    return mode.hierarchical, mode.chunks, shadowed

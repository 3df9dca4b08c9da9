"""How far a converted network's outputs are from the dense one's at the start, in every mode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from benchmarks.convert.bench import Bench
from benchmarks.convert.forms import FORMS, OWN, own_part
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from mmoe.integrations.convert import RECOGNISERS, convert, register

Inputs = tuple[Tensor, ...]
Mode = Callable[[nn.Module, Inputs], Tensor]
NUM_EXPERTS = 4
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
    "train": _train,
    "eval": _eval,
    "no_grad": _no_grad,
    "compile": _compile,
    "export": _export,
}


def equal_at_start(bench: Bench, forms: Sequence[str] = tuple(FORMS)) -> list[Result]:
    """The worst of all forms in all modes, by precision."""
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
                    key=key,
                    spread=Spread(worst, worst, worst, len(flat)),
                    note=f"{worst:.1e}, the worst of {len(flat)}: {where}",
                    details=[{"form": name, **by_mode} for name, by_mode in found.items()],
                    digits=digits,
                )
            )
    return results


def differences(name: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest difference in each mode, over the dense network's largest output.

    Args:
        name: Of `FORMS`.
        dtype: Of weights and inputs.
    """
    torch.manual_seed(0)
    form = FORMS[name]
    dense = form.make().to(dtype)
    inputs = tuple(torch.randn(shape, dtype=dtype) for shape in form.shapes)
    with torch.no_grad():
        wanted = dense.train()(*inputs)  # never by a fused path
    found = {}
    for mode, run in MODES.items():
        out = run(convert(dense, NUM_EXPERTS), inputs).detach()
        # An output that is no number is the worst there is
        apart = (out - wanted).abs().nan_to_num(torch.inf)
        found[mode] = float(apart.max() / wanted.abs().max())
    return found


@contextmanager
def own_form_known() -> Iterator[None]:
    """Registers a form of one's own, and forgets it."""
    register(OWN, own_part)
    try:
        yield
    finally:
        RECOGNISERS.remove(OWN)


RACES = (Race(tuple(PRECISIONS), equal_at_start),)

"""The stages of a check: what each runs, in which order, and its clock."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu_check import kernels, smoke, train
from benchmarks.gpu_check.pytest_file import TEST_SECONDS
from benchmarks.gpu_check.record import ROOT
from benchmarks.gpu_check.running import Item
from benchmarks.gpu_check.settings import Settings

MODULE = "benchmarks.gpu_check"
RANKS_SECONDS = 80
# Emulated, every clock is so many times as long
EMULATED_TIMES = 8
# Which name the mark, and hold no test with it
OWN_TESTS = ROOT / "tests" / "benchmarks" / "gpu_check"


@dataclass(frozen=True)
class Stage:
    """Items that are run one after another, or a few at a time.

    Attributes:
        name: On the command line.
        seconds: Its clock.
        about: One line for people.
        plan: Its items, in order of value.
        workers: Items at a time; times are taken one by one.
    """

    name: str
    seconds: float
    about: str
    plan: Callable[[Settings], list[Item]]
    workers: int = 1


def _own(module: str, *arguments: object) -> tuple[str, ...]:
    return ("-m", f"{MODULE}.{module}", *map(str, arguments))


def env(settings: Settings) -> list[Item]:
    """Versions, and kernels that run."""
    described = _own("environment", "--record", settings.record, "--device", settings.device)
    items = [Item("env/described", described, 40)]
    extension = {
        "cuda": _own("extension", "--bundle", settings.bundle),
        "emulated": ("-m", "tests.emulated_cuda.build"),
    }
    if settings.device in extension:
        items.append(Item("env/extension", extension[settings.device], 130))
    return items


def smokes(settings: Settings) -> list[Item]:
    """Every operator against its specification."""
    few = ("--few",) if settings.small else ()
    return [
        Item(f"smoke/{name}", _own("smoke", name, "--device", settings.device, *few), 45)
        for name in smoke.NAMES
    ]


def tests(settings: Settings) -> list[Item]:
    """Files with tests for a GPU; those of the operators first."""
    where = "--record", settings.record, "--device", settings.device
    if settings.device == "emulated":
        where = *where, "--seconds", TEST_SECONDS * EMULATED_TIMES
    files = test_files(settings.device)
    return [Item(f"tests/{file}", _own("pytest_file", file, *where), 150) for file in files]


def test_files(device: str) -> list[str]:
    """Files that hold a test marked gpu, those of the emulation only where it is the device."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        serves = device == "emulated" or "mark.of_emulation" not in text
        if "mark.gpu" in text and serves and OWN_TESTS not in path.parents:
            found.append(path.relative_to(ROOT).as_posix())
    folders = ("tests/ops/test_cuda", "tests/ops/cuda/", "tests/ops/", "tests/mixture/")

    def place(file: str) -> int:
        return next((n for n, start in enumerate(folders) if file.startswith(start)), len(folders))

    return sorted(found, key=place)


def timed_kernels(settings: Settings) -> list[Item]:
    """Times of the operators beside their alternatives."""
    small = ("--small",) if settings.small else ()
    where = ("--record", settings.record, "--device", settings.device, *small)
    return [
        Item(f"kernels/{group}", _own("kernels", group, *where, "--seconds", seconds), seconds + 15)
        for group, seconds in kernels.GROUPS.items()
    ]


def training(settings: Settings) -> list[Item]:
    """Whole steps, and training itself where its packages are."""
    small = ("--small",) if settings.small else ()
    where = ("--record", settings.record, "--device", settings.device, *small)
    steps = [Item(f"train/{name}", _own("train", name, *where), 120) for name in train.STEPS]
    needs = ("pydantic", "pyarrow", "mmoe.train")
    whole = [
        Item(f"train/whole-{batch}", _own("whole", batch, *where), 120, needs)
        for batch in train.BATCHES
    ]
    # The smaller batch first, with tables and without
    return [*steps[:2], whole[0], *steps[2:], whole[1]]


def ranks(settings: Settings) -> list[Item]:
    """The exchange of a mixture by NCCL: one rank, then as many as there are GPUs."""
    small = ("--small",) if settings.small else ()
    where = ("--record", settings.record, "--device", settings.device, *small)
    here = torch.cuda.device_count() if settings.device == "cuda" else 0
    worlds = sorted(
        {*((1, 2) if settings.device == "cpu" else (1, 2, 4, 8)), *([here] if here else [])}
    )
    return [
        Item(
            f"ranks/{world}",
            _own("ranks", world, *where, "--seconds", RANKS_SECONDS - 10),
            RANKS_SECONDS,
            needs=("mmoe.parallel",),
        )
        for world in worlds
    ]


def rivals(settings: Settings) -> list[Item]:
    """What `auto` goes by; the benchmarks of operators and layer, beside what others use."""
    device = ("--device", settings.device)
    operators = ("-m", "benchmarks.bench_ops", *device, "--rounds", "1" if settings.small else "15")
    rounds = ("--rounds", "1") if settings.small else ("--seconds", "3")
    layer = ("-m", "benchmarks.mixture", *device, *rounds)
    small = ("--small",) if settings.small else ()
    rates = _own("cost_rates", "--record", settings.record, *device, *small)
    return [
        Item("rivals/cost-rates", rates, 60),
        Item("rivals/operators", operators, 200, needs=("mmoe.parallel",)),
        Item("rivals/mixture", layer, 300, needs=("rich",)),
    ]


def sanitize(settings: Settings) -> list[Item]:
    """Every operator's smoke under compute-sanitizer."""
    own = ("-m", f"{MODULE}.sanitize", "--device", settings.device)
    return [
        Item(f"sanitize/{tool}/{name}", (*own, tool, name), 90)
        for tool in ("memcheck", "racecheck")
        for name in smoke.NAMES
    ]


def slower(stage: Stage) -> Stage:
    """The same with the clocks of an emulation."""

    def plan(settings: Settings) -> list[Item]:
        items = stage.plan(settings)
        return [replace(item, seconds=item.seconds * EMULATED_TIMES) for item in items]

    return replace(stage, seconds=stage.seconds * EMULATED_TIMES, plan=plan)


# env, smoke, tests and kernels together take at most nine minutes, and so does each of the others
STAGES = {
    stage.name: stage
    for stage in (
        Stage("env", 140, "versions, and kernels that run: in place, a bundle's, or built", env),
        Stage("smoke", 65, "every operator against its specification", smokes, workers=8),
        Stage("tests", 150, "pytest -m gpu, a process for each file", tests, workers=8),
        Stage("kernels", 180, "times of the operators beside their alternatives", timed_kernels),
        Stage("train", 520, "whole training steps beside plain torch", training),
        Stage("ranks", 300, "a mixture's exchange by NCCL, a GPU for each rank", ranks),
        Stage("rivals", 520, "the benchmarks of operators and layer", rivals),
        Stage("sanitize", 520, "memcheck and racecheck of the smoke", sanitize, workers=2),
    )
}
FIRST = ("env", "smoke", "tests", "kernels")
# Times of an emulation mean nothing, and it has neither streams nor graphs
EMULATED = ("env", "smoke", "tests")

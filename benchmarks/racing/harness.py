"""Runs contestants in turn, and sets medians beside targets: a table and, last, a JSON line."""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mmoe.ops import extension_status

# Paired times of contestants that run in turn, and what is made of them


@dataclass(frozen=True)
class Spread:
    """Median and 10–90 % range of paired values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def single(cls, value: float) -> "Spread":
        return cls(value, value, value, 1)

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        ends = (float(np.quantile(values, share)) for share in (0.1, 0.9))
        return cls(statistics.median(values), *ends, len(values))

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> "Spread":
        """Mean and 95 % interval over seeds, by Student's t; of one seed the value itself."""
        mean, count = float(np.mean(values)), len(values)
        if count < 2:
            return cls(mean, mean, mean, count)
        from scipy.stats import t  # not where a GPU is checked

        reach = float(t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5)
        return cls(mean, mean - reach, mean + reach, count)

    def times(self, factor: float) -> "Spread":
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.count)


@dataclass(frozen=True)
class Times:
    """Seconds of every contestant, round by round; round i of all of them belongs together."""

    seconds: Mapping[str, list[float]]

    @property
    def rounds(self) -> int:
        return min(map(len, self.seconds.values()), default=0)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ms(self, name: str) -> float:
        return self.median(name) * 1e3

    def ratio(self, other: str, ours: str) -> Spread:
        """How many times as long `other` takes."""
        pairs = zip(self.seconds[other], self.seconds[ours], strict=True)
        return Spread.of([theirs / own for theirs, own in pairs])

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.median)

    def then(self, more: "Times") -> "Times":
        """Rounds of the same contestants on other data, as one series."""
        return Times({name: [*self.seconds[name], *more.seconds[name]] for name in self.seconds})


def rotated(names: Iterable[str], turn: int) -> list[str]:
    """Every contestant follows every other one in turn: neighbours leave caches behind."""
    names = list(names)
    start = turn % len(names)
    order = [*names[start:], *names[:start]]
    return order[::-1] if turn // len(names) % 2 else order


# Targets, results, and the table that sets one beside the other


@dataclass(frozen=True)
class Target:
    bound: float
    at_most: bool = False
    highest: float | None = None

    def met(self, value: float) -> bool:
        if self.highest is not None:
            return self.bound <= value <= self.highest
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        if self.highest is not None:
            return f"in [{self.bound:g}, {self.highest:g}]"
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Result:
    """One line of the table; keys without a target are shown for information."""

    key: str
    spread: Spread
    ours_ms: float | None = None
    other_ms: float | None = None
    note: str = ""
    # fp32 or bf16 where the spread is in FLOP/s and still to be divided by the rate of a plain
    # product, which is known at the end of the run
    product_rate: str | None = None
    details: Sequence[Mapping[str, Any]] = ()  # rows of a table of its own
    digits: int = 3  # behind the point, in the table

    def as_share_of(self, limit: float) -> "Result":
        note = ", ".join(filter(None, (self.note, f"of {limit / 1e9:,.0f} GFLOP/s")))
        return replace(self, spread=self.spread.times(1 / limit), note=note, product_rate=None)

    def as_json(self) -> dict[str, object]:
        digits, spread = max(6, self.digits), self.spread
        medians = {"median": spread.median, "p10": spread.low, "p90": spread.high}
        times = {"ours_ms": self.ours_ms, "other_ms": self.other_ms}
        return {
            **{name: round(value, digits) for name, value in medians.items()},
            "rounds": spread.count,
            **{name: None if ms is None else round(ms, 3) for name, ms in times.items()},
            "note": self.note,
            **({"details": list(self.details)} if self.details else {}),
        }


def speedup(
    key: str, times: Times, other: str, ours: str = "mmoe", note: str = "", **more: Any
) -> Result:
    """How many times as long the other one takes."""
    ms = times.ms(ours), times.ms(other)
    return Result(key, times.ratio(other, ours), *ms, note, **more)


def missed(results: Iterable[Result], targets: Mapping[str, Target]) -> list[str]:
    held = [result for result in results if result.key in targets]
    return [r.key for r in held if not targets[r.key].met(r.spread.median)]


RATIOS = "Paired ratios: median and 10–90 % range"


def print_table(
    results: Sequence[Result],
    targets: Mapping[str, Target],
    title: str = RATIOS,
    *,
    enough_rounds: bool = True,  # else medians are not held against targets
) -> None:
    below = set(missed(results, targets))
    table = new_table(("key", "ours, ms", "other, ms", "median", "10–90 %", "target"), title)
    for column in ("", "note"):
        table.add_column(column, no_wrap=not column)
    for result in results:
        target, spread, digits = targets.get(result.key), result.spread, result.digits
        verdict = "MISSED" if result.key in below else "met"
        table.add_row(
            result.key if target else f"  {result.key}",
            *("" if ms is None else f"{ms:,.2f}" for ms in (result.ours_ms, result.other_ms)),
            f"{spread.median:.{digits}f}",
            f"{spread.low:.{digits}f}–{spread.high:.{digits}f}",
            str(target) if target else "",
            (verdict if enough_rounds else "too few rounds") if target else "",
            result.note,
        )
    show("", table)


# Which machine a run was on

SHOWN_FLAGS = ("avx512f", "avx512_bf16", "amx_bf16")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    cores = sum(line.startswith("processor") for line in lines)
    # The name alone does not tell generations apart, which differ by a factor of two.
    words = [f"{cores} × {fields.get('model name', platform.processor())}"]
    words += [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    flags = fields.get("flags", "").split()
    return " ".join([*words, *(flag for flag in SHOWN_FLAGS if flag in flags)])


# What a plain matrix product reaches on this machine: the limit that shares are taken of

SQUARE = 2048
# The dense mixture's own products, rows × inner × columns: two layers, their input gradients (the
# same shapes turned round) and their weight gradients.
WORKLOAD = (
    (4096, 330, 256), (4096, 256, 128), (4096, 128, 256), (330, 4096, 256), (256, 4096, 128),
)  # fmt: skip
REPEATS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class ProductRates:
    """The best rate seen so far, by dtype and by library, in FLOP/s.

    Measured between the races: the rate of a shared machine drifts, and the limit is the best that
    was seen anywhere in the run.
    """

    device: str
    best: dict[str, dict[str, float]] = field(default_factory=lambda: {"fp32": {}, "bf16": {}})

    def measure(self) -> None:
        clock = Clock(device=self.device, rounds=None, seconds=0.0)
        for dtype_name, dtype in DTYPES.items():
            if not multiplies(dtype_name, self.device):
                continue
            for rows, inner, columns in ((SQUARE,) * 3, *WORKLOAD):
                x = torch.randn(rows, inner, device=self.device).to(dtype)
                w = torch.randn(inner, columns, device=self.device).to(dtype)
                for library, product in _products(x, w).items():
                    seconds = [clock.time(product) for _ in range(1 + REPEATS)]
                    rate = 2 * rows * inner * columns / min(seconds[1:])
                    rates = self.best[dtype_name]
                    rates[library] = max(rate, rates.get(library, 0.0))

    def limit(self, dtype_name: str) -> float | None:
        """The best of all libraries and shapes; None: it was not measured."""
        return max(self.best[dtype_name].values(), default=None)


def multiplies(dtype_name: str, device: str) -> bool:
    """Has the device products of this type?

    A processor without AVX-512 makes them of bfloat16 number by number: one of 2,048 rows takes a
    minute, and is the limit of nothing.
    """
    if dtype_name == "fp32" or device != "cpu":
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _products(x: Tensor, w: Tensor) -> Mapping[str, Callable[[], Tensor]]:
    """`torch.mm` (MKL for fp32 on the CPU) and, on the CPU, oneDNN's linear layer."""
    products: dict[str, Callable[[], Tensor]] = {"torch.mm": lambda: torch.mm(x, w)}
    if x.device.type == "cpu" and torch.backends.mkldnn.is_available():
        w_t = w.T.contiguous()
        linear = torch.ops.mkldnn._linear_pointwise
        products["oneDNN"] = lambda: linear(x, w_t, None, "none", [], "")
    return products


# Runs contestants in turn in one process, or in all ranks of a world

WARM_UP_ROUNDS = 2
FEWEST_ROUNDS, MOST_ROUNDS = 5, 60
Found = TypeVar("Found")


def in_turns(
    calls: Mapping[str, Callable[[], Found]],
    rounds: int,
    after: Callable[[], object] = lambda: None,  # each round
) -> dict[str, list[Found]]:
    """What each call gives, round by round."""
    found: dict[str, list[Found]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in rotated(calls, turn):
            found[name].append(calls[name]())
        after()
    return found


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How long, and on what, contestants run."""

    device: str  # cpu or cuda
    rounds: int | None  # of every race; None: as many as fit into its time
    seconds: float  # of one race
    say: Callable[[str], None] = field(default=lambda _: None)

    def race(
        self, name: str, calls: Mapping[str, Callable[[], object]], *, share: float = 1.0
    ) -> Times:
        """Runs the contestants in turn, for a share of the time of one race."""
        one_round = 0.0
        for _ in range(1 if self.rounds == 1 else WARM_UP_ROUNDS):
            one_round = sum(self.time(call) for call in calls.values())
        rounds = self.rounds or max(
            FEWEST_ROUNDS, min(MOST_ROUNDS, int(self.seconds * share / max(one_round, 1e-6)))
        )
        self.say(f"  {name}: {rounds} rounds of {one_round:.3f} s")
        return Times(in_turns({n: partial(self.time, call) for n, call in calls.items()}, rounds))

    def time(self, call: Callable[[], object]) -> float:
        """Seconds of one call, with what it left running on the device."""
        self._wait()
        started = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def time_on_all_ranks(call: Callable[[], object]) -> float:
    """Seconds until the last rank is done, the same on every rank; all begin together."""
    dist.barrier()
    started = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


# What a race is, and a run through several of them, which ends with one JSON line

Bench = TypeVar("Bench")


class NothingToMeasure(Exception):
    """Why a key has no value here, which is no failure (a package or a feature is not there)."""


@dataclass(frozen=True)
class Race(Generic[Bench]):
    """One race: the keys that come out of it, what each should reach, and what measures them."""

    keys: Mapping[str, Target | None]  # None: shown for information
    run: Callable[[Bench], list[Result]]


def keys_of(races: Iterable[Race[Any]]) -> dict[str, Target | None]:
    return {key: target for race in races for key, target in race.keys.items()}


def options(
    name: str,  # of the program, which adds options of its own
    keys: Iterable[str],
    *,
    seconds: float | None = None,  # of a race, unless told otherwise; None: no option
    rounds: bool = False,  # whether their number may be told
    seeds: int | None = None,  # unless told otherwise; None: one, and no option
    device: bool = False,  # whether it may be a GPU
    threads: int | None = None,  # of this process; None: an option
) -> argparse.ArgumentParser:
    """Returns those that programs share."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.set_defaults(device="cpu", rounds=None, seeds=1, threads=threads)
    add = parser.add_argument
    if device:
        add("--device", choices=("cpu", "cuda"), default="cpu")
    if threads is None:
        add("--threads", type=int, default=torch.get_num_threads())
    if rounds:
        add("--rounds", type=int, help="of every race; default: as many as fit into --seconds")
    if seconds is not None:
        add("--seconds", type=float, default=seconds, help="of a race")
    if seeds is not None:
        add("--seeds", type=int, default=seeds, help="of compared trainings")
    keys = tuple(keys)
    add("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    add("--out", type=Path, help="the JSON line goes here as well")
    return parser


def clock_of(arguments: argparse.Namespace) -> Clock:
    """Of the options of a program."""
    given = {name: getattr(arguments, name) for name in ("device", "rounds", "seconds")}
    return Clock(**given, say=talker())


def run(
    arguments: argparse.Namespace,  # of `options`
    races: Sequence[Race[Bench]],
    bench: Bench,  # what each race gets
    *,
    settings: Mapping[str, Any] | None = None,  # that the JSON line holds too
    skipped: Mapping[str, str] | None = None,  # keys without a value though their race has run
    fewest_seeds: int = 0,  # with fewer, and with few rounds, nothing is held against targets
    rates: ProductRates | None = None,  # of which results are shares; measured around each race
    between: bool = False,
    details: Callable[[Sequence[Result]], None] = lambda _: None,  # prints what comes first
    title: str = RATIOS,
) -> None:
    """Runs the wanted races; prints a table and one JSON line; exits with 1 if a race failed."""
    torch.set_num_threads(arguments.threads)
    started, say = time.perf_counter(), talker()
    targets = {key: target for key, target in keys_of(races).items() if target is not None}
    wanted = [race for race in races if set(race.keys) & set(arguments.only)]
    results: list[Result] = []
    failed: dict[str, str] = {}
    without: dict[str, str] = {}
    for number, race in enumerate(wanted, start=1):
        say(f"{number}/{len(wanted)} {', '.join(race.keys)}")
        if rates is not None and between:
            rates.measure()
        try:
            results += race.run(bench)
        except NothingToMeasure as reason:
            say(f"skipped: {reason}")
            without |= dict.fromkeys(race.keys, str(reason))
        # What one race cannot do must not cost all the others.
        except (ValueError, RuntimeError, OSError) as error:
            say(f"FAILED: {error}")
            failed |= dict.fromkeys(race.keys, str(error))
    if rates is not None:
        if between:
            rates.measure()
        results, no_products = shares_of(results, rates)
        without |= no_products
    without |= skipped or {}
    results = _in_order(results, targets)
    details(results)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    enough = enough and arguments.seeds >= fewest_seeds
    print_table(results, targets, title, enough_rounds=enough)
    context = _context(arguments.device, settings or {}, started, rates)
    _print_context(context, without)
    outcome = f"missed: {', '.join(missed(results, targets)) or 'none'}"
    print(f"{context['seconds']} s; {outcome if enough else 'too few rounds: it runs, no more'}")
    line = {
        **{r.key: round(r.spread.median, max(4, r.digits)) for r in results}, **context,
        "skipped": without, "missed": missed(results, targets) if enough else None,
        "failed": failed, "results": {r.key: r.as_json() for r in results},
    }  # fmt: skip
    last_line(line, arguments.out)
    if failed:
        sys.exit(1)


def shares_of(
    results: Sequence[Result], rates: ProductRates
) -> tuple[list[Result], dict[str, str]]:
    """FLOP/s as shares of the product rate; why keys have none: there are no such products."""
    shares, without = [], {}
    for result in results:
        limit = rates.limit(result.product_rate) if result.product_rate else None
        if result.product_rate and limit is None:
            without[result.key] = f"no {result.product_rate} products on this machine"
        else:
            shares.append(result if limit is None else result.as_share_of(limit))
    return shares, without


def _in_order(results: Iterable[Result], targets: Mapping[str, Target]) -> list[Result]:
    """In the order of `targets`, each key followed by what is shown beside it."""
    keys = list(targets)

    def place(result: Result) -> int:
        owners = [i for i, key in enumerate(keys) if result.key.startswith(key)]
        return max(owners, default=len(keys))

    return sorted(results, key=lambda result: (place(result), len(result.key), result.key))


def _context(
    device: str, settings: Mapping[str, Any], started: float, rates: ProductRates | None
) -> dict[str, Any]:
    context = {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(), **settings, "torch": torch.__version__,
        "extension": extension_status().detail, "seconds": round(time.perf_counter() - started),
    }  # fmt: skip
    if rates is not None:
        context["product_gflops"] = {
            dtype: {library: round(rate / 1e9, 1) for library, rate in by_library.items()}
            for dtype, by_library in rates.best.items()
        }
    return context


def _print_context(context: Mapping[str, Any], skipped: Mapping[str, str]) -> None:
    for key, reason in skipped.items():
        print(f"skipped {key}: {reason}")
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    for dtype, by_library in context.get("product_gflops", {}).items():
        shown = ", ".join(f"{library} {rate:,.0f}" for library, rate in by_library.items())
        print(f"best product, {dtype}: {shown or 'none'} GFLOP/s")


def talker() -> Callable[[str], None]:
    """Returns what prints a line to standard error, as it is."""
    console = Console(stderr=True, highlight=False)
    return lambda text: console.print(text, markup=False, soft_wrap=True)


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix=f"mmoe-bench-{name}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def new_table(columns: Sequence[str], title: str | None = None) -> Table:
    """Returns a table whose first column is text, and the others numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def show(title: str, table: Table) -> None:
    """Prints a table; a title that may be longer than it is wide comes before."""
    if title:
        print(title)
    Console(width=140, highlight=False).print(table)


def print_details(results: Sequence[Result]) -> None:
    """A table of what stands behind each key."""
    for result in results:
        if result.details:
            rows = [_flat(row) for row in result.details]
            table = new_table(list(rows[0]))
            for row in rows:
                table.add_row(*map(_shown, row.values()))
            show(result.key, table)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    inner = [value for value in row.values() if isinstance(value, dict)]
    return {k: v for part in (row, *inner) for k, v in part.items() if not isinstance(v, dict)}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def last_line(line: Mapping[str, Any], out: Path | None = None) -> None:
    """Prints what a program found as one JSON line, and writes it to a file where one is named."""
    text = json.dumps(line, ensure_ascii=False)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    print(text)

"""Runs contestants in turn, and sets medians beside targets: a table and, last, a JSON line."""

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

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
        ordered = sorted(values)
        low, high = _quantile(ordered, 0.1), _quantile(ordered, 0.9)
        return cls(statistics.median(ordered), low, high, len(ordered))

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

    def ratio(self, other: str, ours: str) -> Spread:
        """How many times as long `other` takes."""
        pairs = zip(self.seconds[other], self.seconds[ours], strict=True)
        return Spread.of([theirs / own for theirs, own in pairs])

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.median)

    def then(self, more: "Times") -> "Times":
        """Rounds of the same contestants on other data, as one series."""
        return Times({name: [*self.seconds[name], *more.seconds[name]] for name in self.seconds})


def rotated(names: Sequence[str], turn: int) -> Iterator[str]:
    """Every contestant follows every other one in turn: neighbours leave caches behind."""
    start = turn % len(names)
    order = [*names[start:], *names[:start]]
    yield from reversed(order) if turn // len(names) % 2 else order


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


# Targets, results, and the table that sets one beside the other


@dataclass(frozen=True)
class Target:
    """What a key should reach: at least `bound`, or at most; with `highest`, a range."""

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


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table."""

    key: str  # Of the targets; others are shown for information
    spread: Spread  # Median and range of the paired ratios
    ours_ms: float | None = None  # Median of ours
    # Median of what it is compared with. None where there is no such time.
    other_ms: float | None = None
    note: str = ""  # What else is worth knowing
    # `fp32` or `bf16` where the spread is in FLOP/s and still to be divided by the rate of a plain
    # product, which is known at the end of the run
    product_rate: str | None = None
    details: Sequence[Mapping[str, Any]] = ()  # Rows of a table of its own
    digits: int = 3  # Behind the point, in the table

    def as_share_of(self, limit: float) -> "Result":
        """A rate as a share of `limit` (FLOP/s)."""
        note = f"of {limit / 1e9:,.0f} GFLOP/s"
        note = f"{self.note}, {note}" if self.note else note
        return replace(self, spread=self.spread.times(1 / limit), note=note, product_rate=None)

    def as_json(self) -> dict[str, object]:
        """Everything but the key."""
        digits = max(6, self.digits)
        return {
            "median": round(self.spread.median, digits),
            "p10": round(self.spread.low, digits),
            "p90": round(self.spread.high, digits),
            "rounds": self.spread.count,
            "ours_ms": _rounded(self.ours_ms),
            "other_ms": _rounded(self.other_ms),
            "note": self.note,
            **({"details": list(self.details)} if self.details else {}),
        }


def speedup(key: str, times: Times, other: str, ours: str = "mmoe", note: str = "") -> Result:
    """How many times as long the other one takes."""
    return Result(
        key=key,
        spread=times.ratio(other, ours),
        ours_ms=times.median(ours) * 1e3,
        other_ms=times.median(other) * 1e3,
        note=note,
    )


def in_order(results: Iterable[Result], targets: Mapping[str, Target]) -> list[Result]:
    """In the order of `targets`, each key followed by what is shown beside it."""
    keys = list(targets)

    def place(result: Result) -> int:
        owners = [i for i, key in enumerate(keys) if result.key.startswith(key)]
        return max(owners, default=len(keys))

    return sorted(results, key=lambda result: (place(result), len(result.key), result.key))


def missed(results: Iterable[Result], targets: Mapping[str, Target]) -> list[str]:
    """The keys whose median is not what it should be."""
    held = [result for result in results if result.key in targets]
    return [r.key for r in held if not targets[r.key].met(r.spread.median)]


def print_table(
    results: Sequence[Result],  # What was measured
    targets: Mapping[str, Target],  # What it is held against
    title: str = "Paired ratios: median and 10–90 % range",  # Above the table
    *,
    enough_rounds: bool = True,  # Whether the medians can be held against the targets at all
) -> None:
    """Targets beside what was measured; keys without a target are for information."""
    below = set(missed(results, targets))
    table = new_table(("key", "ours, ms", "other, ms", "median", "10–90 %", "target"), title)
    for column in ("", "note"):
        table.add_column(column, no_wrap=not column)
    for result in results:
        target = targets.get(result.key)
        spread, digits = result.spread, result.digits
        table.add_row(
            result.key if target else f"  {result.key}",
            *("" if ms is None else f"{ms:,.2f}" for ms in (result.ours_ms, result.other_ms)),
            f"{spread.median:.{digits}f}",
            f"{spread.low:.{digits}f}–{spread.high:.{digits}f}",
            str(target) if target else "",
            _verdict(result.key in below, enough_rounds) if target else "",
            result.note,
        )
    show("", table)


def _verdict(missed: bool, enough_rounds: bool) -> str:
    if not enough_rounds:
        return "too few rounds"
    return "MISSED" if missed else "met"


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)


# Which machine a run was on

SHOWN_FLAGS = ("avx512f", "avx512_bf16", "amx_bf16")


def processor() -> str:
    """Name and kind of the processor, where the system tells them."""
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
    (4096, 330, 256),
    (4096, 256, 128),
    (4096, 128, 256),
    (330, 4096, 256),
    (256, 4096, 128),
)
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
        """Runs every product a few times and keeps the best."""
        for dtype_name, dtype in DTYPES.items():
            if not multiplies(dtype_name, self.device):
                continue
            for rows, inner, columns in ((SQUARE,) * 3, *WORKLOAD):
                x = torch.randn(rows, inner, device=self.device).to(dtype)
                w = torch.randn(inner, columns, device=self.device).to(dtype)
                for library, product in _products(x, w).items():
                    rate = 2 * rows * inner * columns / self._best_seconds(product)
                    rates = self.best[dtype_name]
                    rates[library] = max(rate, rates.get(library, 0.0))

    def limit(self, dtype_name: str) -> float | None:
        """The best of all libraries and shapes; None: it was not measured."""
        return max(self.best[dtype_name].values(), default=None)

    def _best_seconds(self, product: Callable[[], Tensor]) -> float:
        product()
        seconds = []
        for _ in range(REPEATS):
            self._wait()
            started = time.perf_counter()
            product()
            self._wait()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


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


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How long, and on what, contestants run."""

    device: str  # cpu or cuda
    rounds: int | None  # Rounds of every race; None: as many as fit into its time
    seconds: float  # Time of one race
    say: Callable[[str], None] = field(default=lambda _: None)  # Told of progress

    def race(
        self, name: str, calls: Mapping[str, Callable[[], object]], *, share: float = 1.0
    ) -> Times:
        """Runs the contestants in turn, in another order every round."""
        one_round = 0.0
        for _ in range(1 if self.rounds == 1 else WARM_UP_ROUNDS):
            one_round = sum(self.time(call) for call in calls.values())
        rounds = self.rounds or max(
            FEWEST_ROUNDS, min(MOST_ROUNDS, int(self.seconds * share / max(one_round, 1e-6)))
        )
        self.say(f"  {name}: {rounds} rounds of {one_round:.3f} s")
        seconds: dict[str, list[float]] = {key: [] for key in calls}
        for turn in range(rounds):
            for key in rotated(list(calls), turn):
                seconds[key].append(self.time(calls[key]))
        return Times(seconds)

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


# What a race is, and a run through several of them

Bench = TypeVar("Bench")


class NothingToMeasure(Exception):
    """Why a key has no value here, which is no failure (a package or a feature is not there)."""


@dataclass(frozen=True)
class Race(Generic[Bench]):
    """One race."""

    # That come out of it, and what each should reach; None: shown for information
    keys: Mapping[str, Target | None]
    run: Callable[[Bench], list[Result]]  # Measures them


def run_races(
    races: Sequence[Race[Bench]],
    bench: Bench,
    wanted: Collection[str],
    say: Callable[[str], None],
    between: Callable[[], None] = lambda: None,
) -> tuple[list[Result], dict[str, str], dict[str, str]]:
    """Runs the races that give a wanted key, in turn; `between` is called around each.

    Returns results, and why other keys have none: failed, skipped.
    """
    races = [race for race in races if set(race.keys) & set(wanted)]
    results: list[Result] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    between()
    for number, race in enumerate(races, start=1):
        say(f"{number}/{len(races)} {', '.join(race.keys)}")
        try:
            results += race.run(bench)
        except NothingToMeasure as reason:
            say(f"skipped: {reason}")
            skipped |= dict.fromkeys(race.keys, str(reason))
        # What one race cannot do must not cost all the others.
        except (ValueError, RuntimeError, OSError) as error:
            say(f"FAILED: {error}")
            failed |= dict.fromkeys(race.keys, str(error))
        between()
    return results, failed, skipped


# What a benchmark ends with: one JSON line


def talker() -> Callable[[str], None]:
    """Returns what prints a line to standard error, as it is."""
    console = Console(stderr=True, highlight=False)
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def shares_of(
    results: Sequence[Result], rates: ProductRates
) -> tuple[list[Result], dict[str, str]]:
    """FLOP/s as shares of the product rate of their precision.

    Returns the results, and why keys have none: this machine has no such products.
    """
    shares, without = [], {}
    for result in results:
        limit = rates.limit(result.product_rate) if result.product_rate else None
        if result.product_rate and limit is None:
            without[result.key] = f"no {result.product_rate} products on this machine"
        else:
            shares.append(result if limit is None else result.as_share_of(limit))
    return shares, without


def report(
    found: tuple[list[Result], dict[str, str], dict[str, str]],  # By `run_races`
    targets: Mapping[str, Target],  # Of the keys that have one
    settings: Mapping[str, Any],  # That the JSON line holds too
    out: Path | None,  # The JSON line goes here as well
    *,
    started: float,  # By `time.perf_counter`
    title: str = "Paired ratios: median and 10–90 % range",  # Of the table
    rates: ProductRates | None = None,  # Of products, of which results are shares
    details: Callable[[Sequence[Result]], None] = lambda _: None,
    device: str = "cpu",  # That was measured
    enough: bool = True,  # Whether the medians can be held against the targets at all
) -> None:
    """Prints what races found as a table and, last, as a JSON line; exits with 1 if one failed."""
    results, failed, skipped = found
    context = {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        **settings,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "seconds": round(time.perf_counter() - started),
    }
    if rates is not None:
        results, without = shares_of(results, rates)
        skipped = skipped | without
        context["product_gflops"] = {
            dtype: {library: round(rate / 1e9, 1) for library, rate in by_library.items()}
            for dtype, by_library in rates.best.items()
        }
    results = in_order(results, targets)
    details(results)
    print_table(results, targets, title, enough_rounds=enough)
    for key, reason in skipped.items():
        print(f"skipped {key}: {reason}")
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    for dtype, by_library in context.get("product_gflops", {}).items():
        shown = ", ".join(f"{library} {rate:,.0f}" for library, rate in by_library.items())
        print(f"best product, {dtype}: {shown or 'none'} GFLOP/s")
    outcome = f"missed: {', '.join(missed(results, targets)) or 'none'}"
    print(f"{context['seconds']} s; {outcome if enough else 'too few rounds: it runs, no more'}")
    last_line(
        {
            **{r.key: round(r.spread.median, max(4, r.digits)) for r in results},
            **context,
            "skipped": skipped,
            "missed": missed(results, targets) if enough else None,
            "failed": failed,
            "results": {r.key: r.as_json() for r in results},
        },
        out,
    )
    if failed:
        sys.exit(1)


# What programs share: options, races, the table, the last line


def keys_of(races: Iterable[Race[Any]]) -> dict[str, Target | None]:
    return {key: target for race in races for key, target in race.keys.items()}


def targets_of(races: Iterable[Race[Any]]) -> dict[str, Target]:
    return {key: target for key, target in keys_of(races).items() if target is not None}


def options(
    name: str,  # Of the program
    keys: Iterable[str],  # That may be asked for
    *,
    seconds: float | None = None,  # Of a race, unless told otherwise; None: no option
    rounds: bool = False,  # Whether their number may be told
    seeds: int | None = None,  # Unless told otherwise; None: one, and no option
    device: bool = False,  # Whether it may be a GPU
    threads: int | None = None,  # Of this process; None: an option
) -> argparse.ArgumentParser:
    """Returns those that programs share; a program adds its own."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.set_defaults(device="cpu", rounds=None, seeds=1, threads=threads)
    if device:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if threads is None:
        parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    if rounds:
        words = "of every race; default: as many as fit into --seconds"
        parser.add_argument("--rounds", type=int, help=words)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="of a race")
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help="of compared trainings")
    keys = tuple(keys)
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser


def clock_of(arguments: argparse.Namespace) -> Clock:
    return Clock(
        device=arguments.device, rounds=arguments.rounds, seconds=arguments.seconds, say=talker()
    )


def run(
    arguments: argparse.Namespace,  # Of `options`
    races: Sequence[Race[Bench]],  # In turn
    bench: Bench,  # What each race gets
    *,
    settings: Mapping[str, Any] | None = None,  # That the JSON line holds too
    skipped: Mapping[str, str] | None = None,
    fewest_seeds: int = 0,  # With fewer of them medians are not held against targets
    between: Callable[[], None] = lambda: None,  # Called around each race
    **shown: Any,
) -> None:
    """Prints a table and, last, one JSON line; exits with 1 where a race failed."""
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    results, failed, reasons = run_races(races, bench, arguments.only, talker(), between)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    report(
        (results, failed, {**reasons, **(skipped or {})}),
        targets_of(races),
        settings or {},
        arguments.out,
        started=started,
        device=arguments.device,
        enough=enough and arguments.seeds >= fewest_seeds,
        **shown,
    )


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"mmoe-bench-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def last_line(line: Mapping[str, Any], out: Path | None = None) -> None:
    """Prints what a program found as one JSON line, and writes it to a file where one is named."""
    text = json.dumps(line, ensure_ascii=False)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    print(text)

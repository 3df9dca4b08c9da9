"""Races our layer against the alternatives, prints a table and, last, one JSON line.

python -m benchmarks.mixture [--device cpu|cuda] [--threads N] [--rounds N] [--only KEY ...]
                             [--seconds S] [--out FILE]
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.mixture.auto_race import AUTO_RACES, format_choices
from benchmarks.mixture.bench import Bench, Race
from benchmarks.mixture.dense_races import DENSE_RACES
from benchmarks.mixture.gate_races import GATE_RACES
from benchmarks.mixture.products import ProductRates
from benchmarks.mixture.race import FEWEST_ROUNDS, Clock
from benchmarks.mixture.results import TARGETS, Result, in_order, missed, print_table
from benchmarks.mixture.sparse_races import SPARSE_RACES
from mmoe.ops import extension_status

SHOWN_FLAGS = ("avx512f", "avx512_bf16", "amx_bf16")
RACES = (*DENSE_RACES, *SPARSE_RACES, *GATE_RACES, *AUTO_RACES)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    races = [race for race in RACES if set(race.keys) & set(arguments.only or TARGETS)]
    console = Console(stderr=True, highlight=False)
    clock = Clock(
        device=arguments.device,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        say=lambda text: console.print(text, markup=False, soft_wrap=True),
    )
    bench = Bench(clock, ProductRates(arguments.device))
    results, failed = _run(bench, races, console)
    context = _context(arguments, bench, time.perf_counter() - started)
    enough = arguments.rounds is None or arguments.rounds >= FEWEST_ROUNDS
    _print(results, context, enough)
    line = json.dumps(_as_json(results, failed, context, enough), ensure_ascii=False)
    if arguments.out:
        arguments.out.write_text(line + "\n", encoding="utf-8")
    print(line)
    if failed:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--rounds", type=int, help="of every race; default: as many as fit into --seconds"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of a race")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), metavar="KEY")
    parser.add_argument("--out", type=Path, help="the JSON line goes here as well")
    return parser.parse_args()


def _run(
    bench: Bench, races: Sequence[Race], console: Console
) -> tuple[list[Result], dict[str, str]]:
    """Results in the order of the table, and why other keys have none."""
    results: list[Result] = []
    failed: dict[str, str] = {}
    bench.rates.measure()
    # A bar on a terminal; elsewhere the lines alone.
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for number, race in enumerate(progress.track(races, description="races"), start=1):
            bench.clock.say(f"{number}/{len(races)} {', '.join(race.keys)}")
            try:
                results += race.run(bench)
            # What one race cannot do (numbers that differ, memory) must not cost all the others.
            except (ValueError, RuntimeError) as error:
                bench.clock.say(f"FAILED: {error}")
                failed |= dict.fromkeys(race.keys, str(error))
            bench.rates.measure()
    return in_order(map(partial(_finished, bench), results)), failed


def _finished(bench: Bench, result: Result) -> Result:
    if result.product_rate is None:
        return result
    return result.as_share_of(bench.rates.limit(result.product_rate))


def _context(arguments: argparse.Namespace, bench: Bench, seconds: float) -> dict[str, Any]:
    cuda = arguments.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else _processor(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "extension": extension_status().detail,
        "product_gflops": {
            dtype: {library: round(rate / 1e9, 1) for library, rate in rates.items()}
            for dtype, rates in bench.rates.best.items()
        },
        "seconds": round(seconds),
    }


def _processor() -> str:
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


def _print(results: Sequence[Result], context: dict[str, Any], enough_rounds: bool) -> None:
    for result in results:
        if result.key == "auto_regret":
            print(format_choices(result.details))
    print_table(results, enough_rounds=enough_rounds)
    print(f"{context['device']}, {context['threads']} threads, torch {context['torch']}")
    print(f"mmoe.ops: {context['extension']}")
    for dtype, rates in context["product_gflops"].items():
        shown = ", ".join(f"{library} {rate:,.0f}" for library, rate in rates.items())
        print(f"best product, {dtype}: {shown} GFLOP/s")
    outcome = f"missed: {', '.join(missed(results)) or 'none'}"
    if not enough_rounds:
        outcome = (
            f"fewer than {FEWEST_ROUNDS} rounds: this shows that it runs, and measures nothing"
        )
    print(f"{context['seconds']} s; {outcome}")


def _as_json(
    results: Sequence[Result],
    failed: dict[str, str],
    context: dict[str, Any],
    enough_rounds: bool,
) -> dict[str, Any]:
    """The keys first, then what stands behind them."""
    return {
        **{r.key: round(r.spread.median, 4) for r in results},
        **context,
        "missed": missed(results) if enough_rounds else None,
        "failed": failed,
        "results": {r.key: r.as_json() for r in results},
    }


if __name__ == "__main__":
    main()

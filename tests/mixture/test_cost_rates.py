"""The table of rates that `auto` goes by: its form, and what it decides on each type of device."""

import json
import random

from mmoe.mixture import Work, choose_execution
from mmoe.mixture.execution import (
    RATE_TABLE,
    CostRates,
    dense_seconds,
    grouped_seconds,
    rates_of,
    read_table,
)

TEXT = RATE_TABLE.read_text(encoding="utf-8")
CPU_LINE = TEXT.splitlines()[0]


def old_seconds(work):
    """Dense and grouped, by the CPU's constants as they stood in the code."""
    per_flop = {4: 1 / 200e9, 2: 1 / 400e9, 8: 1 / 95e9}[work.number_bytes]
    per_byte, per_pick, passes = 1 / 40e9, 2e-9, 3 if work.training else 1

    def products(rows):
        return 2 * passes * rows * work.parameters * per_flop

    def combine(pairs):
        return 2 * passes * pairs * work.output_dim * work.number_bytes * per_byte

    everything = work.rows * work.num_experts
    dense = products(everything) + combine(everything) + work.picks * work.rows * per_pick
    blocks = work.pairs + 12 / 2 * min(work.num_experts, work.pairs)
    gathered = 2 * passes * work.pairs * work.input_dim * work.number_bytes * per_byte
    planned = work.picks * work.rows * per_pick + 20e-6
    return dense, products(blocks) + gathered + combine(work.pairs) + planned


def drawn(count):
    """Works of all sizes."""
    draw = random.Random(0)
    for _ in range(count):
        rows, experts, gates = draw.randint(1, 9000), draw.randint(1, 200), draw.randint(1, 9)
        yield Work(
            rows,
            experts,
            picks=gates * draw.randint(1, 8),
            num_gates=gates,
            pairs=rows * experts * draw.random(),
            parameters=draw.randint(1, 10**6),
            input_dim=draw.randint(0, 1000),
            output_dim=draw.randint(0, 1000),
            number_bytes=draw.choice([2, 4, 8]),
            training=draw.random() < 0.5,
        )


def test_a_cpus_estimates_are_what_they_were():
    for work in drawn(2000):
        assert (dense_seconds(work), grouped_seconds(work)) == old_seconds(work)


def test_a_gpus_rates_are_other_ones():
    works = [work._replace(device_type="cuda") for work in drawn(200)]

    assert all(
        dense_seconds(work) < dense_seconds(work._replace(device_type="cpu")) for work in works
    )
    assert {choose_execution(work) for work in works} == {"dense", "grouped"}
    # 512 rows for each of 4 experts: on a GPU less than what a plan's launches cost
    small = Work(512, 4, 2, 1, 1024.0, 10_000, 64, 32)
    assert choose_execution(small) == "grouped"
    assert choose_execution(small._replace(device_type="cuda")) == "dense"


def test_every_line_says_where_it_comes_from_and_reads_back():
    table = read_table(TEXT)

    assert set(table) == {"cpu", "cuda"}
    for rates in table.values():
        assert CostRates.from_line(rates.as_line()) == rates
        assert "measured" in rates.source


def test_a_device_without_a_line_is_taken_for_a_cpu():
    assert rates_of("xpu") == rates_of("cpu")


def test_a_measured_line_takes_the_place_of_the_tables():
    line = json.loads(CPU_LINE) | {"device": "cuda", "source": "measured", "rows_per_block": 64}

    table = read_table(f"{CPU_LINE}\n{json.dumps(line)}\n")

    assert table["cuda"].rows_per_block == 64
    assert table["cuda"].dense == table["cpu"].dense

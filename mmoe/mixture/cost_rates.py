"""Rates by which `auto` estimates times, a line of `cost_rates.jsonl` for each type of device.

Each line says where its numbers come from. `python -m benchmarks.gpu_check.cost_rates` measures
them and writes a line in the same form: put in its place, it is what `auto` goes by.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("cost_rates.jsonl")


@dataclass(frozen=True, kw_only=True)
class ProductRates:
    """Operations a second of products, a multiplication and an addition being two.

    Attributes:
        bf16: Of numbers of 2 bytes.
        fp32: Of 4.
        fp64: Of 8.
    """

    bf16: float
    fp32: float
    fp64: float

    def seconds(self, number_bytes: int) -> float:
        """Returns the time of one operation; numbers of another size count as float32."""
        if number_bytes == 2:
            return 1 / self.bf16
        return 1 / (self.fp64 if number_bytes == 8 else self.fp32)


@dataclass(frozen=True, kw_only=True)
class CostRates:
    """What decides between dense and grouped execution on one type of device.

    Attributes:
        device: Its type, as torch names it.
        source: Where the numbers come from, and whether they were measured.
        dense: Products of all rows.
        grouped: Products of each expert's rows.
        rows_per_block: A grouped product runs in blocks of rows, and on average half a block of
            an expert's rows is wasted.
        bytes_per_second: Read or written in memory, by one pass over rows.
        seconds_per_pick: Plan and slots of one pick.
        seconds_per_grouped_call: What plan, gather and combine cost without any rows, more than
            dense execution does.
    """

    device: str
    source: str
    dense: ProductRates
    grouped: ProductRates
    rows_per_block: int
    bytes_per_second: float
    seconds_per_pick: float
    seconds_per_grouped_call: float

    @property
    def seconds_per_byte(self) -> float:
        """Of one pass over rows."""
        return 1 / self.bytes_per_second

    def as_line(self) -> str:
        """Returns the line that `from_line` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> "CostRates":
        """Reads a line of the table.

        Raises:
            ValueError: It is not one, with what is wrong with it.
        """
        try:
            values = json.loads(line)
        except ValueError as error:
            raise ValueError(f"cost rates: expected a line of JSON, {error}") from None
        _check_keys(cls, values, "cost rates")
        for key in ("dense", "grouped"):
            _check_keys(ProductRates, values[key], f"cost rates: {key}")
            values[key] = ProductRates(**_positive(values[key], f"{key}."))
        for key in ("device", "source"):
            if not isinstance(values[key], str):
                raise ValueError(f"cost rates: {key}: expected text, got {values[key]!r}")
        others = ("device", "source", "dense", "grouped")
        _positive({key: value for key, value in values.items() if key not in others}, "")
        return cls(**values)


def _check_keys(cls: type, values: Any, name: str) -> None:
    expected = {field.name for field in fields(cls)}
    if not isinstance(values, dict) or set(values) != expected:
        got = sorted(values) if isinstance(values, dict) else values
        raise ValueError(f"{name}: expected an object with {sorted(expected)}, got {got}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    for key, value in values.items():
        # A call may cost nothing more, as measured on a machine that launches nothing
        least = 0 if key.startswith("seconds") else 1
        if not _is_number(value) or not least <= value < float("inf"):
            raise ValueError(
                f"cost rates: {name}{key}: expected a number of at least {least}, got {value!r}"
            )
    return dict(values)


def read_table(text: str) -> dict[str, CostRates]:
    """Reads all lines, by type of device.

    Raises:
        ValueError: A line that is none, two for one type of device, or none for the CPU.
    """
    found: dict[str, CostRates] = {}
    for line in filter(None, text.splitlines()):
        rates = CostRates.from_line(line)
        if rates.device in found:
            raise ValueError(f"cost rates: expected one line for {rates.device}, got two")
        found[rates.device] = rates
    if "cpu" not in found:
        raise ValueError(f"cost rates: expected a line for cpu, got {sorted(found)}")
    return found


_RATES = read_table(TABLE.read_text(encoding="utf-8"))


def rates_of(device_type: str) -> CostRates:
    """Returns the rates of a type of device; those of the CPU where there are none.

    Example:
        >>> from mmoe.mixture.cost_rates import rates_of
        >>> rates_of("cpu").rows_per_block
        12
    """
    return _RATES[device_type] if device_type in _RATES else _RATES["cpu"]

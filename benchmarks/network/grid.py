"""The grid of settings on which modes are compared, fixed before there was a cost model.

Batches, pools, worlds, picks and links are spread over what people run: rows that are many beside
the weights of the experts and rows that are few, links that are slow beside the products and links
that are fast, loads that are even and loads that are not. On two cores a call whose rows travel
takes between 15 and 450 ms (`benchmarks/results/network_2core-zen5_20261125.json`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.mixture.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A layer, a world and the links between its hosts.

    Attributes:
        hosts: How many.
        per_host: Ranks of each.
        batch: Rows of each rank.
        experts: E, spread evenly.
        k: Picks of each gate.
        gates: G, which pick independently of each other.
        widths: D, then the experts' layers, the last of which is O.
        gbits: Rate of a host's link, in Gbit/s.
        skew: 0: even loads; else first picks follow `rank ** -skew`.
    """

    hosts: int
    per_host: int
    batch: int
    experts: int
    k: int
    gates: int
    widths: tuple[int, ...]
    gbits: float
    skew: float = 0.0

    @property
    def name(self) -> str:
        """In tables."""
        widths = "-".join(map(str, self.widths))
        skew = f", skew {self.skew:g}" if self.skew else ""
        return (
            f"{self.hosts}×{self.per_host}, B {self.batch}, E {self.experts} ({widths}), "
            f"G {self.gates}, K {self.k}, {self.gbits:g} Gbit/s{skew}"
        )

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Setting":
        """What `dataclasses.asdict` made, and JSON carried."""
        return cls(**{**raw, "widths": tuple(raw["widths"])})

    @property
    def ranks(self) -> int:
        """W."""
        return self.hosts * self.per_host

    @property
    def work(self) -> Workload:
        """The layer as each rank has it, with its own rows."""
        return Workload(
            B=self.batch,
            D=self.widths[0],
            hidden=self.widths[1:],
            E=self.experts,
            G=self.gates,
            k=self.k,
        )


# hosts, ranks of each, batch, experts, k, gates, widths, Gbit/s, skew
_ROWS: tuple[tuple[int, int, int, int, int, int, tuple[int, ...], float, float], ...] = (
    (2, 1, 256, 4, 1, 1, (64, 64), 0.1, 0.0),
    (2, 1, 256, 64, 2, 2, (256, 128), 0.1, 0.0),
    (2, 1, 1024, 8, 2, 4, (256, 64), 1.0, 0.0),
    (2, 1, 1024, 256, 2, 4, (256, 256), 1.0, 0.0),
    (2, 1, 2048, 16, 1, 1, (512, 256, 128), 3.0, 0.0),
    (2, 1, 2048, 32, 4, 2, (512, 512, 256), 3.0, 1.0),
    (2, 1, 4096, 8, 2, 2, (256, 512, 256), 10.0, 0.0),
    (2, 1, 4096, 64, 2, 1, (128, 128), 0.3, 1.5),
    (2, 1, 8192, 4, 1, 2, (128, 64), 1.0, 0.0),
    (2, 1, 8192, 16, 2, 3, (256, 128, 64), 10.0, 1.0),
    (2, 2, 256, 16, 2, 4, (1024, 256), 1.0, 0.0),
    (2, 2, 256, 128, 4, 2, (512, 256), 0.3, 0.0),
    (2, 2, 512, 64, 2, 4, (256, 256), 0.3, 0.0),
    (2, 2, 1024, 8, 4, 1, (256, 128), 0.3, 0.0),
    (2, 2, 1024, 64, 2, 4, (256, 512, 256), 1.0, 1.0),
    (2, 2, 2048, 256, 4, 1, (256, 128), 1.0, 1.5),
    (2, 2, 2048, 16, 1, 3, (512, 128), 3.0, 0.0),
    (2, 2, 4096, 4, 2, 2, (128, 128, 64), 1.0, 0.0),
    (2, 2, 4096, 32, 3, 1, (256, 256), 10.0, 0.0),
    (4, 1, 256, 8, 1, 2, (512, 512, 128), 1.0, 0.0),
    (4, 1, 512, 32, 2, 1, (1024, 128), 1.0, 1.0),
    (4, 1, 1024, 128, 2, 2, (256, 256), 0.3, 0.0),
    (4, 1, 2048, 16, 2, 4, (128, 64), 0.3, 0.0),
    (4, 1, 4096, 64, 1, 1, (256, 256, 128), 3.0, 1.5),
)
GRID: tuple[Setting, ...] = tuple(
    Setting(
        hosts=hosts,
        per_host=per_host,
        batch=batch,
        experts=experts,
        k=k,
        gates=gates,
        widths=widths,
        gbits=gbits,
        skew=skew,
    )
    for hosts, per_host, batch, experts, k, gates, widths, gbits, skew in _ROWS
)

"""Which contestant a process is. Imports neither torch nor mmoe."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.train.logs import Log
from benchmarks.train.workloads import WORKLOADS, Workload


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A contestant.

    Attributes:
        kind: mmoe, plain, torch_rechub or deepctr.
        workload: Name of it.
        folder: Of its log.
        rows: Of its log.
        precision: fp32 or bf16.
        threads: Of torch, in each process.
        ranks: Processes that train together.
        onednn: fp32 products through oneDNN.
        out: An empty folder for what it writes.
        overrides: `key.path=value` for our config.
        steps: Of a window; 0: as the workload says.
    """

    kind: str
    workload: str
    folder: str
    rows: int
    precision: str
    threads: int
    out: str
    ranks: int = 1
    onednn: bool = False
    overrides: tuple[str, ...] = ()
    steps: int = 0

    @property
    def log(self) -> Log:
        """Where the rows lie."""
        return Log(self.sizes, Path(self.folder), self.rows)

    @property
    def sizes(self) -> Workload:
        """The workload itself."""
        return WORKLOADS[self.workload]

    def to_json(self) -> str:
        """For the command line of the contestant's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """What `to_json` wrote."""
        raw: Mapping[str, Any] = json.loads(text)
        return cls(**{**raw, "overrides": tuple(raw["overrides"])})

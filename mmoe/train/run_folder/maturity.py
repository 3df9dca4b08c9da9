"""When a run's labels were collected, and which of them are masked, kept in its folder."""

import numpy as np
from pydantic import Field

from mmoe.config import RunConfig
from mmoe.config.json_files import Count, Share, read_stored
from mmoe.config.kinds import Strict
from mmoe.datasets.labels.delays import STEPS, DelayCurve
from mmoe.datasets.labels.masked import Masked
from mmoe.datasets.labels.maturity import Maturity, moment_text
from mmoe.run.atomic_files import write_json
from mmoe.run.directory import RunDirectory


class _StoredCurve(Strict):
    window: Count
    shares: list[Share] = Field(min_length=STEPS, max_length=STEPS)


class RunMaturity(Strict):
    """Content of maturity.json; its own labels' run is evaluated and resumed by it.

    Attributes:
        as_of: In words.
        micros: The same in microseconds since 1970.
        masked: How many labels of each split and task are masked.
        delays: Of tasks with `immature: weight`, the share of events by each step of the window.
        leaves_young: As in `Maturity`.
    """

    as_of: str
    micros: int
    masked: dict[str, dict[str, dict[str, Count]]]
    delays: dict[str, _StoredCurve]
    leaves_young: bool = False

    @classmethod
    def of(cls, maturity: Maturity, masked: Masked) -> "RunMaturity":
        """Returns what is to be stored."""
        delays = {
            task: _StoredCurve(window=curve.window, shares=curve.shares_J.tolist())
            for task, curve in maturity.curves.items()
        }
        as_of = moment_text(maturity.as_of)
        return cls(
            as_of=as_of,
            micros=maturity.as_of,
            masked=masked,
            delays=delays,
            leaves_young=maturity.leaves_young,
        )

    @classmethod
    def read(cls, run: RunDirectory, config: RunConfig) -> "RunMaturity | None":
        """Reads a run's maturity.json; None: no label of it matures.

        Raises:
            ValueError: The file is gone or damaged.
        """
        if not config.delayed_tasks:
            return None
        content = read_stored(
            run.maturity_file,
            cls,
            "it says when the run's labels were collected: put it back, or train again",
        )
        return cls.model_validate(content)

    @classmethod
    def resumed(cls, run: RunDirectory | None, config: RunConfig) -> tuple[Maturity, Masked] | None:
        """Reads what a run goes on with, as `prepare` takes it; None: of a new run."""
        stored = None if run is None else cls.read(run, config)
        return None if stored is None else (stored.maturity(), stored.masked)

    def save(self, run: RunDirectory) -> None:
        """Writes maturity.json."""
        write_json(run.maturity_file, self.model_dump(mode="json"))

    def maturity(self) -> Maturity:
        """Returns it as labels are encoded with it."""
        curves = {
            task: DelayCurve(curve.window, np.array(curve.shares))
            for task, curve in self.delays.items()
        }
        return Maturity(as_of=self.micros, curves=curves, leaves_young=self.leaves_young)

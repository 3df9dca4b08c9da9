"""The wide part of a run that keeps an earlier one's: its tasks' linear models stay."""

import torch

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.models.wide import WidePart
from mmoe.run.console import Reporter
from mmoe.train.warm_start import EarlierRun
from mmoe.train.warm_start.earlier import Stored


@torch.no_grad()
def keep_linear_models(
    wide: WidePart | None,
    earlier: EarlierRun | None,
    config: RunConfig,
    encoder: FeatureEncoder,
    reporter: Reporter,
) -> None:
    """Gives the tasks of an earlier run the weights that they have there.

    New ids and features weigh nothing for them. Where nothing is frozen, or there is no wide part,
    nothing is done.

    Args:
        wide: Fitted to today's rows; changed in place.
        earlier: The run of the warm start.
        config: Of the new run.
        encoder: Of the new run.
        reporter: Told whose stay.
    """
    if wide is None or earlier is None or not config.training.freeze:
        return
    stored = Stored.of(earlier.model(), "wide")
    old = {name: stored.read(name).to(wide.bias_T.device) for name in stored.names}
    before = [task.name for task in earlier.config.tasks]
    kept = [task.name for task in config.tasks if task.name in before]
    old_columns = {name: f for f, name in enumerate(earlier.encoder.dense_names)}
    first = _first_rows(earlier.encoder)
    for task in kept:
        t, b = [one.name for one in config.tasks].index(task), before.index(task)
        wide.ids_RT[:, t] = 0
        for table, start in _first_rows(encoder).items():
            if table in first:
                rows = earlier.rows()[table]
                there_R = old["ids_RT"][first[table] : first[table] + rows, b]
                wide.ids_RT[start : start + rows, t] = there_R
        for f, name in enumerate(encoder.dense_names):
            place = old_columns.get(name)
            wide.dense_TF[t, f] = 0 if place is None else old["dense_TF"][b, place]
        wide.bias_T[t] = old["bias_T"][b]
        wide.mixed_T[t] = old["mixed_T"][b] if "mixed_T" in old else True
    reporter.say(f"wide part of {', '.join(kept)}: that of {earlier.path}")


def _first_rows(encoder: FeatureEncoder) -> dict[str, int]:
    """Where each table's rows begin, as `WidePart` has them."""
    found, rows = {}, 0
    for table in encoder.tables:
        found[table.name] = rows
        rows += table.num_rows
    return found

"""When the labels of a backtest were collected: its days' files do not say where the log ends."""

from mmoe.config import RunConfig
from mmoe.config.data import TimeConfig
from mmoe.datasets.labels.maturity import found_maturity, moment_text, time_of
from mmoe.datasets.rows.projection import text_cells
from mmoe.datasets.rows.sources import one_path
from mmoe.datasets.stream.open import times_in
from mmoe.datasets.stream.survey import survey


def as_of_log(config: RunConfig, begun: TimeConfig | None = None) -> RunConfig:
    """Returns the config of a walk whose data.time.as_of is the newest time of the whole log.

    A day is tested on the labels that the log has, which may have come long after it.

    Args:
        config: Of the walk.
        begun: `data.time` of a day that is resumed, which stays as it is.

    Raises:
        ValueError: A row has no time, or none is old enough.
    """
    if not config.delayed_tasks or (config.data.time and config.data.time.as_of):
        return config
    time = begun
    if time is None:
        column = time_of(config).column
        assert column is not None, "a config with matures_after has one"
        uses = {column: "data.time (for matures_after)"}
        chunk, cells = config.data.streaming.chunk_rows, text_cells(config)
        source = survey(one_path(config, None), uses, chunk, cells=cells)
        newest = found_maturity(config, times_in(config, [source])).as_of
        time = time_of(config).model_copy(update={"as_of": moment_text(newest)})
    data = config.data.model_copy(update={"time": time})
    return config.model_copy(update={"data": data})

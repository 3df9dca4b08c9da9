"""Rows that are candidates of requests, in a first config: `mmoe init --request`."""

import pyarrow as pa

from mmoe.config import Feature, RequestsConfig, RunConfig, SplitConfig
from mmoe.datasets.infer.config import Reasons
from mmoe.datasets.rows.locations import find_column
from mmoe.datasets.rows.requests import RowRequests, find_requests
from mmoe.datasets.rows.splits import assign_splits

OPTION = "--request"


def with_requests(
    config: RunConfig, reasons: Reasons, table: pa.Table, column: str, origin: str
) -> RunConfig:
    """Returns the config with `data.requests`, and the level of each feature.

    Args:
        config: Inferred without the column.
        reasons: Gets those of levels and of the split.
        table: What it was inferred of.
        column: That says of which request a row is.
        origin: What the user calls the data; starts error messages.

    Raises:
        ValueError: The column never repeats, or nothing is the same inside its requests.
    """
    requests = RequestsConfig(column=column)
    found = find_requests(requests, table, origin)
    if len(found.first_M) == table.num_rows:
        raise ValueError(
            f"{origin}: {OPTION} {column}: never repeats among {table.num_rows:,} rows; name the "
            "column that says which rows were candidates of one request"
        )
    features = [_with_level(feature, found, table, origin) for feature in config.features]
    shared = [feature.name for feature in features if feature.asked_level == "request"]
    if not shared:
        raise ValueError(
            f"{origin}: {OPTION} {column}: no feature is the same for all rows of a request, so "
            "nothing would be computed once; leave it out"
        )
    for name in shared:
        reasons.features[name] = "; ".join(
            filter(None, (reasons.features.get(name), "the same inside each request"))
        )
    left_out = [(name, why) for name, why in reasons.left_out if name != column]
    reasons.left_out[:] = left_out
    split = _split(config, requests, reasons, table, origin)
    data = config.data.model_copy(update={"requests": requests, "split": split})
    return config.model_copy(update={"data": data, "features": features})


def _with_level(feature: Feature, found: RowRequests, table: pa.Table, origin: str) -> Feature:
    """A feature of the request, where all its columns are the same inside each."""
    if "level" not in type(feature).model_fields:
        return feature
    for name in feature.source_columns:
        column = find_column(table, name, origin, f"feature {feature.name!r}")
        if found.differing(column) is not None:
            return feature
    return feature.model_copy(update={"level": "request"})


def _split(
    config: RunConfig, requests: RequestsConfig, reasons: Reasons, table: pa.Table, origin: str
) -> SplitConfig:
    """The same where it keeps requests whole, else one by their hash."""
    split = config.data.split
    try:
        assign_splits(table, split, config.split_seed, origin, requests)
    except ValueError:
        reasons.split = "requests stay whole"
        return SplitConfig(
            by="hash", column=requests.column, validation=split.validation, test=split.test
        )
    return split

"""Makes what takes a network's input apart, of a fitted encoder."""

from collections.abc import Mapping, Sequence

from mmoe.config import FeatureSpec, InputLayerSpec
from mmoe.config.model import BiasConfig
from mmoe.datasets import FeatureEncoder
from mmoe.datasets.features.codec import FeatureColumns
from mmoe.mixture.inputs import RequestColumns
from mmoe.models.input_layers import replaced_names
from mmoe.models.interactions.add import Columns
from mmoe.models.requests.inputs import LookedUp, RequestInputs
from mmoe.models.sequences.inputs import sequence_columns


def build_requests(encoder: FeatureEncoder) -> RequestInputs | None:
    """Makes it; None: no feature is of requests."""
    if not encoder.has_requests:
        return None
    requests = encoder.config.data.requests
    dims = {table.name: table.dim for table in encoder.tables}
    flags = [*encoder.layout.ids, *encoder.layout.lists]
    lookups = [
        LookedUp(spec.name, 0 if spec.pooling == "none" else dims[spec.table], flag)
        for spec, flag in zip([*encoder.categorical, *encoder.lists], flags, strict=True)
    ]
    return RequestInputs(
        request_columns(encoder),
        RequestColumns(_flagged(encoder.layout.dense), len(encoder.dense_names)),
        len(Columns.of(encoder).numbers),
        lookups,
        [(spec.events, spec.targets) for spec in encoder.sequences],
        read=_read(encoder),
        exact=requests is not None and requests.exact,
    )


def check_stages(encoder: FeatureEncoder, stages: Sequence[Sequence[int] | None]) -> None:
    """Refuses features that came to frozen parts, whose bits would not be those of before.

    Args:
        encoder: Of the run.
        stages: The columns that parts of each stage read; None: all.

    Raises:
        ValueError: There are such, requests, and layers that are split by them.
    """
    requests = encoder.config.data.requests
    split = encoder.has_requests and requests is not None and not requests.exact
    if split and any(columns is not None for columns in stages):
        raise ValueError(
            "training.freeze: features that come to frozen gates or experts would change last bits "
            "of what these make of rows of requests; keep the features, or set "
            "data.requests.exact: true in both runs"
        )


def _read(encoder: FeatureEncoder) -> tuple[RequestColumns, list[int], list[int]] | None:
    """Returns the columns of each part that `model.bias` leaves to the network."""
    bias = encoder.config.model.bias
    if bias is None:
        return None
    left = set(Columns.of(encoder, bias).names)
    kept = [[i for i, name in enumerate(names) if name in left] for names in _names(encoder)]
    return request_columns(encoder, bias), kept[0], kept[1]


def input_layers_of_levels(encoder: FeatureEncoder) -> Mapping[str, Sequence[InputLayerSpec]]:
    """Returns what is made of the dense columns of each level; nothing without requests."""
    if not encoder.has_requests:
        return {}
    return {level: encoder.of_level(level).input_layers for level in ("request", "row")}


def request_columns(
    encoder: FeatureEncoder, bias: BiasConfig | None = None, added: int = 0
) -> RequestColumns:
    """Finds which columns of a network's input are of requests.

    Args:
        encoder: Knows the level of every feature.
        bias: Whose columns the network does not read.
        added: How many columns stand behind them, all of rows.
    """
    places = {name: place for place, name in enumerate(Columns.of(encoder, bias).names)}
    shared, own = _names(encoder)
    beside = range(len(places), len(places) + added)
    return RequestColumns(
        [places[name] for name in shared if name in places],
        len(places) + added,
        [*(places[name] for name in own if name in places), *beside],
    )


def _names(encoder: FeatureEncoder) -> tuple[list[str], list[str]]:
    """Names of the columns of both parts, in their order."""
    dims = {table.name: table.dim for table in encoder.tables}
    levels = encoder.of_level("request"), encoder.of_level("row")
    of_request, of_row = (_numbers_and_pooled(level, dims) for level in levels)
    shared = {spec.name for spec in _looked_up(levels[0])}
    columns = iter(sequence_columns(encoder))
    for spec in encoder.sequences:
        once = {*spec.events, *spec.targets} <= shared
        for name, width in (next(columns) for _ in range(1 + spec.unpooled)):
            (of_request if once else of_row).extend(f"{name}[{i}]" for i in range(width))
    return of_request, of_row


def _numbers_and_pooled(level: FeatureColumns, dims: Mapping[str, int]) -> list[str]:
    pooled = [spec for spec in _looked_up(level) if spec.pooling != "none"]
    return replaced_names(level.dense_names, level.input_layers) + [
        f"{spec.name}@{spec.table}[{i}]" for spec in pooled for i in range(dims[spec.table])
    ]


def _looked_up(level: FeatureColumns) -> list[FeatureSpec]:
    return [*level.categorical, *level.lists]


def _flagged(flags: Sequence[bool]) -> list[int]:
    return [place for place, flag in enumerate(flags) if flag]

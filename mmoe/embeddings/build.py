"""Chooses the backend and fills its tables."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from mmoe.config import (
    EmbeddingOptimizerConfig,
    FeatureSpec,
    ParallelConfig,
    ScoringPrecision,
    TableSpec,
)
from mmoe.embeddings.backend import fill_tables
from mmoe.embeddings.managed import ManagedEmbeddings
from mmoe.embeddings.quantized import RowPrecision, ScoringEmbeddings
from mmoe.parallel import world_size


def build_embeddings(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    *,
    optimizer: EmbeddingOptimizerConfig,
    backend: Literal["auto", "torchrec", "plain"] = "auto",
    seed: int = 0,
    device: torch.device | None = None,
    parallel: ParallelConfig | None = None,
) -> nn.Module:
    """Makes embedding tables for `features`, trained as `optimizer` says, each at its own rate.

    `torchrec` runs on TorchRec's `DistributedModelParallel` and FBGEMM's fused kernels and needs an
    initialised process group (`mmoe.parallel.ensure_process_group`); `plain` is `nn.EmbeddingBag`;
    `auto` takes torchrec where it is installed, has kernels for the device, and has the optimizer:
    FBGEMM has no Adam for the CPU, so Adam runs on `plain`, and its fused kernels have no decay of
    rows, so with `weight_decay` one process takes `plain`, and several keep copies. Tables have the
    same names and, for one `seed`, the same initial values either way: uniform in ±1/√rows (Naumov
    et al. 2019, DLRM), times 2⁻²⁰ for hashed ids, some of whose rows training may never touch, and
    zeros for rows 0 and 1, which stand for missing and unseen ids. Tables with managed ids are
    looked up by raw ids, and need TorchRec whatever the backend.

    Args:
        tables: Names, rows and widths; every feature's table must be among them.
        features: In the order of the output.
        optimizer: Its kind and settings, and the rate of tables that have none of their own.
        backend: See above.
        seed: Of the initial values, which are drawn on the CPU: the same on every device.
        device: Of the tables; default: the CPU.
        parallel: Which rank holds what, where there are several.

    Returns:
        An `nn.Module` that is an `EmbeddingBackend`.

    Raises:
        ValueError: `backend` is torchrec, or a table has managed ids, and it is not installed; it
            lacks the optimizer or kernels for the device; or a feature's table is unknown.
    """
    _check_tables(tables, features)
    if backend == "auto":
        unusable = _plain_alone(optimizer) or torchrec_problem(device)
        backend = "plain" if unusable else "torchrec"
    if not features:
        backend = "plain"  # TorchRec refuses a collection without tables
    if backend == "torchrec":
        _check_torchrec(optimizer, device)
        with quiet_import():  # seconds to import: only when used
            from mmoe.embeddings.sharded.backend import ShardedEmbeddings

        quiet_tracing()
        module: nn.Module = ShardedEmbeddings(tables, features, optimizer, parallel, device)
    else:
        _check_plain(optimizer, features)
        from mmoe.embeddings.plain import PlainEmbeddings

        module = PlainEmbeddings(tables, features, optimizer, device)
    fill_tables(module.table_shards(), seed, {table.name: table.initial_scale for table in tables})
    return _with_managed_ids(module, tables, features, seed)


def build_scoring_embeddings(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    precision: ScoringPrecision | Mapping[str, RowPrecision],
    device: torch.device | None = None,
    *,
    empty: bool = False,
) -> nn.Module:
    """Makes tables to evaluate and score with, which need no process group.

    They hold nothing yet. Tables with managed ids are looked up by raw ids.

    Args:
        tables: Names, rows and widths; every feature's table must be among them.
        features: In the order of the output.
        precision: Of the stored rows of all tables; or that of each table, as it was trained.
        device: Of tables as they were trained; default: the CPU.
        empty: No memory is taken for them: see `ScoringEmbeddings.use`.

    Raises:
        ValueError: There is no such precision, a feature's table is unknown, or one has managed
            ids, and TorchRec is not installed.
    """
    _check_tables(tables, features)
    module = ScoringEmbeddings(tables, features, precision, device, empty=empty)
    return _with_managed_ids(module, tables, features, 0)


def _check_tables(tables: Sequence[TableSpec], features: Sequence[FeatureSpec]) -> None:
    known = {table.name for table in tables}
    for feature in features:
        if feature.table not in known:
            raise ValueError(
                f"feature {feature.name!r} looks up table {feature.table!r}; "
                f"tables: {sorted(known)}"
            )


def _check_torchrec(optimizer: EmbeddingOptimizerConfig, device: torch.device | None) -> None:
    problem = torchrec_problem(device)
    if problem:
        raise ValueError(
            f"training.embedding_backend is torchrec, but {problem}; "
            f"install it (see the README) or set embedding_backend to plain"
        )
    if _plain_alone(optimizer):
        adam = optimizer.kind == "adam"
        lacks = "kind adam" if adam else "weight_decay on one process"
        raise ValueError(
            "training.embedding_backend is torchrec, whose fused kernels have no "
            f"embedding_optimizer.{lacks}; set embedding_backend: auto, or "
            f"{'another kind' if adam else 'weight_decay: 0'}"
        )


def _plain_alone(optimizer: EmbeddingOptimizerConfig) -> bool:
    """Returns whether only the plain backend has such an optimizer here."""
    return optimizer.kind == "adam" or (optimizer.needs_copies and world_size() == 1)


def _check_plain(optimizer: EmbeddingOptimizerConfig, features: Sequence[FeatureSpec]) -> None:
    """Tables of one process are trained by its own batches alone."""
    ranks = world_size()
    if ranks == 1 or not features:
        return
    why = torchrec_problem() or (
        "FBGEMM has no Adam for the CPU" if optimizer.kind == "adam" else "the config asks for it"
    )
    raise ValueError(
        f"{ranks} ranks need embedding tables on TorchRec, but these would be on the plain backend "
        f"({why}); install torchrec and fbgemm_gpu (see the README), say "
        "training.embedding_backend: torchrec and an embedding_optimizer other than adam, or start "
        "one process"
    )


def torchrec_problem(device: torch.device | None = None) -> str | None:
    """Says why the torchrec backend cannot be used for tables on `device`, or None."""
    for package in ("torchrec", "fbgemm_gpu"):
        if find_spec(package) is None:
            return f"{package} is not installed"
    if device is not None and device.type == "cuda" and not _fbgemm_has_cuda():
        return "the installed fbgemm_gpu is a build for the CPU (fbgemm-gpu-cpu), without CUDA"
    return None


def _fbgemm_has_cuda() -> bool:
    with quiet_import():  # seconds: only where there is a GPU to ask for
        import fbgemm_gpu

    return getattr(fbgemm_gpu, "__variant__", "cpu") not in ("cpu", "docs")


def managed_ids(embeddings: object) -> ManagedEmbeddings | None:
    """Returns the embeddings where one of their tables is managed, else None."""
    return embeddings if isinstance(embeddings, ManagedEmbeddings) else None


def _with_managed_ids(
    module: nn.Module, tables: Sequence[TableSpec], features: Sequence[FeatureSpec], seed: int
) -> nn.Module:
    """The same module where no table asks for it."""
    managed = {table.name: table.managed for table in tables if table.managed is not None}
    if not managed:
        return module
    problem = torchrec_problem()
    if problem:
        raise ValueError(
            f"table {next(iter(managed))!r} has encoding managed, which needs TorchRec, but "
            f"{problem}; install it (see the README) or use encoding hash"
        )
    with quiet_import():
        from mmoe.embeddings.admission import IdAdmission

    admissions = {name: IdAdmission(name, rules) for name, rules in managed.items()}
    frozen = {table.name for table in tables if table.frozen}
    return ManagedEmbeddings(module, features, admissions, seed, frozen)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silences what TorchRec and FBGEMM deprecate of themselves while they are imported.

    The caller's own filters hold again afterwards.
    """
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def quiet_tracing() -> None:
    """Silences what TorchRec's first forward makes torch say once a process.

    It is of a check inside TorchRec. The logger is as it was afterwards.
    """
    from torch.fx import _symbolic_trace as tracing  # where TorchRec finds it, too

    logger = logging.getLogger(tracing.__name__)
    logger.addFilter(_nothing)
    try:
        tracing.is_fx_tracing()
    finally:
        logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False

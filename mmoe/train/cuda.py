"""Training on a GPU: batches copied ahead, and the network's passes as CUDA graphs.

At a few thousand rows a host cannot launch the passes' kernels as fast as the GPU runs them.
"""

from collections.abc import Callable, Generator, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.datasets import Batch
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.embeddings import Lookups
from mmoe.models import NetworkOutput, Ranker
from mmoe.parallel import world_size
from mmoe.train.step import NetworkPass

_COPIED_AHEAD = 1  # batches: beside the one in use, one lies ready on the GPU


def on_device(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    """Yields the batches on `device`, each copied while the one before is trained on.

    To a GPU they are copied by a thread of their own, through pinned memory and on a stream of
    their own, so that neither the host nor the GPU waits for a copy while it has work. Closing the
    result closes `batches`.

    Example:
        >>> batches = (batch for batch in ())
        >>> on_device(batches, torch.device("cpu")) is batches
        True
    """
    return _copied_ahead(batches, device) if device.type == "cuda" else batches


def _copied_ahead(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    here = torch.cuda.current_stream(device)
    for batch, copied in prefetch(_copies(batches, device), _COPIED_AHEAD):
        here.wait_event(copied)
        # Made on the other stream: not to be given to its next batch before this one has read it
        batch.record_stream(here)
        yield batch


def _copies(
    batches: Generator[Batch], device: torch.device
) -> Iterator[tuple[Batch, torch.cuda.Event]]:
    """Runs in the background thread."""
    aside = torch.cuda.Stream(device)
    try:
        for batch in batches:
            with torch.cuda.stream(aside):
                moved = batch.to(device)
                copied = torch.cuda.Event()
                copied.record(aside)
            yield moved, copied
    finally:
        batches.close()


class CapturedPass:
    """The forward pass of batches of one height, and its backward pass, as a CUDA graph each.

    A graph reads and writes the addresses that it was captured with: what a batch has is copied
    there, and gradients lie where the batch before had its own. Lookups, losses and optimizers stay
    outside; batches of other heights take the ranker's own road. Numbers are the same to the bit,
    but for random ones (dropout, noise of gates), of which a graph draws others.

    Args:
        ranker: In training mode, on a GPU; its weights stay where they are.
        config: Of the run.

    Raises:
        RuntimeError: Something in the network cannot be captured, for example because it reads a
            value on the host.
    """

    def __init__(self, ranker: Ranker, config: RunConfig) -> None:
        self.ranker, self.height = ranker, config.training.batch_size
        self.tensors = _TensorsOnly(ranker, bf16=config.training.precision == "bf16")
        device = ranker.device
        sample = [torch.zeros(self.height, ranker.num_dense, device=device)]
        if width := ranker.tables.output_dim:
            x_BD = torch.zeros(self.height, width, device=device)
            sample.append(x_BD.requires_grad_(ranker.tables_learn))
        held = {name: buffer.clone() for name, buffer in ranker.network.named_buffers()}
        # Gradients of captured weights are added up on another stream than they were captured on
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        # Warming up draws numbers and moves what networks count
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            graphs = torch.cuda.make_graphed_callables(
                self.tensors, tuple(sample), allow_unused_input=True
            )
        self.graphs = cast(Callable[..., tuple[Tensor, ...]], graphs)
        for name, buffer in ranker.network.named_buffers():
            buffer.copy_(held[name])

    def __call__(self, batch: Batch, lookups: Lookups | None) -> NetworkOutput:
        """Computes what `Ranker.forward` does."""
        if len(batch) != self.height:
            return self.ranker(batch, lookups)
        read = [batch.dense_BF] if lookups is None else [batch.dense_BF, lookups.x_BD]
        logits_BT, *others = self.graphs(*read)
        names, counts = self.tensors.losses, len(self.tensors.losses)
        dropped = others[counts] if len(others) > counts else None
        return NetworkOutput(logits_BT, dict(zip(names, others, strict=False)), [], dropped)


class _TensorsOnly(nn.Module):
    """Takes tensors and returns tensors: what is captured knows nothing else."""

    def __init__(self, ranker: Ranker, *, bf16: bool) -> None:
        super().__init__()
        self.bf16 = bf16
        self.network = ranker.network  # whose parameters have gradients; tables do not take part
        self.ranker = (ranker,)
        self.losses: list[str] = []

    def forward(self, dense_BF: Tensor, x_BD: Tensor | None = None) -> tuple[Tensor, ...]:
        nothing = torch.empty(0, dtype=torch.int64, device=dense_BF.device)
        batch = Batch(
            dense_BF=dense_BF, values=nothing, lengths_CB=nothing.int(), num_rows=len(dense_BF)
        )
        # Not around the capture: backward passes run without autocast
        with torch.autocast(dense_BF.device.type, torch.bfloat16, enabled=self.bf16):
            output = self.ranker[0](batch, None if x_BD is None else Lookups(x_BD))
        self.losses = list(output.auxiliary_losses)
        dropped = [] if output.dropped is None else [output.dropped]
        return output.logits_BT, *output.auxiliary_losses.values(), *dropped


def network_pass(
    ranker: Ranker, config: RunConfig, rows: int, say: Callable[[str], None]
) -> NetworkPass:
    """Captures the network's passes where they are of fixed shape, and returns what runs them.

    Args:
        ranker: In training mode.
        config: Of the run.
        rows: That are trained on.
        say: Told what cannot be captured although nothing of the config speaks against it.

    Returns:
        The ranker itself where nothing is captured: on a CPU, over ranks, without
        `training.cuda_graphs`, of batches whose gradients are added up, and where a step needs more
        than numbers and embeddings of one width (sequences, requests, domains, a wide part, towers
        that read others or impute).
    """
    if rows < config.training.batch_size or not _has_one_shape(ranker, config):
        return ranker
    try:
        return CapturedPass(ranker, config)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        say(f"the network's passes are not captured as CUDA graphs: {first}")
        return ranker


def _has_one_shape(ranker: Ranker, config: RunConfig) -> bool:
    network, training = ranker.network, config.training
    if not training.cuda_graphs or ranker.device.type != "cuda" or training.accumulate_batches > 1:
        return False
    parts = network.sequences, network.requests, network.domains, network.transfer
    plain = all(part is None for part in (*parts, network.imputation, ranker.wide))
    return plain and world_size() == 1

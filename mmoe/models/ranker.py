"""`Ranker`: embeddings and a network, what is trained, saved and scored."""

from typing import cast

import torch
from torch import Tensor, nn

from mmoe.embeddings import EmbeddingBackend
from mmoe.models.inputs import join_inputs
from mmoe.models.network import NetworkOutput
from mmoe.models.wide import WidePart


class Ranker(nn.Module):
    """Embeddings and a network: `logits = network([dense, embeddings(ids)]) + wide(dense, ids)`.

    Where the network has `inputs`, dense features go through them first.

    Under autocast only the network runs in the narrow type: lookups stay as they are, and logits
    come back in fp32.

    Args:
        embeddings: `embeddings(values, lengths)` → `x_BD`, with the attribute `output_dim` = D;
            None, or a D of 0, where no feature has ids. Weights of ids are a third argument, given
            only where there are any.
        network: `network(x_BD, return_gates)` → `NetworkOutput`.
        num_dense: Number of dense features.
        wide: A linear model whose logits are added; None: there is none.

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models import Ranker, build_network
        >>> ranker = Ranker(None, build_network(ModelConfig(), 3, ["click"]), num_dense=3)
        >>> ids = torch.empty(0, dtype=torch.int64)
        >>> ranker(torch.zeros(4, 3), ids, ids.int()).logits_BT.shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        embeddings: nn.Module | None,
        network: nn.Module,
        num_dense: int,
        wide: WidePart | None = None,
    ) -> None:
        super().__init__()
        if num_dense < 0:
            raise ValueError(f"num_dense: expected 0 or more, got {num_dense}")
        self.embeddings = embeddings
        self.network = network
        self.num_dense = num_dense
        self.wide = wide

    @property
    def tables(self) -> EmbeddingBackend:
        """Embeddings, by what they offer beside lookups: weights, optimizer, learning rate."""
        assert self.embeddings is not None, "this ranker was built without embeddings"
        return cast(EmbeddingBackend, self.embeddings)

    @property
    def device(self) -> torch.device:
        """Device where it computes; batches have to be there."""
        return next(self.network.parameters()).device

    def forward(
        self,
        dense_BF: Tensor,
        values: Tensor,
        lengths: Tensor,
        return_gates: bool = False,
        *,
        id_weights: Tensor | None = None,
    ) -> NetworkOutput:
        """Computes every task's logits.

        Args:
            dense_BF: Dense features, float32.
            values: Ids of all features, feature-major, int64.
            lengths: How many ids each feature has in each row, feature-major, int32.
            return_gates: Also record what the gates did.
            id_weights: Weights of the ids, float32, where a feature has them.

        Returns:
            Logits, auxiliary losses and, if asked for, gate records.

        Raises:
            ValueError: Another number of dense features than expected.
        """
        output = self.mix(dense_BF, self.look_up(values, lengths, id_weights), return_gates)
        return self.add_wide(output, dense_BF, values, lengths, id_weights)

    def look_up(
        self, values: Tensor, lengths: Tensor, id_weights: Tensor | None = None
    ) -> Tensor | None:
        """Looks up the embeddings `x_BD`, fp32; None where no feature has ids."""
        if self.embeddings is None or self.embeddings.output_dim == 0:
            return None
        with torch.autocast(values.device.type, enabled=False):
            weights = [] if id_weights is None else [id_weights]
            return self.embeddings(values, lengths, *weights)

    def mix(
        self, dense_BF: Tensor, x_BD: Tensor | None, return_gates: bool = False
    ) -> NetworkOutput:
        """Computes what the network makes of numbers and looked-up embeddings."""
        if dense_BF.dim() != 2 or dense_BF.shape[1] != self.num_dense:
            raise ValueError(
                f"dense_BF: expected shape [rows, {self.num_dense}], got {list(dense_BF.shape)}"
            )
        inputs = getattr(self.network, "inputs", None)
        if inputs is not None:
            dense_BF = inputs(dense_BF)  # before they are joined, and rounded under autocast
        x_BX = dense_BF if x_BD is None else join_inputs(dense_BF, x_BD)
        output: NetworkOutput = self.network(x_BX, return_gates)
        interaction = getattr(self.network, "interaction", None)
        if x_BD is None or interaction is None:
            return output
        return output._replace(logits_BT=output.logits_BT + interaction(x_BD))

    def add_wide(
        self,
        output: NetworkOutput,
        dense_BF: Tensor,
        values: Tensor,
        lengths: Tensor,
        id_weights: Tensor | None = None,
    ) -> NetworkOutput:
        """Adds the wide part's logits, where there is one, to what `mix` returned; in fp32."""
        if self.wide is None:
            return output
        wide_BT = self.wide(dense_BF, values, lengths, id_weights)
        mixed_BT = torch.where(self.wide.mixed_T, output.logits_BT, 0.0)
        return output._replace(logits_BT=mixed_BT + wide_BT)

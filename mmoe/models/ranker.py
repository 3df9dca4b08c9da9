"""`Ranker`: embeddings and a network, what is trained, saved and scored."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmoe.embeddings import EmbeddingBackend, Lookups
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.models.bias_tower import BiasTower
from mmoe.models.inputs import join_inputs
from mmoe.models.network import MixtureNetwork, NetworkOutput
from mmoe.models.requests.batch import RequestBatch
from mmoe.models.requests.inputs import RequestInputs
from mmoe.models.wide import WidePart
from mmoe.tasks import TaskTowers

Inputs = tuple[Tensor, Tensor | None]  # numbers; pooled embeddings, then sequences


class Ranker(nn.Module):
    """Embeddings and a network: `logits = network([dense, embeddings(ids)]) + wide(dense, ids)`.

    Where the network has `inputs`, dense features go through them first. Where it has a
    `bias_tower`, that reads the features of the display instead of it, and its logits are added: in
    training as they come, in evaluation as `model.bias.scoring` says.

    Under autocast only the network runs in the narrow type: lookups stay as they are, and logits
    come back in fp32.

    Args:
        embeddings: `embeddings(values, lengths)` → `Lookups`, of pooled width `output_dim`;
            None, or a width of 0, where no feature has ids. Weights of ids are a third argument,
            given only where there are any.
        network: `network(x_BD, return_gates)` → `NetworkOutput`; of rows with domains
            `domains_B=` as well.
        num_dense: Number of dense features.
        wide: A linear model whose logits are added; None: there is none.
        tables_learn: False where no table is trained: what is looked up then needs no gradient.

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
        *,
        tables_learn: bool = True,
    ) -> None:
        super().__init__()
        if num_dense < 0:
            raise ValueError(f"num_dense: expected 0 or more, got {num_dense}")
        self.embeddings = embeddings
        self.network = network
        self.num_dense = num_dense
        self.wide = wide
        self.tables_learn = tables_learn

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
        with_bias: bool = False,
        requests: RequestBatch | None = None,
        domains_B: Tensor | None = None,
    ) -> NetworkOutput:
        """Computes every task's logits.

        Args:
            dense_BF: Dense features, float32.
            values: Ids of all features, feature-major, int64.
            lengths: How many ids each feature has in each row, feature-major, int32.
            return_gates: Also record what the gates did.
            id_weights: Weights of the ids, float32, where a feature has them.
            with_bias: In evaluation, also compute what the logits are with the display as logged.
            requests: Of the rows, whose dense columns and ids are then their own alone.
            domains_B: Number of each row's domain, int32, where the network has domains.

        Returns:
            Logits, auxiliary losses and, if asked for, gate records.

        Raises:
            ValueError: Another number of dense features than expected.
        """
        bias = self._bias_tower
        fixed = bias is not None and bias.scores and not self.training
        if requests is not None and fixed:  # of requests or of rows
            dense_BF, values, lengths, id_weights = self._requests.flat(
                dense_BF, requests, values, lengths, id_weights
            )
            requests = None
        scored = bias.fix(dense_BF, values) if bias is not None and fixed else (dense_BF, values)
        lookups = self.look_up(scored[1], lengths, id_weights)
        output, ins = self._mix(scored[0], lookups, return_gates, requests, domains_B)
        logits_BT = output.logits_BT
        if bias is not None and (fixed or self.training):
            output = output.plus(self._spread(bias(*ins())))
        if bias is not None and with_bias:
            logged = ins()
            if fixed:
                logged = self._inputs(dense_BF, self.look_up(values, lengths, id_weights))
            output = output._replace(with_bias_BT=logits_BT + self._spread(bias(*logged)))
        return self.add_wide(output, dense_BF, values, lengths, id_weights, requests)

    @property
    def _bias_tower(self) -> BiasTower | None:
        return getattr(self.network, "bias_tower", None)

    def look_up(
        self, values: Tensor, lengths: Tensor, id_weights: Tensor | None = None
    ) -> Lookups | None:
        """Looks up the embeddings, fp32; None where no feature has ids."""
        if self.embeddings is None or (self.tables.output_dim == 0 and not self._has_sequences):
            return None
        learns = self.tables_learn and torch.is_grad_enabled()
        with torch.autocast(values.device.type, enabled=False), torch.set_grad_enabled(learns):
            weights = [] if id_weights is None else [id_weights]
            return self.tables(values, lengths, *weights)

    def mix(
        self,
        dense_BF: Tensor,
        lookups: Lookups | None,
        return_gates: bool = False,
        requests: RequestBatch | None = None,
        domains_B: Tensor | None = None,
    ) -> NetworkOutput:
        """Computes what the network makes of numbers and looked-up embeddings, as they are."""
        output, ins = self._mix(dense_BF, lookups, return_gates, requests, domains_B)
        bias = self._bias_tower
        if bias is None:
            return output
        return output.plus(self._spread(bias(*ins())))

    def _mix(
        self,
        dense_BF: Tensor,
        lookups: Lookups | None,
        return_gates: bool,
        requests: RequestBatch | None,
        domains_B: Tensor | None,
    ) -> tuple[NetworkOutput, Callable[[], Inputs]]:
        """The same without the logits of `model.bias`, and what makes its inputs."""
        self._check_width(dense_BF, requests)
        network: Any = self.network
        if requests is None:
            found = self._inputs(dense_BF, lookups)
            ins, read = cache(lambda: found), None
        else:
            height, in_tiles = self._request_height(requests, len(dense_BF))
            made, owners = self._requests, requests.owners
            parts = made.parts(
                dense_BF, requests, lookups, network.inputs, network.sequences, height
            )
            ins = cache(lambda: made.whole(parts, owners))
            read = made.rows(parts, owners, in_tiles=in_tiles) if self._takes_requests else None
        if read is None:
            dense_BX, x_BD = self._without_bias(ins())
            read = dense_BX if x_BD is None else join_inputs(dense_BX, x_BD)
        # Only where there are any: a network of somebody's may not know of them
        known = {} if domains_B is None else {"domains_B": domains_B}
        output: NetworkOutput = network(read, return_gates, **known)
        interaction = getattr(network, "interaction", None)
        if interaction is not None and (x_BD := self._without_bias(ins())[1]) is not None:
            output = output.plus(self._spread(interaction(x_BD)))
        return output, ins

    def _without_bias(self, ins: Inputs) -> Inputs:
        """What multiplies embeddings leaves the display out too."""
        return ins if self._bias_tower is None else self._bias_tower.others(*ins)

    def _inputs(self, dense_BF: Tensor, lookups: Lookups | None) -> Inputs:
        """Dense features, through the network's `inputs` where it has any, and all other columns.

        These are pooled embeddings, then sequences.
        """
        inputs = getattr(self.network, "inputs", None)
        if inputs is not None:
            dense_BF = inputs(dense_BF)  # before they are joined, and rounded under autocast
        return dense_BF, None if lookups is None else self._read(lookups)

    def _check_width(self, dense_BF: Tensor, requests: RequestBatch | None) -> None:
        expected = self.num_dense - (0 if requests is None else requests.dense_QF.shape[1])
        if dense_BF.dim() != 2 or dense_BF.shape[1] != expected:
            raise ValueError(
                f"dense_BF: expected shape [rows, {expected}], got {list(dense_BF.shape)}"
            )

    def _request_height(self, requests: RequestBatch, rows: int) -> tuple[int, bool]:
        """How many rows requests get, and whether their products are those of tiles.

        Elsewhere than on the CPU a product of another height may round otherwise: what is scored
        has as many places for requests as rows, and products of a fixed height.
        """
        any_height = HAS_KERNELS and self.device.type == "cpu"
        if any_height or torch.is_grad_enabled():
            return requests.owners.count, False
        return max(rows, requests.owners.count), True

    @property
    def _requests(self) -> RequestInputs:
        requests = getattr(self.network, "requests", None)
        assert isinstance(requests, RequestInputs), "the encoder of this network has requests"
        return requests

    @property
    def _takes_requests(self) -> bool:
        network = self.network
        return isinstance(network, MixtureNetwork) and network.takes_requests

    def _read(self, lookups: Lookups) -> Tensor:
        """All columns of x but the dense ones: pooled embeddings, then sequences."""
        sequences = getattr(self.network, "sequences", None)
        return lookups.x_BD if sequences is None else sequences(lookups)

    @property
    def _has_sequences(self) -> bool:
        return getattr(self.network, "sequences", None) is not None

    def _spread(self, added_BR: Tensor) -> Tensor:
        """Puts what is added to the logits of rows where the towers have them."""
        towers = getattr(self.network, "towers", None)
        return towers.spread(added_BR) if isinstance(towers, TaskTowers) else added_BR

    def add_wide(
        self,
        output: NetworkOutput,
        dense_BF: Tensor,
        values: Tensor,
        lengths: Tensor,
        id_weights: Tensor | None = None,
        requests: RequestBatch | None = None,
    ) -> NetworkOutput:
        """Adds the wide part's logits, where there is one, to what `mix` returned; in fp32."""
        if self.wide is None:
            return output
        if requests is not None:
            dense_BF, values, lengths, id_weights = self._requests.flat(
                dense_BF, requests, values, lengths, id_weights
            )
        wide_BT = self.wide(dense_BF, values, lengths, id_weights)
        mixed_T, columns = self.wide.mixed_T, self._first_columns(wide_BT.device)

        def added(logits_BL: Tensor) -> Tensor:
            if columns is None:
                return torch.where(mixed_T, logits_BL, 0.0) + wide_BT
            mixed_BT = torch.where(mixed_T, logits_BL[:, columns], 0.0)
            return logits_BL.index_copy(1, columns, mixed_BT + wide_BT)

        with_bias_BT, variants = output.with_bias_BT, output.variants_VBT
        return output._replace(
            logits_BT=added(output.logits_BT),
            with_bias_BT=None if with_bias_BT is None else added(with_bias_BT),
            variants_VBT=None if variants is None else torch.stack([*map(added, variants)]),
        )

    def _first_columns(self, device: torch.device) -> Tensor | None:
        """Of the logits, each task's first one; None: each task has one only."""
        towers = getattr(self.network, "towers", None)
        if not isinstance(towers, TaskTowers) or towers.columns.is_plain:
            return None
        return torch.tensor(towers.columns.first).to(device, non_blocking=True)

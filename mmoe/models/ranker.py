"""`Ranker`: embeddings and a network, what is trained, saved and scored."""

from typing import cast

import torch
from torch import Tensor, nn

from mmoe.datasets import Batch
from mmoe.embeddings import EmbeddingBackend, Lookups
from mmoe.models.inputs import LogitTerm, NetworkInputs, PlainRows, Rows
from mmoe.models.network import LevelMixer, MixtureNetwork, NetworkOutput
from mmoe.models.wide import WidePart


class Ranker(nn.Module):
    """Embeddings and a network: `logits = network([dense, embeddings(ids)]) + Σ terms`.

    Where the network has `inputs`, dense features go through them first. What is added to the
    towers' logits is one list of terms: a factorization machine of embeddings, a tower for the
    display (`model.bias`), a linear model (`model.wide`). The display is read by its tower alone,
    whose logits count in training as they come, in evaluation as `model.bias.scoring` says.

    Under autocast only the network runs in the narrow type: lookups stay as they are, and logits
    come back in fp32.

    Args:
        embeddings: `embeddings(values, lengths)` → `Lookups`, of pooled width `output_dim`;
            None, or a width of 0, where no feature has ids. Weights of ids are a third argument,
            given only where there are any.
        network: Levels of mixtures, and towers.
        num_dense: Number of dense features.
        wide: A linear model whose logits are added; None: there is none.
        tables_learn: False where no table is trained: what is looked up then needs no gradient.

    Raises:
        ValueError: A negative `num_dense`.

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.datasets.rows.batch import Batch
        >>> from mmoe.models import Ranker, build_network
        >>> ranker = Ranker(None, build_network(ModelConfig(), 3, ["click"]), num_dense=3)
        >>> ids = torch.empty(0, dtype=torch.int64)
        >>> batch = Batch(dense_BF=torch.zeros(4, 3), values=ids, lengths_CB=ids.int(), num_rows=4)
        >>> ranker(batch).logits_BT.shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        embeddings: nn.Module | None,
        network: MixtureNetwork,
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
        batch: Batch,
        lookups: Lookups | None = None,
        *,
        return_gates: bool = False,
        with_bias: bool = False,
        mixer: LevelMixer | None = None,
        mixture: bool = True,
    ) -> NetworkOutput:
        """Computes every task's logits; training, prediction and explanation go through it.

        Args:
            batch: Rows, labelled or not.
            lookups: What the batch's ids were looked up to be; None: they are looked up here.
            return_gates: Also record what the gates did.
            with_bias: In evaluation, also compute what the logits are with the display as logged.
            mixer: Runs each level in the network's place; None: levels run as they are.
            mixture: False: the network `is_silent`, so that levels need not run. Logits are the
                same; there are no gate records.

        Returns:
            Logits, auxiliary losses and, if asked for, gate records.

        Raises:
            ValueError: Another number of dense features than expected.
        """
        if not mixture and self._needs_no_lookups(batch):
            self._check_width(batch)
            nothing = NetworkInputs(batch.dense_BF, None)
            rows = PlainRows(batch, nothing, nothing)
            return self._with_terms(self.network.silent_output(batch.dense_BF), rows, display=False)
        bias = self.network.bias_tower
        fixed = bias is not None and bias.scores and not self.training
        if bias is not None and fixed:  # what is scored has one display for all rows
            rows = self._read(bias.fix(self._without_requests(batch)), None, mixer)
        else:
            rows = self._read(batch, lookups, mixer)
        if mixture:
            mixed = self.network(rows.read, return_gates, domains_B=batch.domains_B, mixer=mixer)
        else:
            mixed = self.network.silent_output(batch.dense_BF)
        output = self._with_terms(mixed, rows, display=fixed or self.training)
        if bias is None or not with_bias:
            return output
        logged = self._read(batch, lookups, mixer) if fixed else rows
        with_bias_BT = self._with_terms(mixed, logged, display=True).logits_BT
        return output._replace(with_bias_BT=with_bias_BT)

    def _needs_no_lookups(self, batch: Batch) -> bool:
        """Whether nothing beside the levels reads embeddings."""
        network = self.network
        return (
            network.interaction is None and network.bias_tower is None and batch.requests_B is None
        )

    def look_up(self, batch: Batch) -> Lookups | None:
        """Looks up the embeddings of a batch, fp32; None where no feature has ids."""
        return self.look_up_ids(batch.values, batch.lengths_CB, batch.id_weights)

    def look_up_ids(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> Lookups | None:
        """Looks up ids, as `Batch` has them.

        Args:
            values: Rows of tables, or raw ids of managed ones, int64 [V].
            lengths_CB: Ids of each feature in each row.
            id_weights: float32 [V]; None: no feature has weights.

        Returns:
            Lookups in fp32: None where no feature has ids.
        """
        has_sequences = self.network.sequences is not None
        if self.embeddings is None or (self.tables.output_dim == 0 and not has_sequences):
            return None
        learns = self.tables_learn and torch.is_grad_enabled()
        with torch.autocast(values.device.type, enabled=False), torch.set_grad_enabled(learns):
            weights = [] if id_weights is None else [id_weights]
            return self.tables(values, lengths_CB, *weights)

    def _read(self, batch: Batch, lookups: Lookups | None, mixer: LevelMixer | None) -> Rows:
        """Looks a batch up, where that has not been done, and puts its inputs side by side."""
        self._check_width(batch)
        network, bias = self.network, self.network.bias_tower
        found = self.look_up(batch) if lookups is None else lookups
        if batch.requests_B is not None:
            in_parts = network.takes_requests and mixer is None
            return network.of_requests.read(
                batch, found, network.inputs, network.sequences, bias, in_parts=in_parts
            )
        # Numbers before they are joined, and rounded under autocast
        dense_BF = batch.dense_BF if network.inputs is None else network.inputs(batch.dense_BF)
        x_BE = None
        if found is not None:
            x_BE = found.x_BD if network.sequences is None else network.sequences(found)
        columns = NetworkInputs(dense_BF, x_BE)
        return PlainRows(batch, columns, columns if bias is None else bias.others(columns))

    def _with_terms(self, output: NetworkOutput, rows: Rows, *, display: bool) -> NetworkOutput:
        """Adds the logits of all terms, that of the display where it counts; in fp32."""
        network, towers = self.network, self.network.towers
        terms: list[LogitTerm | None] = [network.interaction]
        terms += [network.bias_tower if display else None, self.wide]
        for term in terms:
            if term is not None and (added := term.added(rows)) is not None:
                mixed_T, alone = added.mixed_T, added.one_a_task
                added_BT = towers.spread(added.logits_BR, one_a_task=alone)
                if term is self.wide:
                    output = output._replace(wide_BT=added_BT)
                output = output.plus(
                    added_BT,
                    None if mixed_T is None else towers.spread(mixed_T, one_a_task=alone, beside=1),
                )
        return output

    def _without_requests(self, batch: Batch) -> Batch:
        return batch if batch.requests_B is None else self.network.of_requests.flat(batch)

    def _check_width(self, batch: Batch) -> None:
        shared, dense_BF = batch.request_dense_QF, batch.dense_BF
        expected = self.num_dense - (0 if shared is None else shared.shape[1])
        if dense_BF.dim() != 2 or dense_BF.shape[1] != expected:
            raise ValueError(
                f"dense_BF: expected shape [rows, {expected}], got {list(dense_BF.shape)}"
            )

"""`RequestExperts`: experts of the request before experts of the row."""

from typing import ClassVar

from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part
from mmoe.mixture.experts.mixed import of_one_type
from mmoe.mixture.experts.staged import StagedExperts
from mmoe.mixture.gates.contract import GateOutput, without_first
from mmoe.mixture.pytrees import mix_dense
from mmoe.mixture.requests.columns import RequestColumns
from mmoe.mixture.requests.rows import RequestRows, knows_requests, read_by_experts
from mmoe.mixture.traits import SharedWork


class RequestExperts(StagedExperts):
    """Experts that read the request's columns alone, then experts that read all.

    Of rows of requests the first ones run once a request, and each row mixes what its request has.

    Args:
        of_request: Pool of those that read the request's columns.
        of_row: Pool of the others.
        columns: Which columns are the request's.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts
        >>> from mmoe.mixture.requests.columns import RequestColumns
        >>> from mmoe.mixture.requests.experts import RequestExperts
        >>> columns = RequestColumns([0, 1, 2], 8)
        >>> pool = RequestExperts(MLPExperts(2, 3, [16]), MLPExperts(4, 8, [16]), columns)
        >>> len(pool), pool.dense([torch.zeros(5, 8)])[0].shape
        (6, torch.Size([5, 16]))
    """

    reads_requests: ClassVar = True

    def __init__(self, of_request: nn.Module, of_row: nn.Module, columns: RequestColumns) -> None:
        names = ["experts of the request", "experts of the row"]
        super().__init__([of_request, of_row], [columns.of_request, None], names)
        self.columns = columns

    def named_parts(self, names: Names) -> list[Part]:
        """Says which experts and inputs each of the two pools has."""
        parts = enumerate(super().named_parts(names))
        return [part._replace(path=("pools", str(i))) for i, part in parts]

    def of_requests(self, rows: RequestRows) -> list[Tensor]:
        """Runs the first experts once a request, and the others on all rows, as `dense`."""
        return of_one_type(self.shared_outputs(rows) + self.row_outputs(rows))

    def shared_work(self, rows: RequestRows) -> SharedWork:
        """The first experts, and what the others share."""
        of_request, of_row = self._each()
        parameters = of_row.shared_work(rows).parameters if knows_requests(of_row) else 0.0
        return SharedWork(len(of_request), parameters)

    def shared_outputs(self, rows: RequestRows) -> list[Tensor]:
        """What the experts of the request gave of each row's."""
        pool = self._each()[0]

        def run(x_NP: Tensor) -> list[Tensor]:
            return pool.dense([read_by_experts(None, x_NP)])

        if self.training and pool.traits.uses_batch:
            return run(rows.repeat(rows.x_QP))  # statistics are those of all rows
        return rows.repeat_all(rows.once(run))

    def row_outputs(self, rows: RequestRows) -> list[Tensor]:
        """What the experts of the row gave."""
        pool = self._each()[1]
        read = read_by_experts(pool, rows)
        return pool.of_requests(read) if isinstance(read, RequestRows) else pool.dense([read])


def mix_shared(
    pool: object, source: object, decision: GateOutput
) -> tuple[GateOutput, Tensor | None]:
    """Mixes what gates pick of experts that run once a request.

    Args:
        pool: Of any kind.
        source: What it reads, of any kind.
        decision: Of the gates.

    Returns:
        What is left to pick, and that mix, `[B, G, O]`; None where nothing is shared.

    Example:
        >>> import torch
        >>> from mmoe.mixture import GateOutput
        >>> mix_shared(None, torch.zeros(2, 3), GateOutput(torch.ones(2, 1, 4)))[1] is None
        True
    """
    if not (isinstance(source, RequestRows) and isinstance(pool, RequestExperts)):
        return decision, None
    if decision.experts is None:  # every expert is wanted: nothing is left to group
        return decision, None
    count = pool.shared_work(source).experts
    weights_BGE = decision.as_weights(len(pool))[:, :, :count].contiguous()
    return without_first(decision, count), mix_dense(pool.shared_outputs(source), weights_BGE)

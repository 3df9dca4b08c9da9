"""Rows by domain: products whose weights a row's domain chooses, however many domains there are."""

from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.ops import RoutePlan, gathered_mm, route_plan, unpermute


class RowDomains(NamedTuple):
    """The domain of each row, and the rows by domain.

    Attributes:
        codes_B: int32, from 0 to M; M: none of the M domains.
        plan: The rows of each of the M + 1, one after another.
    """

    codes_B: Tensor
    plan: RoutePlan

    @classmethod
    def of(cls, codes_B: Tensor, num_domains: int) -> "RowDomains":
        """Sorts the rows once, for all products of a batch.

        Args:
            codes_B: int32.
            num_domains: M.

        Example:
            >>> import torch
            >>> from mmoe.mixture.domains import RowDomains
            >>> RowDomains.of(torch.tensor([1, 0, 2, 0]).int(), 2).plan.offsets_E1.tolist()
            [0, 2, 3, 4]
        """
        return cls(codes_B, route_plan(codes_B.view(-1, 1, 1), num_domains + 1))

    def first(self, num_domains: int) -> "RowDomains":
        """Returns them for what knows the first domains alone: the others are none to it.

        Args:
            num_domains: How many it knows, of the M.

        Example:
            >>> import torch
            >>> from mmoe.mixture.domains import RowDomains
            >>> domains = RowDomains.of(torch.tensor([2, 0, 3]).int(), num_domains=3)
            >>> domains.first(1).codes_B.tolist()
            [1, 0, 1]
        """
        if num_domains + 2 == self.plan.offsets_E1.shape[0]:
            return self
        return RowDomains.of(self.codes_B.clamp(max=num_domains), num_domains)


def of_each_domain(shared_X: Tensor, own_MX: Tensor) -> Tensor:
    """Returns what each of M domains computes with and, last, rows of no domain: M + 1 of it.

    `w_m = shared + own_m`, and of no domain the mean of these: for what is linear the mean of the
    domains' results.

    Args:
        shared_X: Of any shape.
        own_MX: A tensor of that shape for each domain.

    Example:
        >>> import torch
        >>> from mmoe.mixture.domains import of_each_domain
        >>> of_each_domain(torch.ones(1), torch.tensor([[0.0], [2.0]])).flatten().tolist()
        [1.0, 3.0, 2.0]
    """
    own = torch.cat([own_MX, own_MX.mean(0, keepdim=True)])
    return shared_X.unsqueeze(0) + own


def domain_products(
    x_BD: Tensor, weight_NHD: Tensor, domains: RowDomains, bias_NH: Tensor | None = None
) -> Tensor:
    """Computes `y_b = W_m x_b [+ c_m]`, m the domain of row b: one product over rows by domain.

    The arithmetic is in fp32 (fp64 for fp64 rows), also under autocast. On the CPU, where the
    operators are built, a row's bits depend on that row alone.

    Args:
        x_BD: Of any float type.
        weight_NHD: Of N = M + 1 domains, from `of_each_domain`.
        domains: Of the rows.
        bias_NH: Likewise.

    Returns:
        `y_BH`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.domains import RowDomains, domain_products
        >>> domains = RowDomains.of(torch.tensor([1, 0]).int(), num_domains=1)
        >>> weight_NHD = torch.tensor([[[1.0]], [[10.0]]])
        >>> domain_products(torch.ones(2, 1), weight_NHD, domains).tolist()
        [[10.0], [1.0]]
    """
    with torch.autocast(x_BD.device.type, enabled=False):
        dtype = torch.promote_types(x_BD.dtype, torch.float32)
        weight_NDH = weight_NHD.to(dtype).transpose(1, 2).contiguous()
        bias_NH = None if bias_NH is None else bias_NH.to(dtype).contiguous()
        y_PH = gathered_mm(x_BD.to(dtype), domains.plan, weight_NDH, bias_NH)
        return unpermute(y_PH, domains.plan)


def domain_values(values_NX: Tensor, domains: RowDomains) -> Tensor:
    """Gives each row what its domain has: `y_b = values_m`, m the domain of row b, to the bit.

    Its gradient is added up in the order of the rows, the same on every run.

    Args:
        values_NX: Of N = M + 1 domains, from `of_each_domain`, of any shape behind.
        domains: Of the rows.

    Returns:
        `y_BX`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.domains import RowDomains, domain_values
        >>> domains = RowDomains.of(torch.tensor([1, 0, 1]).int(), num_domains=1)
        >>> domain_values(torch.tensor([[5.0], [7.0]]), domains).flatten().tolist()
        [7.0, 5.0, 7.0]
    """
    ones_B1 = values_NX.new_ones(domains.codes_B.shape[0], 1)
    weight_NH1 = values_NX.flatten(1).unsqueeze(-1)
    return domain_products(ones_B1, weight_NH1, domains).unflatten(1, values_NX.shape[1:])

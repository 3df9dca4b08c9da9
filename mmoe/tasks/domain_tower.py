"""`DomainTower`: a tower of which each domain has its own."""

import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import activate
from mmoe.mixture.domains import RowDomains, domain_products, of_each_domain
from mmoe.tasks.towers import Tower


class DomainTower(Tower):
    """A tower for each of M domains: every layer is `(W + U_m) x + b + c_m` in domain m.

    U and c are 0 at first, so that all begin as the one tower whose W and b they share. Rows of no
    domain go through the mean of the domains' weights: of towers without hidden layers that is the
    mean of their logits. So do rows of domains beyond the M, which came after the tower was frozen.
    One product a layer serves the rows of all domains, in fp32 under autocast too.

    Args:
        tower: The shared part; its parameters are taken over.
        num_domains: M.

    Example:
        >>> import torch
        >>> from mmoe.mixture.domains import RowDomains
        >>> from mmoe.tasks import Tower
        >>> from mmoe.tasks.domain_tower import DomainTower
        >>> tower = DomainTower(Tower(16, [8]), num_domains=3)
        >>> tower(torch.zeros(4, 16), RowDomains.of(torch.tensor([2, 0, 1, 2]).int(), 3)).shape
        torch.Size([4])

    Source: Sheng et al., "One model to serve all: star topology adaptive recommender for
        multi-domain CTR prediction" (CIKM 2021), section 3.4, for weights that a domain makes of
        shared and own ones; there by products, here by sums.
    """

    def __init__(self, tower: Tower, num_domains: int) -> None:
        nn.Module.__init__(self)
        self.mlp, self.logit = tower.mlp, tower.logit
        self.register_parameter("constants_J", tower.constants_J)
        layers = [layer for layer in (*self.mlp.layers, self.logit) if isinstance(layer, nn.Linear)]
        self.own_weights = nn.ParameterList(
            layer.weight.new_zeros(num_domains, *layer.weight.shape) for layer in layers
        )
        self.own_biases = nn.ParameterList(
            layer.bias.new_zeros(num_domains, layer.out_features) for layer in layers
        )

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        own = [name for name in self.state_dict() if name.startswith("own_")]
        return {name: {0: "domains"} for name in own}

    def forward(self, h_BO: Tensor, domains: RowDomains | None = None) -> Tensor:
        """Computes `logit_B` (of several columns `logits_BK`) of rows and their domains."""
        assert domains is not None, "rows of such a network have domains"
        domains = domains.first(len(self.own_weights[0]))
        for number in range(len(self.mlp.layers)):
            h_BO = self._layer(number, h_BO, domains)
            h_BO = activate(h_BO, self.mlp.activation, training=self.training)
            h_BO = F.dropout(h_BO, self.mlp.dropout, self.training)
        return self.columns_of(self._layer(len(self.mlp.layers), h_BO, domains))

    def _layer(self, number: int, x_BD: Tensor, domains: RowDomains) -> Tensor:
        layer = (*self.mlp.layers, self.logit)[number]
        assert isinstance(layer, nn.Linear)
        weight_NHD = of_each_domain(layer.weight, self.own_weights[number])
        bias_NH = of_each_domain(layer.bias, self.own_biases[number])
        return domain_products(x_BD, weight_NHD, domains, bias_NH)

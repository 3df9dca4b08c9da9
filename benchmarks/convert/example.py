"""What a user writes: a network, made a mixture of experts, and one step of its training.

`lines` counts in this file.
"""

import torch
from torch import nn

from mmoe.integrations.convert import convert


def main() -> float:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    model = convert(model, num_experts=8, k=2)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(8, 16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(f"{main():.3f}")

"""Gates under torch.export: the number of rows stays open."""

import pytest
import torch

# One of each form
EXPORTED = ["softmax_mlp", "top_k_before", "joint", "joint_budget", "switch", "gshard", "cosine"]
EXPORTED += ["dselect_k", "dselect_k_static", "static_k", "fixed"]


@pytest.mark.parametrize("gate", EXPORTED, indirect=True)
def test_scoring(gate, rows, visibility):
    module = gate.module.eval()
    batch = torch.export.Dim("batch", min=2, max=10_000)
    program = torch.export.export(
        module, (rows(30), visibility), dynamic_shapes=([{0: batch}] * len(visibility), {})
    )
    got, expected = (f(rows(17), visibility) for f in (program.module(), module))
    torch.testing.assert_close(got.weights, expected.weights)
    assert (got.experts is None) == (expected.experts is None)
    if got.experts is not None:
        assert torch.equal(got.experts, expected.experts)

import re
import subprocess
import sys

import pytest
import torch

from mmoe import ops
from mmoe.ops import _library, extension_status, product_choice

# Operators with the reference in the kernels' place: gradients, schemas, refusals
WITHOUT_EXTENSION = """
import os, sys, warnings
sys.modules["mmoe._C"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import mmoe.ops as ops
ours = [str(w.message) for w in caught if "mmoe" in str(w.message)]
assert len(ours) == 1, ours
assert f"compiled operators are missing from {sys.path[0] or os.getcwd()}" in ours[0], ours
assert "--editable ." in ours[0], ours

import torch
status = ops.extension_status()
assert (status.built, status.cuda) == (False, False), status
assert "plain PyTorch" in status.detail

torch.manual_seed(0)
picks = torch.randint(-1, 4, (6, 2, 2), dtype=torch.int32)
plan = ops.route_plan(picks, 4)
y = torch.randn(plan.rows_P.numel(), 3, dtype=torch.float64, requires_grad=True)
w = torch.randn(6, 2, 2, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda y, w: ops.gated_combine(y, plan.slots_BGK, w), (y, w))
ys = [torch.randn(6, 3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
wd = torch.randn(6, 2, 4, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda w, *y: ops.dense_combine(y, w), (wd, *ys))

def opcheck(operator, arguments):  # not traced: half a minute of imports, and as with kernels
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))

opcheck(torch.ops.mmoe.dense_combine.default, (ys, wd))

from mmoe.ops import permute, topk_gate, unpermute
logits = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
logits.requires_grad_()
visible = torch.tensor([[True] * 4, [True, False, True, False]])
for softmax in ("after", "before"):
    assert torch.autograd.gradcheck(lambda x: topk_gate(x, visible, 2, softmax=softmax)[0], logits)
opcheck(torch.ops.mmoe.topk_gate.default, (logits, visible, 2, True))
weights, experts = topk_gate(logits, visible, 2)
plan = ops.route_plan(experts, 4)
x = torch.ones(6, 3, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda x: unpermute(permute(x, plan).exp(), plan), x)
opcheck(torch.ops.mmoe.permute.default, (x, plan.rows_P, plan.slots_BGK))

for call, words in [
    (lambda: topk_gate(logits, visible, 3), "k: expected at most 2, what gate 1 sees, got 3"),
    (lambda: topk_gate(logits / 0 * 0, visible, 2), "gate 0: 6 rows have NaN logits"),
    (lambda: permute(x, plan._replace(rows_P=plan.rows_P + 1)), "rows_P: expected rows in [0, 6)"),
    (lambda: unpermute(x, plan._replace(rows_P=plan.rows_P[:6])), "slots_BGK: expected slots in"),
]:
    try:
        call()
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
print("all fine")
"""


def test_everything_works_without_the_extension(repository):
    call = [sys.executable, "-c", WITHOUT_EXTENSION]
    result = subprocess.run(call, cwd=repository, capture_output=True, text=True, check=False)

    assert result.stdout.strip() == "all fine", result.stderr


def test_status_matches_the_registered_kernels():
    status = extension_status()

    assert status.built == torch._C._dispatch_has_kernel_for_dispatch_key(
        "mmoe::dense_combine", "CPU"
    )
    assert not (status.cuda and not status.built)
    assert ("CPU kernels" in status.detail or "CPU and CUDA" in status.detail) == status.built


def test_what_cpp_computes_is_defined_in_python_and_nothing_else(repository):
    kernels = {
        name
        for path in (repository / "csrc" / "cpu").rglob("*.cpp")
        for name in re.findall(r'm\.impl\("(\w+)"', path.read_text())
    }

    assert product_choice is not None, "which nobody imports but who needs it"
    of_gpus = {"gathered_mm", "gathered_mm_backward"}  # on the CPU they are permute and grouped_mm
    defined = {name.removeprefix("mmoe::") for name in _library.LIBRARY._op_defs}
    assert kernels == defined - of_gpus


def test_kernels_use_no_instructions_that_nobody_asked_the_processor_for(repository):
    """A virtual machine may hide any of them, and the first use of one would end the process."""
    sources = {
        path.name: path.read_text()
        for pattern in ("*.h", "*.cpp")
        for path in (repository / "csrc" / "cpu").rglob(pattern)
    }
    asked = set(re.findall(r'cpu_supports\("(\w+)"\)', sources["processor.h"]))
    used = {
        name: set(re.findall(r'#pragma GCC target\("([\w,]+)"\)', text))
        for name, text in sources.items()
    }

    assert len(set().union(*used.values())) >= 3
    for name, targets in used.items():
        assert set(",".join(targets).split(",")) - {""} <= asked, name


def test_the_transforms_that_are_not_supported_are_named():
    """Once PyTorch supports them, the docstring is to change."""
    y_EBO, weights_BGE = torch.rand(2, 3, 4), torch.rand(3, 1, 2)

    def mixed(weights_BGE):
        return ops.dense_combine(y_EBO, weights_BGE).sum()

    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(mixed)(weights_BGE)
    with pytest.raises(RuntimeError, match="Batching rule"):
        torch.vmap(mixed)(torch.stack([weights_BGE, weights_BGE]))
    for name in ("forward-mode AD", "torch.func.grad", "torch.vmap"):
        assert name in (ops.__doc__ or "")

"""Arguments that hypothesis damages: an operator refuses them, or gives what its shapes promise.

Calls are those of the shared list (`benchmarks.gpu_check.operator_cases`), of small sizes. Up to
three arguments are something else; then the operator refuses on one line that begins with an
argument's name, or, where the damage does not show, returns what its shapes promise. What is read
or written on the way there is looked at by `make sanitize`.
"""

import re
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu_check.operator_cases import BUILDERS, Case
from mmoe.ops import extension_status
from tests.ops.damage import FLOATS, Damage, flat, without_values
from tests.thinning import examples

pytestmark = pytest.mark.skipif(
    not extension_status().built, reason="plain PyTorch looks at fewer values"
)

CASES = (
    Case(5, 2, 2, 3, 3, 5, unused=True),
    Case(17, 3, 1, 5, 17, 33, unused=True),
    Case(33, 1, 2, 2, 1, 1),
    Case(1, 11, 1, 3, 2, 17),
    Case(0, 2, 2, 4, 16, 16),
)
# Exchanges are in test_exchange_fuzz.py; the public functions of shared_mm and dense_mlp check for
# them, and gathered_mm has no kernel of its own on the CPU
NAMES = [n for n in BUILDERS if n not in ("exchange", "shared_mm", "dense_mlp", "gathered_mm")]


@cache
def calls_of(name, case, dtype):
    return list(BUILDERS[name](case, dtype))


def draw_call(data, name):
    case, dtype = data.draw(st.sampled_from(CASES)), data.draw(st.sampled_from(FLOATS))
    operator, arguments = data.draw(st.sampled_from(calls_of(name, case, dtype)))
    return operator, list(arguments)


def operator_or_refusal(operator, arguments):
    try:
        return flat(operator(*arguments))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(data=st.data())
def test_refuses_what_is_damaged(name, data):
    operator, arguments = draw_call(data, name)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(arguments) - 1))
        arguments[at] = Damage(data).argument(arguments[at])
    if all(t.device.type == "meta" for t in flat(arguments)):
        return  # a proper question, about shapes alone
    call = getattr(torch.ops.mmoe, operator)
    found = operator_or_refusal(call, arguments)
    if isinstance(found, str):
        names = "|".join(a.name for a in call.default._schema.arguments)
        assert re.fullmatch(rf"({names})(\[\d+\])?(, ({names}))*: [^\n]+", found)
        return
    promised = flat(call(*map(without_values, arguments)))
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in promised]

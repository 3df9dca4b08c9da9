"""The operators of an exchange on arguments that hypothesis thinks up, most of them wrong.

Worlds of ranks are drawn, and each operator gets what such a world gives it, up to three arguments
damaged: then it refuses on one line that begins with an argument's name, or, where the damage does
not show, returns what its shapes promise. What it reads or writes on the way there is looked at by
`make sanitize`.
"""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.ops import extension_status
from tests.ops.damage import FLOATS, Damage, apart, flat, without_values
from tests.ops.exchange_world import STEPS as LATER
from tests.ops.exchange_world import Case, World
from tests.thinning import examples

pytestmark = pytest.mark.skipif(
    not extension_status().built, reason="plain PyTorch looks at fewer values"
)

STEPS = {"outbound_plan": "planning", **LATER}


def draw_case(data):
    """Ranks, of which some may have no rows or no experts."""
    draw = data.draw
    W, E = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    homes = [draw(st.integers(0, W - 1)) for _ in range(E)]
    K = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(FLOATS))
    wires = [wire for wire in FLOATS if wire.itemsize <= dtype.itemsize]
    return Case(
        "drawn",
        rows=tuple(draw(st.sampled_from([0, 1, 2, 3, 7])) for _ in range(W)),
        held=tuple(tuple(e for e in range(E) if homes[e] == r) for r in range(W)),
        G=draw(st.integers(1, 3)),
        K=K,
        S=draw(st.integers(1, 3)),
        D=draw(st.sampled_from([0, 1, 3, 17])),
        O=draw(st.sampled_from([0, 1, 3, 17])),
        picks=draw(st.sampled_from(["anything", "nothing", "distinct"][: 3 if K <= E else 2])),
        ways=draw(st.sampled_from(["mixed", "pairs", "sums"])),
        dtype=dtype,
        wire=draw(st.sampled_from(wires)),
    )


def draw_arguments(data, name):
    """What a rank of a drawn world gives an operator; its tensors may lie apart."""
    case = draw_case(data)
    rank = data.draw(st.integers(0, case.W - 1))
    arguments = list(getattr(World(case), STEPS[name])(rank))
    if data.draw(st.booleans()):
        arguments = [apart(value) for value in arguments]
    return case, arguments


def operator_or_refusal(operator, arguments):
    try:
        return flat(operator(*arguments))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(data=st.data())
def test_refuses_what_is_damaged(name, data):
    _, arguments = draw_arguments(data, name)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(arguments) - 1))
        arguments[at] = Damage(data).argument(arguments[at])
    operator = getattr(torch.ops.mmoe, name)
    if all(t.device.type == "meta" for t in flat(arguments)):
        return  # a proper question, about shapes alone
    found = operator_or_refusal(operator, arguments)
    if isinstance(found, str):
        names = "|".join([*(a.name for a in operator.default._schema.arguments), "message"])
        assert re.fullmatch(rf"({names})(\[\d+\])?(, ({names}))*: [^\n]+", found)
        return
    promised = flat(operator(*map(without_values, arguments)))
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in promised]

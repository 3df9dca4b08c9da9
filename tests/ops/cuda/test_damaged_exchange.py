"""Links, messages and plans that do not fit together: on a GPU the kernel stops, and says why.

The values are on the device, so no operator can refuse them as the CPU does, before it begins.
"""

import subprocess
import sys

import pytest
import torch

from benchmarks.gpu_check.smoke import to_device
from tests.ops.exchange_world import BACK, ROWS, Case, World
from tests.ops.test_exchange import MESSAGES, damaged

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


def emulated():
    """A stopped kernel leaves the process as it was there; a GPU's takes its context with it."""
    return type(torch.zeros(1, device="cuda")).__name__ == "OnDevice"


def stops(name, arguments):
    with pytest.raises((ValueError, RuntimeError), match=r": expected|CUDA error") as caught:
        getattr(torch.ops.mmoe, name)(*to_device(arguments, "cuda"))
    return str(caught.value)


in_one_process = pytest.mark.skipif("not emulated()", reason="a stopped kernel ends the process")


@in_one_process
@pytest.mark.parametrize(
    ("step", "name", "place", "value"),
    [
        row[:4] for row in MESSAGES if (row[1], row[2]) != ("unpack_rows", 3)
    ],  # asks for memory first
)
def test_stops_at_what_the_cpu_refuses(step, name, place, value):
    arguments = getattr(World(Case("", ways="mixed")), step)(0)

    stops(name, damaged(arguments, place, value))


def longer(links_WL):
    """One row and more of everything for the last rank."""
    return torch.cat([links_WL[:-1], links_WL[-1:] + 3])


def with_number(place, value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[place] = value
        return tensor

    return change


# What a stopped kernel may say: which of its blocks comes first is not promised
STOPPED = {
    "a message too short to write": ("packed", "pack_rows", 7, lambda n: n - 4, "message"),
    "a message too long to write": ("packed", "pack_rows", 7, lambda n: n + 4, "message"),
    "no message to write": ("packed", "pack_rows", 7, lambda n: 0, "message"),
    "links that count more rows": ("packed", "pack_rows", 5, longer, "links_WL|message|rows_M"),
    "links that go below 0": ("packed", "pack_rows", 5, lambda x: -x, "links_WL|message"),
    "gradients too short": (
        "unpacked_backward", "unpack_rows_backward", 6, lambda n: n - 1, "message",
    ),
    "no gradients": ("unpacked_backward", "unpack_rows_backward", 6, lambda n: 0, "message"),
    "gradients' links": (
        "unpacked_backward", "unpack_rows_backward", 4, longer, "links_WL|message",
    ),
    "a message too short to decode": ("decoding", "decode_picks", 0, lambda x: x[:-4], "message"),
    "no message to decode": ("decoding", "decode_picks", 0, lambda x: x[:0], "message"),
    "links of others to decode": ("decoding", "decode_picks", 1, longer, "links_WL|message"),
    "rows of a message too short": ("unpacked", "unpack_rows", 0, lambda x: x[:-4], "message"),
    "no rows": ("unpacked", "unpack_rows", 0, lambda x: x[:0], "message"),
    "rows' links": ("unpacked", "unpack_rows", 2, longer, "message|links_WL"),
    "gradients that came short": (
        "packed_backward", "pack_rows_backward", 0, lambda x: x[:-4], "message",
    ),
    "no gradients that came": ("packed_backward", "pack_rows_backward", 0, lambda x: x[:0], "mess"),
    "fewer rows than the links": (
        "packed_backward", "pack_rows_backward", 1, lambda x: x[:3], "links_WL|rows_BGK",
    ),
    "offsets past the pairs": ("returning", "return_plan", 1, lambda x: x + 9999, "offsets_E1"),
    "offsets below 0": ("returning", "return_plan", 1, lambda x: x - 5, "offsets_E1"),
    "rows of no rank": ("returning", "return_plan", 0, with_number(0, 99), "rows_R|links_WL"),
    "fewer rows back": (
        "returning", "return_plan", 3, with_number(-6 + BACK, 1), "links_WL",
    ),
    "rows that fall": ("returning", "return_plan", 3, with_number(-6 + ROWS, 0), "links_WL"),
    "rows back of pairs": (
        "returns_backward", "pack_returns_backward", 3, lambda x: x + 999, "back_R",
    ),
    "rows of no message": ("mixed", "mix_returns", 2, with_number(0, 10**6), "rows_BGK"),
    "links to mix by": ("mixed", "mix_returns", 5, lambda x: -x, "links_WL|rows_BGK"),
    "two experts in one place": (
        "planning", "outbound_plan", 1, lambda x: torch.cat([x[:1], x[:-1]]), "homes_E3",
    ),
}  # fmt: skip


def call_of(case):
    step, name, place, value, text = STOPPED[case]
    # Whole tensors of one dtype: messages end with weights, which are wider than codes
    world = World(Case("", ways="pairs" if name == "return_plan" else "mixed"))
    return name, damaged(getattr(world, step)(0), place, value), text


@in_one_process
@pytest.mark.parametrize("case", STOPPED)
def test_stops_and_says_why(case):
    name, arguments, text = call_of(case)

    said = stops(name, arguments)

    assert any(f"mmoe: {word}" in said for word in text.split("|")), said


@pytest.mark.real_gpu
@pytest.mark.parametrize(
    "case",
    [
        "a message too short to write",
        "no gradients",
        "no message to decode",
        "rows of a message too short",
        "offsets past the pairs",
    ],
)
def test_stops_the_kernel_in_a_process_of_its_own(repository, case):
    script = f"""
import torch
from benchmarks.gpu_check.smoke import to_device
from tests.ops.cuda.test_damaged_exchange import call_of
name, arguments, _ = call_of({case!r})
try:
    getattr(torch.ops.mmoe, name)(*to_device(arguments, "cuda"))
    torch.cuda.synchronize()
except RuntimeError as error:
    print("stopped:", str(error).splitlines()[0])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=False
    )

    assert "stopped: CUDA error" in result.stdout, result.stdout + result.stderr
    assert "mmoe: " in result.stdout


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("decoding", "decode_picks"),
        ("unpacked", "unpack_rows"),
        ("packed_backward", "pack_rows_backward"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_message_may_begin_at_any_byte(step, name, dtype, first):
    message, *others = getattr(World(Case("", dtype=dtype)), step)(0)
    operator = getattr(torch.ops.mmoe, name)
    buffer = torch.cat([message.new_zeros(first), message]).cuda()

    found = operator(buffer[first:], *to_device(others, "cuda"))

    wanted = operator(message, *others)
    pairs = (
        [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(found, wanted, strict=True)
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs)

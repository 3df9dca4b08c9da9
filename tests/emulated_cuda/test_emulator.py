"""The emulation itself, on kernels that are wrong on purpose (probes/probes.cu)."""

import ctypes
from pathlib import Path

import pytest
import torch

from tests.emulated_cuda.build import build
from tests.emulated_cuda.device import ORDERS, EmulatedDevice
from tests.emulated_cuda.guarded import POISON, guard

pytestmark = [pytest.mark.gpu, pytest.mark.of_emulation]
if EmulatedDevice.open_one is None:
    pytest.skip("the emulation is not loaded", allow_module_level=True)

NUMBERS = 64


class Probes:
    """The library of probes, called as operators are."""

    def __init__(self, variant):
        self.variant = variant
        path = str(build(variant, Path(__file__).parent / "probes"))
        torch.ops.load_library(path)
        self.library = ctypes.CDLL(path)
        self.set()

    def set(self, order="forward", seed=0, copies="late"):
        self.library.emulated_configure(ORDERS.index(order), seed, int(copies == "early"), 8)

    def run(self, group, name, tensor, number=0):
        memory = []
        given = guard(tensor, memory)
        self.library.emulated_begin_call(None, 0)
        try:
            found = getattr(torch.ops.emulated_probes, group)(name, given, number).clone()
        finally:
            self.library.emulated_end_call()
        for part in memory:
            part.check(name)
        return found

    def __getattr__(self, group):
        return lambda *call: self.run(group, *call)


@pytest.fixture(scope="module")
def built(request):
    return Probes(request.config.getoption("--emulated-variant"))


@pytest.fixture
def probes(built):
    built.set()
    return built


@pytest.fixture(params=ORDERS)
def any_order(request, built):
    built.set(request.param, seed=3)
    return built


def numbers(count=4 * NUMBERS):
    """Different ones, none of them 0."""
    return torch.arange(1.0, count + 1)


# ---- threads that wait for each other ----


def test_a_missing_barrier_is_seen_in_one_of_the_orders(probes):
    """A number of a thread before it is there by chance when threads run forward."""
    wanted = [1.0, *range(1, NUMBERS)]
    for order in ORDERS:
        probes.set(order, seed=3)
        assert probes.threads("neighbour", numbers(), 1)[:NUMBERS].tolist() == wanted

    probes.set()
    assert probes.threads("neighbour", numbers(), 0)[:NUMBERS].tolist() == wanted
    probes.set("backward")
    assert probes.threads("neighbour", numbers(), 0)[1:NUMBERS].isnan().all()
    probes.set("shuffled", seed=1)
    found = probes.threads("neighbour", numbers(), 0)[1:NUMBERS]
    assert 0 < found.isnan().sum() < NUMBERS - 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("two barriers", r"threads of a block wait in probes\.cpp:\d+ and in probes\.cpp:\d+"),
        ("two shuffles", r"lanes of a warp are in probes\.cpp:\d+ and in probes\.cpp:\d+"),
        ("barrier or shuffle", "nobody comes: .* for a shuffle in probes"),
        ("leaves before shuffle", "nobody comes: thread 0 for a shuffle in probes"),
        ("half mask", "only whole warps are emulated, in probes"),
    ],
)
def test_threads_that_do_not_meet_stop_the_kernel(any_order, name, why):
    with pytest.raises(RuntimeError, match=f"CUDA error: .*{why}"):
        any_order.threads(name, numbers(), 5)

    found = any_order.threads("neighbour", numbers(), 1)  # and the next one runs
    assert found[:NUMBERS].tolist() == [1.0, *range(1, NUMBERS)]


def test_a_barrier_does_not_wait_for_threads_that_have_ended(any_order):
    found = any_order.threads("leaves before barrier", numbers())

    assert found[0].isnan()
    assert torch.equal(found[1:NUMBERS], numbers()[1:NUMBERS])


@pytest.mark.parametrize("threads", [32, 40, 33])
def test_lanes_of_partial_warps(any_order, threads):
    """A lane that does not exist gives nothing; who asks it keeps its own number."""
    given = numbers()
    found = any_order.threads("whole warps", given, threads)[: 4 * threads].view(threads, 4)
    for first in range(0, threads, 32):
        warp = range(first, min(first + 32, threads))
        sums = {t: float(given[t]) for t in warp}
        for step in (16, 8, 4, 2, 1):
            sums = {t: sums[t] + sums.get(first + ((t - first) ^ step), sums[t]) for t in warp}
        for t in warp:
            third = first + 3 if first + 3 in warp else t
            odd = sum(other % 2 for other in warp)
            assert found[t].tolist() == [sums[t], float(given[third]), odd, 1000 - warp[-1]]


# ---- asynchronous copies ----


@pytest.mark.parametrize("copies", ["late", "early"])
def test_copies_that_are_waited_for(any_order, copies):
    any_order.set("backward", copies=copies)
    found = any_order.threads("copies", numbers(), 2)

    given = numbers(NUMBERS).flip(0)
    there = torch.arange(NUMBERS).flip(0) % 2 == 0
    assert torch.equal(found[:NUMBERS], given)
    assert torch.equal(found[NUMBERS : 2 * NUMBERS], given * there)  # where none is copied, 0


def test_a_copy_that_is_not_waited_for_is_late(any_order):
    """What a thread has begun lands when it ends: who reads before that has nothing."""
    none = any_order.threads("copies", numbers(), 0)[: 2 * NUMBERS].view(2, NUMBERS)
    first = any_order.threads("copies", numbers(), 1)[: 2 * NUMBERS].view(2, NUMBERS)

    assert (none.isnan().sum(1) > NUMBERS // 4).all()
    assert torch.equal(first[0], numbers(NUMBERS).flip(0))
    assert first[1].isnan().sum() > NUMBERS // 4


def test_a_copy_that_lands_early_takes_the_place_of_what_others_read(probes):
    wanted = numbers(NUMBERS).roll(-1)
    for order in ORDERS:
        for copies in ("late", "early"):
            probes.set(order, copies=copies)
            assert torch.equal(probes.threads("overwrites", numbers(), 1)[:NUMBERS], wanted)

    probes.set("forward", copies="early")
    found = probes.threads("overwrites", numbers(), 0)[:NUMBERS]
    assert found[-1] == 1 + NUMBERS  # the first thread's new number
    probes.set("backward", copies="early")
    assert (probes.threads("overwrites", numbers(), 0)[:NUMBERS] != wanted).sum() == NUMBERS - 1


@pytest.mark.parametrize(
    ("name", "at", "why"),
    [
        ("copy to", 1, "misaligned address: shared memory of cp.async"),
        ("copy from", 2, "misaligned address: global memory of cp.async"),
        ("copy to", 16, "cp.async leaves the block's shared memory"),
        ("copy to", -4, "cp.async leaves the block's shared memory"),
    ],
)
def test_copies_that_are_no_copies(probes, name, at, why):
    probes.memory(name, numbers(), 0)

    with pytest.raises(RuntimeError, match=why):
        probes.memory(name, numbers(), at)


# ---- memory ----


@pytest.mark.parametrize("name", ["pack from", "pack to"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_packs_that_are_not_aligned(probes, name, at):
    probes.memory(name, numbers(), 4)

    with pytest.raises(RuntimeError, match=r"misaligned address in probes\.cu?p?p?:\d+"):
        probes.memory(name, numbers(), at)


@pytest.fixture
def survivor(probes):
    """What is not ended by AddressSanitizer's report."""
    if probes.variant == "asan":
        pytest.skip("AddressSanitizer ends the process")
    return probes


@pytest.mark.parametrize("at", [-1, -60, NUMBERS, NUMBERS + 60])
def test_writing_beside_an_output(survivor, at):
    survivor.memory("write out", numbers(), NUMBERS - 1)

    with pytest.raises(RuntimeError, match="written beside memory that an operator asked for"):
        survivor.memory("write out", numbers(), at)


@pytest.mark.parametrize(
    ("at", "why"),
    [(0, "to one"), (255, "to one"), (-1, "beside one"), (256, "beside one"), (300, "beside one")],
)
def test_writing_to_an_input_or_beside_it(probes, at, why):
    with pytest.raises(RuntimeError, match=f"write in wrote {why} of its inputs"):
        probes.memory("write in", numbers(), at)


@pytest.mark.parametrize(
    ("name", "last", "beside"),
    [
        ("shared variable", NUMBERS - 1, [-1, -64, NUMBERS, NUMBERS + 63, NUMBERS + 900]),
        ("shared of the launch", 15, [-1, -60, 16, 79]),
    ],
)
def test_writing_beside_shared_memory(survivor, name, last, beside):
    survivor.memory(name, numbers(), last)

    for at in beside:
        with pytest.raises(RuntimeError, match="something was written beside shared memory"):
            survivor.memory(name, numbers(), at)


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("at", [-40, -1, 4 * NUMBERS - 4, 4 * NUMBERS + 40])
def test_reading_beside_an_input_gives_nan(probes, offset, at):
    given = numbers()[offset : offset + 4 * NUMBERS - 4]

    assert probes.memory("read in", given, at)[0].isnan()
    assert probes.memory("read in", given, 7)[0] == offset + 8


def test_rows_apart_have_numbers_between_them(probes):
    """What lies between the rows of an input is the caller's own."""
    given = numbers().view(4, 64)[:, 1:40]

    assert probes.memory("read in", given, 45)[0] == 1 + 46


def test_memory_that_nobody_wrote(probes):
    found = probes.memory("unwritten", numbers())

    assert found[:2].isnan().all()
    assert found[2] == 0x7FFF7FFF // 128 * 128 + 128  # as a float
    assert found[3] == 28
    assert found[4:].isnan().all()
    bits = found[4:].view(torch.int16)
    assert (bits == POISON).all()


def test_a_kernel_that_stops_itself_says_why(any_order):
    with pytest.raises(
        RuntimeError, match="CUDA error: the kernel stopped itself: probe: expected nothing, got 10"
    ):
        any_order.memory("stops", numbers())


# ---- launches ----


@pytest.mark.parametrize(
    ("name", "number", "why"),
    [
        ("blocks", 0, "an empty grid"),
        ("rows of blocks", 65536, "too large a grid"),
        ("threads", 0, "0 threads a block"),
        ("threads", 1025, "1025 threads a block"),
        ("shared", (48 << 10) + 1, "49153 bytes of shared memory"),
        ("reserved", (227 << 10) + 1, "232449 bytes of shared memory"),
    ],
)
def test_invalid_launches(probes, name, number, why):
    with pytest.raises(RuntimeError, match=f"invalid configuration argument: {why}"):
        probes.launches(name, torch.zeros(1), number)


def test_shared_memory_is_asked_for_before_each_launch(probes):
    """On a GPU what one kernel asked for is no other's."""
    for name, number in (("shared", 48 << 10), ("reserved", 227 << 10)):  # as much as there is
        assert probes.launches(name, torch.zeros(1), number)[0] == 1
    with pytest.raises(RuntimeError, match="49153 bytes of shared memory"):
        probes.launches("shared", torch.zeros(1), (48 << 10) + 1)


def order_of(built, name, number, count):
    """Which came when; the counter is the operator's input, and written to."""
    built.library.emulated_begin_call(None, 0)
    found = torch.ops.emulated_probes.launches(name, torch.zeros(1), number)[:count].tolist()
    built.library.emulated_end_call()
    assert sorted(found) == list(range(count))
    return found


@pytest.mark.parametrize(("name", "count"), [("blocks", 30), ("threads", 60)])
def test_blocks_and_threads_run_in_all_orders(probes, name, count):
    forward = order_of(probes, name, count, count)
    probes.set("backward")
    backward = order_of(probes, name, count, count)
    shuffled = []
    for seed in (1, 2, 1):
        probes.set("shuffled", seed=seed)
        shuffled.append(order_of(probes, name, count, count))

    assert forward == list(range(count))
    assert backward == forward[::-1]
    assert shuffled[0] == shuffled[2]
    assert len({tuple(found) for found in (forward, backward, *shuffled)}) == 4


def test_a_plane_of_blocks_has_each_once(any_order):
    order_of(any_order, "plane of blocks", 7, 21)


# ---- tensor cores ----


def packed(pairs):
    """Words of two bfloat16 numbers, the first in the low half."""
    return torch.tensor(pairs, dtype=torch.bfloat16).view(torch.int32).squeeze(-1)


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_each_lane_its_numbers(any_order, transposed):
    given = torch.arange(256.0).view(4, 8, 8)  # each of them exact in bfloat16
    name = "ldmatrix, transposed" if transposed else "ldmatrix"
    found = any_order.tensor_cores(name, given.bfloat16()).view(32, 4)

    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for i in range(4):
            matrix = given[i].T if transposed else given[i]
            pair = [float(matrix[row, column]), float(matrix[row, column + 1])]
            assert found[lane, i] == packed([pair])[0]


def test_mma_is_a_product(any_order):
    """By the layouts of the PTX manual for m16n8k16: groups of four lanes, pairs of numbers."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randperm(256, generator=generator).view(16, 16) / 16 - 5
    b = torch.randperm(128, generator=generator).view(16, 8) / 8 - 3
    a, b = a.bfloat16().float(), b.bfloat16().float()
    given = []
    for lane in range(32):
        group, number = divmod(lane, 4)
        rows = [group, group + 8, group, group + 8]
        columns = [number * 2, number * 2, number * 2 + 8, number * 2 + 8]
        pairs = [[a[r, c], a[r, c + 1]] for r, c in zip(rows, columns, strict=True)]
        pairs += [[b[k, group], b[k + 1, group]] for k in (number * 2, number * 2 + 8)]
        given.append(packed(pairs))

    found = any_order.tensor_cores("mma", torch.stack(given)).view(32, 4)

    product = a @ b
    for lane in range(32):
        group, number = divmod(lane, 4)
        for i in range(4):
            wanted = product[group + i // 2 * 8, number * 2 + i % 2] + lane * 4 + i
            assert abs(found[lane, i] - wanted) < 1e-3

"""An exchange between ranks in one process: what each operator is given, step by step."""

from dataclasses import dataclass
from itertools import pairwise

import torch

from mmoe.ops import route_plan

ROWS, PICKS, WEIGHTS, PAIRS, SUMS, BACK = range(6)


@dataclass(frozen=True)
class Case:
    """Ranks, what they hold and have, and what their gates pick."""

    name: str
    rows: tuple[int, ...] = (7, 5)  # samples of each rank
    held: tuple[tuple[int, ...], ...] = ((0, 1, 2), (3, 4))  # experts of each rank
    G: int = 3
    K: int = 2
    S: int = 1
    D: int = 19
    O: int = 21  # noqa: E741
    picks: str = "distinct"
    ways: str = "mixed"  # of coming back
    dtype: torch.dtype = torch.float32
    wire: torch.dtype | None = None

    @property
    def E(self):
        return sum(map(len, self.held))

    @property
    def W(self):
        return len(self.held)

    @property
    def wide(self):
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def sent_as(self):
        return self.wire or self.dtype

    def homes_E3(self):
        found = {
            e: (r, p, e % self.S) for r, own in enumerate(self.held) for p, e in enumerate(own)
        }
        return torch.tensor([found[e] for e in range(self.E)], dtype=torch.int32)

    def random(self, *shape, seed=0):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def experts_BGK(self, rank):
        generator = torch.Generator().manual_seed(rank)
        shape = (self.rows[rank], self.G, self.K)
        if self.picks == "distinct":
            scores = torch.rand(*shape[:2], self.E, generator=generator)
            experts = scores.topk(self.K, dim=-1).indices
        elif self.picks == "one":
            experts = torch.full(shape, self.held[-1][-1])
        elif self.picks == "nothing":
            experts = torch.full(shape, -1)
        else:  # anything: unused ones, and an expert twice
            experts = torch.randint(-1, self.E, shape, generator=generator)
        return experts.to(torch.int32)


BF16, FP64 = torch.bfloat16, torch.float64
CASES = [
    Case("usual"),
    Case("pairs", ways="pairs"),
    Case("sums", ways="sums"),
    Case("bf16", dtype=BF16),
    Case("bf16 on the wire", wire=BF16),
    Case("fp64", dtype=FP64),
    Case("fp64, bf16 on the wire", dtype=FP64, wire=BF16),
    Case("fp64, fp32 on the wire", dtype=FP64, wire=torch.float32),
    Case("one rank", rows=(9,), held=((0, 1, 2, 3),)),
    Case("four ranks", rows=(3, 8, 1, 4), held=((0, 1), (2,), (3, 4), (5,))),
    Case("a rank without experts", rows=(4, 3, 6), held=((2, 0), (), (1, 3))),
    Case("a rank without rows", rows=(6, 0), ways="sums"),
    Case("no rows", rows=(0, 0)),
    Case("all to one rank", picks="one", K=1),
    Case("all to one rank, three times", picks="one", K=3),
    Case("only unused picks", picks="nothing"),
    Case("anything", picks="anything", K=4),
    Case("anything, sums", picks="anything", K=4, ways="sums", dtype=BF16),
    Case("sources", S=2, picks="anything"),
    Case("sources, sums", S=3, picks="anything", ways="sums", rows=(8, 3)),
    Case("sources, bf16 on the wire", S=2, wire=BF16),
    Case("one gate", G=1),
    Case("nine gates", G=9, K=1),
    Case("dense", K=5, ways="sums"),
    Case("many picks", G=9, K=5, picks="anything"),
    Case("width 1", D=1, O=1, wire=BF16),
    Case("wide", D=130, O=64, rows=(33, 21), G=4, wire=BF16),
    Case("no width", D=0, O=0),
    Case("mixed placement", held=((4, 1), (0, 3, 2)), picks="anything"),
    Case("large", rows=(900, 700), held=(tuple(range(16)), tuple(range(16, 32))), G=4, D=32),
]


def links_of(sizes, sums):
    """`links_WL` of one direction, from sizes and which ranks' links bring sums back."""
    rows = [[0] * 6]
    for (rows_w, picks, pairs, sums_w), back in zip(sizes, sums, strict=True):
        weights = picks if back else 0
        own = [rows_w, picks, weights, pairs, sums_w, sums_w if back else pairs]
        rows.append([a + b for a, b in zip(rows[-1], own, strict=True)])
    return torch.tensor(rows)


class World:
    """All ranks of a case; `ops` is `torch.ops.mmoe`, or a reference with the same names."""

    def __init__(self, case, ops=torch.ops.mmoe):
        self.case, self.ops = case, ops
        ranks = range(case.W)
        homes = case.homes_E3()
        self.experts = [case.experts_BGK(r) for r in ranks]
        self.plans = [ops.outbound_plan(e, homes, case.W, case.S) for e in self.experts]
        sizes = [plan[6].tolist() for plan in self.plans]
        way = {"pairs": lambda r, w: False, "sums": lambda r, w: True}.get(
            case.ways, lambda r, w: (r + w) % 2 == 0
        )
        self.ours = [links_of(sizes[r], [way(r, w) for w in ranks]) for r in ranks]
        self.theirs = [
            links_of([sizes[r][w] for r in ranks], [way(r, w) for r in ranks]) for w in ranks
        ]

    def arguments(self, name, rank):
        """What an operator is given on a rank."""
        return getattr(self, {"outbound_plan": "planning", **STEPS}[name])(rank)

    def weights(self, rank):
        shape = self.experts[rank].shape
        return self.case.random(*shape, seed=30 + rank).to(self.case.wide)

    def sources(self, rank):
        rows, D = self.case.rows[rank], self.case.D
        return [
            self.case.random(rows, D, seed=10 * s + rank).to(self.case.dtype)
            for s in range(self.case.S)
        ]

    def sizes(self, links, codes):
        """The bytes of each rank's message."""
        row = self.case.D * self.case.sent_as.itemsize
        weight = self.case.wide.itemsize
        return [
            (b[ROWS] - a[ROWS]) * row + (b[PICKS] - a[PICKS]) * codes
            + (b[WEIGHTS] - a[WEIGHTS]) * weight
            for a, b in pairwise(links.tolist())
        ]  # fmt: skip

    def planning(self, rank):
        """Arguments of outbound_plan."""
        return self.experts[rank], self.case.homes_E3(), self.case.W, self.case.S

    def packed(self, rank):
        """Arguments of pack_rows."""
        plan, links = self.plans[rank], self.ours[rank]
        size = sum(self.sizes(links, 4))
        weights = self.weights(rank)
        return self.sources(rank), weights, *plan[:3], links, self.case.sent_as, size

    def message(self, rank):
        """What comes to a rank."""
        return self.swap(
            [self.ops.pack_rows(*self.packed(r)) for r in range(self.case.W)], self.ours, rank, 4
        )

    def swap(self, messages, links, rank, codes):
        """An all-to-all of bytes."""
        return torch.cat(
            [m.split(self.sizes(links[r], codes))[rank] for r, m in enumerate(messages)]
        )

    def decoding(self, rank):
        """Arguments of decode_picks."""
        case, links = self.case, self.theirs[rank]
        totals = links[-1].tolist()
        return (
            self.message(rank), links, totals[ROWS], totals[PICKS], case.G, case.K,
            len(case.held[rank]), case.D, case.dtype, case.sent_as,
        )  # fmt: skip

    def routes(self, rank):
        """The plan of the picks that came, their weights, and their places."""
        picks, weights, places = self.ops.decode_picks(*self.decoding(rank))
        experts = max(len(self.case.held[rank]), 1)
        rows, offsets, slots = route_plan(picks, experts)
        pairs = int(self.theirs[rank][-1, PAIRS])
        return rows[:pairs], offsets, slots, weights, places

    def unpacked(self, rank):
        """Arguments of unpack_rows."""
        case, rows = self.case, self.routes(rank)[0]
        return self.message(rank), rows, self.theirs[rank], case.D, case.dtype, case.sent_as

    def unpacked_backward(self, rank):
        """Arguments of unpack_rows_backward."""
        rows, _, slots, weights, places = self.routes(rank)
        grad = self.case.random(len(rows), self.case.D, seed=50 + rank).to(self.case.dtype)
        grad_weights = self.case.random(*weights.shape, seed=60 + rank).to(self.case.wide)
        links = self.theirs[rank]
        size = sum(self.sizes(links, 0))
        return grad, grad_weights, slots, places, links, self.case.sent_as, size

    def packed_backward(self, rank):
        """Arguments of pack_rows_backward."""
        messages = [
            self.ops.unpack_rows_backward(*self.unpacked_backward(r)) for r in range(self.case.W)
        ]
        message = self.swap(messages, self.theirs, rank, 0)
        rows, entries, _, slots = self.plans[rank][:4]
        case = self.case
        return (
            message, rows, slots, entries, self.ours[rank], case.S, case.D, case.dtype,
            case.sent_as,
        )  # fmt: skip

    def returning(self, rank):
        """Arguments of return_plan."""
        rows, offsets, slots, _, _ = self.routes(rank)
        return rows, offsets, slots, self.theirs[rank]

    def returns(self, rank):
        """Arguments of pack_returns."""
        rows, _, slots, weights, _ = self.routes(rank)
        y = self.case.random(len(rows), self.case.O, seed=70 + rank).to(self.case.dtype)
        back = self.ops.return_plan(*self.returning(rank))
        return y, weights, *back, slots, int(self.theirs[rank][-1, BACK]), self.case.sent_as

    def returns_backward(self, rank):
        """Arguments of pack_returns_backward."""
        y, weights, back_R, back_NG, slots, Z, wire = self.returns(rank)
        grad = self.case.random(Z, self.case.O, seed=80 + rank).to(wire)
        return grad, y, weights, back_R, back_NG, slots

    def back(self, rank):
        """What comes back to a rank."""
        pieces = []
        for r in range(self.case.W):
            sent = self.ops.pack_returns(*self.returns(r))
            counts = self.theirs[r][:, BACK].diff().tolist()
            pieces.append(sent.split(counts)[rank])
        return torch.cat(pieces)

    def mixed(self, rank):
        """Arguments of mix_returns."""
        slots = self.plans[rank][3:6]
        weights = self.weights(rank)
        return self.back(rank), weights, *slots, self.ours[rank], self.case.dtype

    def mixed_backward(self, rank):
        """Arguments of mix_returns_backward."""
        back, weights, *slots, links, dtype = self.mixed(rank)
        shape = (*weights.shape[:2], self.case.O)
        return self.case.random(*shape, seed=90 + rank).to(dtype), back, weights, *slots, links


# Each operator after outbound_plan, and where a world has its arguments.
STEPS = {
    "pack_rows": "packed",
    "decode_picks": "decoding",
    "unpack_rows": "unpacked",
    "unpack_rows_backward": "unpacked_backward",
    "pack_rows_backward": "packed_backward",
    "return_plan": "returning",
    "pack_returns": "returns",
    "pack_returns_backward": "returns_backward",
    "mix_returns": "mixed",
    "mix_returns_backward": "mixed_backward",
}

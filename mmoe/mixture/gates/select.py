"""Gates that decide together: which experts a row computes for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.gates.contract import check_numbers
from mmoe.mixture.traits import GateTraits
from mmoe.ops import Softmax, joint_select, topk_gate
from mmoe.ops.gating import Aggregate, check_selection, visible_softmax

# Of a bounded gate so sure that its other weights are 0 in fp32: `joint_select` never picks a 0
_LEAST_SCORE = 1e-30


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rule by which gates decide together: shared and private picks, or a budget for each row.

    Attributes:
        shared_k: Experts that all gates of a row share; 0: none, then there is a budget.
        private_k: Experts that each gate adds for itself, or takes of the budget.
        budget: The most experts that the voting gates choose for a row; None: any number.
        floor: 1: under a budget each gate keeps its first choice. 0: it need not.
        aggregate: What makes the shared experts: the `mean` of the votes, or their `max`.
        votes: How much each gate has to say, above 0; 0: it has no vote, and mixes what the others
            chose and experts of its own. None: all have as much.

    Raises:
        ValueError: Numbers out of range, or no gate has a vote.

    Example:
        >>> from mmoe.mixture import Selection
        >>> Selection(shared_k=3, private_k=1).most_pairs(num_gates=4)
        7
        >>> Selection(private_k=4, budget=6).most_pairs(num_gates=4)
        6
    """

    shared_k: int = 0
    private_k: int
    budget: int | None = None
    floor: int = 1
    aggregate: Aggregate = "mean"
    votes: Sequence[float] | None = None

    @property
    def k(self) -> int:
        """Number of experts that a gate mixes for a row."""
        return self.shared_k + self.private_k

    def voters(self, num_gates: int) -> int:
        """Returns how many of so many gates have a vote."""
        return num_gates if self.votes is None else sum(vote > 0 for vote in self.votes)

    def binding(self, num_voters: int) -> int | None:
        """Returns the budget; None where it has room for all that so many voters could pick."""
        if self.budget is None or self.budget >= self.shared_k + num_voters * self.private_k:
            return None
        return self.budget

    def most_pairs(self, num_gates: int) -> int:
        """Returns how many experts one row computes at most, whatever the gates want."""
        apart = self.shared_k + num_gates * self.private_k
        if self.budget is None:
            return apart
        return min(apart, self.budget + self.floor * (num_gates - self.voters(num_gates)))

    def within(self, budget: int, visibility_GE: Tensor) -> "Selection | None":
        """Returns a rule by which all gates together choose at most `budget` experts for a row.

        Gates that see the same experts keep the set with most of their summed probability. Where
        they do not, each keeps its first choice, so that none is left without an expert.

        Args:
            budget: From 1 on.
            visibility_GE: Bool, which gate sees which expert.

        Returns:
            The rule, with the votes of this one; None: this one chooses no more already.

        Raises:
            ValueError: The budget has no room for every first choice.

        Example:
            >>> import torch
            >>> Selection(private_k=4).within(2, torch.ones(3, 4, dtype=torch.bool)).most_pairs(3)
            2
        """
        num_gates, num_experts = visibility_GE.shape
        if min(self.most_pairs(num_gates), num_experts) <= budget:
            return None
        floor: int = 0 if bool(visibility_GE.all()) else 1
        voters = self.voters(num_gates)
        # A gate without a vote adds its first choice to what the others chose
        own = budget - floor * (num_gates - voters)
        if own < floor * voters:
            raise ValueError(
                f"{num_gates} gates that do not see the same experts, and each keeps its first "
                f"choice; set {num_gates} or more"
            )
        own = own if self.budget is None else min(own, self.budget)
        private_k = min(self.private_k, own)
        # First choices are private picks
        shared_k = min(self.shared_k, own - floor * min(private_k, 1))
        return replace(self, shared_k=shared_k, private_k=private_k, budget=own, floor=floor)

    def check(self, num_gates: int, num_experts: int) -> None:
        """Refuses what cannot be for so many gates and experts.

        Args:
            num_gates: G, those that `votes` is for.
            num_experts: E.

        Raises:
            ValueError: Names the setting that does not fit.
        """
        check_selection(self.shared_k, self.private_k, self.budget, self.floor, num_experts)
        votes = (1.0,) * num_gates if self.votes is None else self.votes
        if len(votes) != num_gates or min(votes) < 0 or not max(votes) < float("inf"):
            raise ValueError(
                f"votes: expected {num_gates} finite numbers from 0 on, one per gate, got "
                f"{list(votes)}"
            )
        voters = self.voters(num_gates)
        if not voters:
            raise ValueError("votes: expected one above 0, got none; no gate would decide")
        if self.budget is not None and self.budget < self.floor * voters:
            raise ValueError(
                f"budget: expected {voters} or more, one for the first choice of each gate that "
                f"votes (floor 1), got {self.budget}; raise it, or set floor: 0"
            )
        if self.shared_k == 0 and self.budget is None:
            raise ValueError(
                "shared_k: expected 1 or more where there is no budget, got 0; gates that share "
                "nothing decide alone"
            )


@dataclass
class Votes:
    """Wishes of gates with a vote, for gates of other modules that mix what these decide for.

    One is made for a call of several gate modules: the first one says here what its gates wanted,
    and those after it read it.

    Attributes:
        scores_BGE: How much each of these gates wanted each expert; None: nothing is said yet.
        visibility_GE: Which of the experts they see; there may be more by now.
        asked_BG: Bool, which of these gates each row asks; None: all.
    """

    scores_BGE: Tensor | None = None
    visibility_GE: Tensor | None = None
    asked_BG: Tensor | None = None


class Selector(nn.Module):
    """Picks each gate's k experts among those that the gates of a row choose together.

    Args:
        num_gates: G.
        num_experts: E.
        k: Experts that a gate mixes for a row.
        selection: How they decide. With more votes than gates the first votes are those of
            another module's gates, from which `Votes` come.
        bounded: The selection bounds gates that were trained to pick otherwise: one may see fewer
            than k experts, or weigh all that are chosen with 0, and mixes what is chosen then.

    Raises:
        ValueError: The selection gives a gate another number of experts, or does not fit.

    Example:
        >>> import torch
        >>> select = Selector(2, 4, k=2, selection=Selection(shared_k=1, private_k=1))
        >>> logits = torch.tensor([[[5.0, 3.0, 2.0, 0.0], [0.0, 3.0, 1.0, 4.0]]])
        >>> select(logits, torch.ones(2, 4, dtype=torch.bool))[1].tolist()
        [[[0, 1], [3, 0]]]
    """

    votes_G: Tensor
    says_G1: Tensor

    def __init__(
        self,
        num_gates: int,
        num_experts: int,
        *,
        k: int,
        selection: Selection,
        bounded: bool = False,
    ) -> None:
        super().__init__()
        self.k, self.selection, self.bounded = k, selection, bounded
        deciding = max(num_gates, len(selection.votes or ()))
        self.others = deciding - num_gates  # gates of another module, whose votes come in a call
        selection.check(deciding, num_experts)
        if k != selection.k:
            raise ValueError(
                f"k: expected {selection.k}, shared_k + private_k of the selection, got {k}"
            )
        votes_G = torch.tensor(selection.votes or [1.0] * deciding, dtype=torch.float32)
        self.even = bool(((votes_G == 0) | (votes_G == 1)).all())
        self.register_buffer("votes_G", votes_G > 0, persistent=False)
        # A gate without a vote still picks by its own scores, which 0 would wipe out
        says_G1 = torch.where(votes_G > 0, votes_G, 1.0).unsqueeze(1)
        self.register_buffer("says_G1", says_G1, persistent=False)

    def traits(self, num_gates: int) -> GateTraits:
        """Returns what such a gate says of how it picks."""
        return GateTraits(
            k=self.k,
            shared_k=self.selection.shared_k,
            most_pairs=self.selection.most_pairs(self.others + num_gates),
        )

    def forward(
        self,
        logits_BGE: Tensor,
        visibility_GE: Tensor,
        asked_BG: Tensor | None = None,
        softmax: Softmax = "after",
        votes: Votes | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Picks by logits, best first, and weighs by softmax, as `topk_gate` does.

        Args:
            logits_BGE: −inf: not to be picked.
            visibility_GE: Bool.
            asked_BG: Bool, the gates that each row asks for, which decide; None: all.
            softmax: Over what was picked, or over what is visible.
            votes: As in `among`.
        """
        wanted_BGE = visible_softmax(logits_BGE, visibility_GE)
        check_numbers(wanted_BGE, logits_BGE, visibility_GE)
        scores_BGE = wanted_BGE.clamp(min=_LEAST_SCORE) if self.bounded else wanted_BGE
        left_BGE = self.among(logits_BGE, scores_BGE, visibility_GE, asked_BG, votes)
        if self.bounded:  # what is left is seen
            visibility_GE = torch.ones_like(visibility_GE)
        weights_BGK, experts_BGK = topk_gate(left_BGE, visibility_GE, self.k)
        if softmax == "before":
            weights_BGK = wanted_BGE.gather(-1, experts_BGK.clamp(min=0).long())
            weights_BGK = weights_BGK.masked_fill(experts_BGK < 0, 0)
        if weights_BGK.device.type != "cpu":  # where NaN was not refused it stays one
            weights_BGK = weights_BGK + 0 * wanted_BGE.detach().sum((1, 2)).view(-1, 1, 1)
        return weights_BGK, experts_BGK

    def among(
        self,
        values_BGE: Tensor,
        scores_BGE: Tensor,
        visibility_GE: Tensor,
        asked_BG: Tensor | None = None,
        votes: Votes | None = None,
    ) -> Tensor:
        """Puts −inf into the values of all experts but those that the gates decide for.

        Args:
            values_BGE: Logits, or whatever a gate picks by.
            scores_BGE: How much each gate wants each expert, from 0 on.
            visibility_GE: Bool.
            asked_BG: As in `forward`.
            votes: Of gates of another module, where the selection has more votes than there are
                gates here; else told what these gates want. None: nobody asks.
        """
        # What is picked has no gradient; the weights of the picks have one
        scores_BGE = scores_BGE.detach()
        if self.others:
            assert votes is not None, "gates without a vote mix what those of another module chose"
            scores_BGE, visibility_GE = _beside(votes, scores_BGE, visibility_GE)
            if asked_BG is not None:
                assert votes.asked_BG is not None, "rows ask the gates of all modules, or say which"
                asked_BG = torch.cat([votes.asked_BG, asked_BG], dim=1)
        elif votes is not None:
            votes.scores_BGE, votes.visibility_GE = scores_BGE, visibility_GE
            votes.asked_BG = asked_BG
        scores_BGE = scores_BGE if self.even else scores_BGE * self.says_G1
        picked_BGE = self._picked(scores_BGE, visibility_GE, asked_BG)
        return values_BGE.masked_fill(~picked_BGE[:, self.others :], -torch.inf)

    def _picked(self, scores_BGE: Tensor, visibility_GE: Tensor, asked_BG: Tensor | None) -> Tensor:
        """Marks what the gates decide for."""
        selection = self.selection

        def pick(scores_BGE: Tensor, budget: int | None, shared_k: int, private_k: int) -> Tensor:
            return joint_select(
                scores_BGE,
                visibility_GE,
                shared_k=shared_k,
                private_k=private_k,
                budget=budget,
                floor=selection.floor,
                aggregate=selection.aggregate,
                votes_G=self.votes_G,
                asked_BG=asked_BG,
            )

        num_gates = scores_BGE.shape[1]
        voters = selection.voters(num_gates)
        # By the voters alone: a gate without a vote that joins them must not change their picks
        binding, sizes = selection.binding(voters), (selection.shared_k, selection.private_k)
        picked_BGE = pick(scores_BGE, binding, *sizes)
        if selection.budget is None or binding is not None or voters == num_gates:
            return picked_BGE
        # All that voters pick is within the budget; others have that, and first choices
        open_BGE = (picked_BGE & self.votes_G.unsqueeze(1)).any(1, keepdim=True)
        open_BGE = open_BGE | self.votes_G.unsqueeze(1)
        if selection.floor:
            open_BGE = open_BGE | pick(scores_BGE, None, 0, 1)
        picked_BGE = pick(scores_BGE.masked_fill(~open_BGE, 0), None, *sizes)
        if asked_BG is None:
            return picked_BGE
        # Where a row asks for none that has a vote, those it asks for have one budget
        voted_B11 = (asked_BG & self.votes_G).any(1).view(-1, 1, 1)
        return torch.where(voted_B11, picked_BGE, pick(scores_BGE, selection.budget, *sizes))

    def extra_repr(self) -> str:
        """Returns the settings that `print` shows."""
        return repr(self.selection)


def _beside(votes: Votes, scores_BGE: Tensor, visibility_GE: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the gates that voted, and of others behind them; and what these see."""
    voted_BGE, seen_GE = votes.scores_BGE, votes.visibility_GE
    assert voted_BGE is not None and seen_GE is not None, "those that vote are called first"
    more = scores_BGE.shape[2] - voted_BGE.shape[2]  # experts that came after them
    return (
        torch.cat([F.pad(voted_BGE.to(scores_BGE), (0, more)), scores_BGE], dim=1),
        torch.cat([F.pad(seen_GE, (0, more)), visibility_GE]),
    )

"""The network that all models share: levels of mixtures, then a tower per task."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from mmoe.mixture import Inputs, MixtureOutput, MultiGateMixture, Unmixed
from mmoe.mixture.axes import Entry, Names, Part, named, without
from mmoe.mixture.experts.mlp import fast_dropout
from mmoe.models.bias_tower import BiasTower
from mmoe.models.inputs import InputLayers
from mmoe.models.interactions.layers import Interaction, Products
from mmoe.models.requests import RequestInputs
from mmoe.models.sequences import SequenceInputs
from mmoe.tasks import TaskTowers
from mmoe.tasks.gate_statistics import GateRecord
from mmoe.tasks.towers import is_watched
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer, LabelLoss


class NetworkOutput(NamedTuple):
    """Output of a network.

    Attributes:
        logits_BT: One column per task, or as many as its kind needs, fp32.
        auxiliary_losses: Scalars to add to the loss, by name (`level1.…`).
        gates: One record per level, where they were asked for; models without a learned gate have
            none.
        dropped: Picks that capacities dropped, on all levels together, one int64; None where
            nothing can be dropped.
        imputed: In training, `logit_B` of each imputation tower, by its task's column; None where
            there are none.
        with_bias_BT: In evaluation, where it was asked for, the logits with that of `model.bias`
            for the display as it was logged.
        wide_BT: Of `model.wide`, its logits alone; None where there is none.
        variants_VBT: What V networks that lack something make of the same rows (`mmoe.explain`),
            with all that is added to `logits_BT`; None where nobody asked.
        label_losses: In training, what modules add to the loss that depends on labels.
    """

    logits_BT: Tensor
    auxiliary_losses: dict[str, Tensor]
    gates: list[GateRecord]
    dropped: Tensor | None = None
    imputed: Mapping[int, Tensor] | None = None
    with_bias_BT: Tensor | None = None
    wide_BT: Tensor | None = None
    variants_VBT: Tensor | None = None
    label_losses: Sequence[LabelLoss] = ()

    def plus(self, added_BT: Tensor, mixed_T: Tensor | None = None) -> "NetworkOutput":
        """Returns the same with something added to every row's logits.

        Args:
            added_BT: Of each row.
            mixed_T: Bool, which logits stay; others are replaced. None: all stay.
        """

        def plus(logits_BT: Tensor) -> Tensor:
            kept = logits_BT if mixed_T is None else torch.where(mixed_T, logits_BT, 0.0)
            return kept + added_BT

        variants_VBT = None if self.variants_VBT is None else plus(self.variants_VBT)
        return self._replace(logits_BT=plus(self.logits_BT), variants_VBT=variants_VBT)


class Level(nn.Module):
    """A mixture, with names for its gates and experts.

    Args:
        mixture: The layer.
        gate_names: One per gate.
        expert_names: One per expert.
    """

    def __init__(
        self, mixture: MultiGateMixture, gate_names: Sequence[str], expert_names: Sequence[str]
    ) -> None:
        super().__init__()
        assert len(gate_names) == mixture.num_gates
        assert len(expert_names) == mixture.num_experts
        self.mixture = mixture
        self.gate_names = tuple(gate_names)
        self.expert_names = tuple(expert_names)

    def named_parts(self, names: Names) -> list[Part]:
        """Names gates and experts."""
        own = {"gates": self.gate_names, "experts": self.expert_names}
        return [Part("mixture", ("mixture",), {**names, **own})]


class ImputationTowers(nn.ModuleDict):
    """Towers beside those of some tasks, which impute what did not come to happen (ESCM²).

    Args:
        towers: By the column of their task.
    """

    def __init__(self, towers: Mapping[int, nn.Module]) -> None:
        super().__init__({str(task): tower for task, tower in towers.items()})

    def named_parts(self, names: Names) -> list[Part]:
        """Says whose each tower is."""
        read = without(names, "logits")  # theirs are no task's, and move with no base rate
        return [Part(t, (Entry("tasks", named(names, "tasks", int(t))),), read) for t in self]

    def forward(self, inputs: Sequence[Tensor]) -> dict[int, Tensor]:
        """Computes each column's `logit_B` from the input of its task's tower."""
        return {int(task): tower(inputs[int(task)]) for task, tower in self.items()}


class NetworkDomains(nn.Module):
    """Domains that a network knows, and the tasks of each.

    Args:
        names: Of the M domains.
        tasks: Names, in the order of the towers.
        asked: Bool [M + 1, T], the tasks that exist; last in other domains. None: all do.
        own_gates: Whether each domain has gates of its own.
    """

    asked_NT: Tensor | None

    def __init__(
        self,
        names: Sequence[str],
        tasks: Sequence[str],
        asked: Tensor | None = None,
        *,
        own_gates: bool = True,
    ) -> None:
        super().__init__()
        self.names, self.tasks, self.own_gates = tuple(names), tuple(tasks), own_gates
        # A setting, not state: it comes back with the config and the encoder
        self.register_buffer("asked_NT", asked, persistent=False)

    def of(self, x: Tensor | Inputs, domains_B: Tensor) -> Inputs:
        """Sorts the rows of a batch by their domain."""
        return Inputs.of(x).in_domains(domains_B, len(self.names))

    def read(
        self, rows: Inputs, sources: Sequence[Tensor | Inputs], gate_names: Sequence[str]
    ) -> list[Inputs]:
        """Returns sources of a level, which say what the rows ask of its gates.

        Args:
            rows: With their domains.
            sources: What the level reads of them.
            gate_names: A task's, or another one for a gate that is asked everywhere.
        """
        asked_BG = self._asked(rows, gate_names)
        return [rows.asking(x, asked_BG, self.own_gates) for x in sources]

    def _asked(self, rows: Inputs, gate_names: Sequence[str]) -> Tensor | None:
        """The gates of tasks that exist, and shared ones."""
        if self.asked_NT is None:
            return None
        assert rows.domains_B is not None, "rows have domains"
        asked_BT = self.asked_NT[rows.domains_B.long()]
        everywhere_B = torch.ones_like(asked_BT[:, 0])
        columns = [
            # Of two gates called alike the first one is the task's
            asked_BT[:, self.tasks.index(name)]
            if name in self.tasks and name not in gate_names[:g]
            else everywhere_B
            for g, name in enumerate(gate_names)
        ]
        return torch.stack(columns, dim=1)


class LevelMixer(Protocol):
    """Runs a network's levels in its stead, for callers that need more of each level's output."""

    def __call__(
        self,
        network: "MixtureNetwork",
        number: int,
        sources: Sequence[Tensor | Inputs],
        rows: Inputs | None,
    ) -> MixtureOutput:
        """Runs the level of a number, from 0 on, on its sources; gates' weights come with it.

        `rows` are those of the batch with their domains; None: they have none.
        """
        ...

    @property
    def variants_VBT(self) -> Tensor | None:
        """Logits that it found meanwhile, of networks that lack something."""
        ...


class MixtureNetwork(nn.Module):
    """Levels of mixtures, then towers: every model of this library is a setting of it.

    The outputs of a level's gates are the sources of the next level; tower t reads gate
    `task_gates[t]` of the last level.

    Args:
        levels: The first level has one source, x; level j + 1 has as many as level j has gates.
        towers: One per task.
        task_gates: For each task, the gate of the last level that its tower reads.
        input_dropout: Probability that an entry of x is zeroed while training.
        learned_gates: False where the gates are constants, of which nothing is worth recording.

    Attributes:
        inputs: What the ranker makes of dense columns before `forward`, kept here to be trained,
            averaged and stored with the rest; None: they are read as they are.
        sequences: What the ranker makes of events before `forward`; kept here likewise; or None.
        interaction: What the ranker adds to the logits, of embeddings as they were looked up; kept
            here likewise; or None.
        crossing: What levels read x through; None: they read it as it is.
        transfer: What lets towers read those of tasks before theirs; None: they stand alone.
        imputation: Towers of tasks with `counterfactual: dr`, used while training; or None.
        traces_inputs: Whether x takes part in every backward pass, though nothing may want its
            gradient: ranks of which some hold nothing but frozen experts exchange the same then.
        bias_tower: What the ranker gives some inputs to instead of `forward`, and whose logits it
            adds; or None.
        requests: What the ranker makes both parts of rows of requests by; None: rows have none.
        domains: Which domains rows may be of, where these have gates of their own; or None.
    """

    levels: Sequence[Level]  # an `nn.ModuleList`
    inputs: InputLayers | None
    sequences: SequenceInputs | None
    interaction: Products | None
    crossing: Interaction | None
    transfer: AdaptiveTransfer | BayesianTransfer | None
    imputation: ImputationTowers | None
    bias_tower: BiasTower | None
    requests: RequestInputs | None
    domains: NetworkDomains | None

    def __init__(
        self,
        levels: Sequence[Level],
        towers: TaskTowers,
        task_gates: Sequence[int],
        *,
        input_dropout: float = 0.0,
        learned_gates: bool = True,
    ) -> None:
        super().__init__()
        assert len(task_gates) == len(towers)
        self.levels = cast(Any, nn.ModuleList(levels))
        self.towers = towers
        self.task_gates = tuple(task_gates)
        self.input_dropout = input_dropout
        self.learned_gates = learned_gates
        self.traces_inputs = False
        self.inputs = self.sequences = self.requests = None
        self.interaction = self.crossing = self.transfer = self.imputation = None
        self.domains = self.bias_tower = None

    def named_parts(self, names: Names) -> list[Part]:
        """Names the inputs that each part reads, and the outputs that it has.

        Args:
            names: Of `tasks` and `domains`; of `inputs`, and of these the `numbers` and
                `embeddings`; what is `added` to them for the first level; `displayed`, of the bias
                tower.
        """
        of_rows = enumerate(self.towers.columns.of_rows)
        logits = [(named(names, "tasks", t), i) for t, own in of_rows for i in range(len(own))]
        plain = {**without(names, "inputs"), "logits": logits}
        found = [Part(child, (child,), plain) for child in ("towers", "inputs", "sequences",
                 "transfer", "imputation") if getattr(self, child) is not None]  # fmt: skip
        for child in ("crossing", "interaction"):
            module: Interaction | None = getattr(self, child)
            if module is not None:
                read = _reading(plain, names, [module.reads])
                found.append(Part(child, ("interaction", child), read))
        if self.bias_tower is not None:
            own = _reading(plain, names, ["displayed"])
            found.append(Part("bias_tower", (Entry("parts", "bias"),), own))
        for j in range(len(self.levels)):
            read = _reading(plain, names, [] if j else ["inputs", "added"])
            found.append(Part(f"levels.{j}", (Entry("levels", j),), read))
        return found

    def bound(self, budget: int | None) -> None:
        """Bounds how many experts of each level one row computes (`MultiGateMixture.bound`).

        Args:
            budget: At most so many; None: as the gates were trained.

        Raises:
            ValueError: The gates of a level do not go with the budget.
        """
        for number, level in enumerate(self.levels, start=1):
            try:
                level.mixture.bound(budget)
            except ValueError as error:
                raise ValueError(
                    f"score.budget is {budget}, but level {number} has {error}, or remove "
                    "score.budget"
                ) from None

    @property
    def width(self) -> int:
        """Width of what towers read."""
        width = self.levels[-1].mixture.output_dim
        assert width is not None, "build_experts asks for it"
        return width

    @property
    def of_requests(self) -> RequestInputs:
        """Inputs that make both parts of rows of requests, where the encoder has such."""
        assert self.requests is not None, "the encoder of this network has requests"
        return self.requests

    @property
    def takes_requests(self) -> bool:
        """Whether `forward` takes rows of requests in two parts; else it needs whole rows."""
        drops = self.input_dropout > 0 and self.training
        return self.crossing is None and not drops and not self.traces_inputs

    def forward(
        self,
        x_BD: Tensor | Inputs,
        return_gates: bool = False,
        *,
        domains_B: Tensor | None = None,
        mixer: LevelMixer | None = None,
    ) -> NetworkOutput:
        """Computes every task's logits.

        Args:
            x_BD: Dense features, as `inputs` returns them, and embeddings, side by side; or rows of
                requests, where `takes_requests`.
            return_gates: Also record what the gates did.
            domains_B: Number of each row's domain, int32, where there are domains.
            mixer: Runs each level in its place; None: levels run as they are.

        Returns:
            Logits, auxiliary losses and, if asked for, gate records.

        Raises:
            ValueError: There are domains, and those of the rows did not come; or the other way.
        """
        x = self._prepared(x_BD) if isinstance(x_BD, Tensor) else x_BD
        rows = self.with_domains(x, domains_B)
        sources: Sequence[Any] = [x]
        mixes: Sequence[Tensor] | Tensor | Unmixed = ()
        losses: dict[str, Tensor] = {}
        gates: list[GateRecord] = []
        dropped: list[Tensor] = []
        for number, level in enumerate(self.levels, start=1):
            records = return_gates and self.learned_gates
            read = sources if rows is None else self.read(level, sources, rows)
            if mixer is None:
                mix = number < len(self.levels) or not self.towers_mix(level)
                output = level.mixture(read, return_gates=records, mix=mix)
            else:
                output = mixer(self, number - 1, read, rows)
            if output.unmixed is None:
                mixes, sources = output.out_BGO, output.out_BGO.unbind(1)
            else:
                mixes, sources = output.unmixed, ()
            losses |= {f"level{number}.{name}": x for name, x in output.auxiliary_losses.items()}
            if output.dropped is not None:
                dropped.append(output.dropped)
            if records and output.gate_weights_BGE is not None:
                gates.append(self._record(number, output, read, rows))
        logits_BT, imputed = self.logits_of(mixes, rows), None
        if self.imputation is not None and self.training:
            imputed = self.imputation([sources[g] for g in self.task_gates])
        return NetworkOutput(
            logits_BT,
            losses,
            gates,
            torch.stack(dropped).sum() if dropped else None,
            imputed,
            variants_VBT=None if mixer is None else mixer.variants_VBT,
            label_losses=() if self.transfer is None else self.transfer.label_losses,
        )

    @property
    def is_silent(self) -> bool:
        """Whether levels and towers say the same of every row, as before they are trained."""
        return self.transfer is None and self.domains is None and self.towers.are_silent

    def silent_output(self, dense_BF: Tensor) -> NetworkOutput:
        """Returns what `forward` does where the network `is_silent`; levels do not run.

        Args:
            dense_BF: Dense features of the rows, of which only the number and the device count.
        """
        inputs = [dense_BF.new_zeros(1, self.width)] * len(self.towers)
        return NetworkOutput(self.towers(inputs).expand(len(dense_BF), -1), {}, [])

    def _prepared(self, x_BD: Tensor) -> Tensor:
        """Prepares the levels' input from whole rows."""
        if self.input_dropout and self.training:
            x_BD = fast_dropout(x_BD, self.input_dropout, training=True)
        if self.crossing is not None:
            x_BD = self.crossing(x_BD)
        if self.traces_inputs and self.training and not x_BD.requires_grad:
            x_BD = x_BD.detach().requires_grad_()
        return x_BD

    def with_domains(self, x: Tensor | Inputs, domains_B: Tensor | None) -> Inputs | None:
        """Sorts rows by their domain; None where there are no domains.

        Args:
            x: The rows.
            domains_B: Number of each row's domain, int32.

        Raises:
            ValueError: There are domains, and those of the rows did not come; or the other way.
        """
        if (self.domains is None) != (domains_B is None):
            came = "None" if domains_B is None else "some"
            raise ValueError(
                f"domains_B: expected {'none' if self.domains is None else 'one of each row'}, as "
                f"the network has {'no ' if self.domains is None else ''}domains, got {came}"
            )
        return None if self.domains is None or domains_B is None else self.domains.of(x, domains_B)

    def read(
        self, level: Level, sources: Sequence[Tensor | Inputs], rows: Inputs | None
    ) -> Sequence[Any]:
        """Returns the sources of a level, with the gates that rows of each domain ask."""
        if self.domains is None or rows is None:
            return sources
        return self.domains.read(rows, sources, level.gate_names)

    def _record(
        self, number: int, output: MixtureOutput, read: Sequence[Any], rows: Inputs | None
    ) -> GateRecord:
        """Records what the gates of a level, numbered from 1, did with a batch."""
        level = self.levels[number - 1]
        assert output.gate_weights_BGE is not None
        return GateRecord(
            level=number,
            gate_names=level.gate_names,
            expert_names=level.expert_names,
            weights_BGE=output.gate_weights_BGE.detach(),
            visibility_GE=level.mixture.visibility_GE,
            wanted_BGE=output.gates_wanted_BGE,
            asked_BG=None if rows is None else read[0].asked_BG,
            domains_B=None if rows is None else rows.domains_B,
            domain_names=() if self.domains is None else self.domains.names,
        )

    def towers_mix(self, level: Level) -> bool:
        """Returns whether nobody but the towers reads what the gates of the last level mix."""
        each = self.task_gates == tuple(range(level.mixture.num_gates))
        imputes = self.imputation is not None and self.training
        own = self.towers.of_domains
        own |= type(self.towers).forward is not TaskTowers.forward  # which may read mixes alone
        if not each or imputes or own or self.transfer is not None:
            return False
        return not is_watched(level.mixture, self.towers)

    def logits_of(
        self, mixes: Sequence[Tensor] | Tensor | Unmixed, rows: Inputs | None = None
    ) -> Tensor:
        """Computes every task's logits of what the gates of the last level mixed.

        Args:
            mixes: `mix_BO` of each gate, or one `mix_BGO`, made or not.
            rows: With their domains, where towers are a domain's own.
        """
        if isinstance(mixes, Unmixed):
            return self.towers(mixes)
        own = self.towers.of_domains
        if isinstance(mixes, Tensor):
            each = self.task_gates == tuple(range(mixes.shape[1]))
            plain = type(self.towers).forward is TaskTowers.forward
            if self.transfer is None and each and plain and not own:
                return self.towers(mixes)  # each task has a gate
            mixes = mixes.unbind(1)
        read = [mixes[g] for g in self.task_gates]
        if own:
            return self.towers.in_domains(read, rows)
        return self.towers(read) if self.transfer is None else self.transfer(self.towers, read)


def _reading(plain: Names, names: Names, kinds: Sequence[str]) -> Names:
    """The names, with inputs of these kinds as far as there are any."""
    read = [name for kind in kinds for name in names.get(kind, ())]
    return {**plain, "inputs": read} if kinds and kinds[0] in names else plain

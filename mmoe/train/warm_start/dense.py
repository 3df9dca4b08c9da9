"""Brings the network of an earlier run, and Adam's moments, into this rank's new one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.parallel.sharded_tensors import Shard, lie_in_places, spread_out, taken_from
from mmoe.train.warm_start.earlier import EarlierRun, model_difference
from mmoe.train.warm_start.grow import fits, moved, moved_moments
from mmoe.train.warm_start.places import NEW, TensorSource
from mmoe.train.warm_start.rates import rate_shifts, shift_logits
from mmoe.train.warm_start.sources import own_sources
from mmoe.train.warm_start.stored import Stored


@dataclass(frozen=True)
class DenseTransfer:
    """Copies an earlier run's network into a new one, tensor by tensor.

    One earlier tensor is in memory at a time. Of experts that are spread over ranks a rank takes
    its own out of it.

    Attributes:
        sources: Of the whole tensors.
        layout: This rank's shards of those that lie on several ranks.
        earlier: Where they come from.
        config: Of the new run.
    """

    sources: Mapping[str, TensorSource]
    layout: Mapping[str, Sequence[Shard]]
    earlier: EarlierRun
    config: RunConfig

    def check(self, network: nn.Module, old: Stored) -> None:
        """Refuses an earlier network whose tensors do not fit, whole or sharded here.

        Raises:
            ValueError: It is not there, or has another shape.
        """
        for name, own in network.state_dict().items():
            origin = self._origin(name)
            if origin is None:
                continue
            shape, there = self._whole_shape(name, own), old.shape(origin)
            if there is None or not fits(shape, there, self.sources[name]):
                what = "does not exist" if there is None else f"has shape {list(there)}"
                before, now = self.earlier.config.model, self.config.model
                key = model_difference(before.model_dump(), now.model_dump())
                raise ValueError(
                    f"--warm-start {self.earlier.path}: tensor {origin!r} {what} there, but "
                    f"{list(shape)} is needed here{f' ({key})' if key else ''}; keep the model's "
                    "sizes, or train without --warm-start"
                )

    def check_frozen(self, frozen: Mapping[str, str], domains: Sequence[str]) -> None:
        """Refuses parts that are to stay as they were, and were not, or not all of them.

        Args:
            frozen: Tensors, and the part of `training.freeze` that each belongs to.
            domains: Of the new run.

        Raises:
            ValueError: Names the part, and what is new in it.
        """
        for name in sorted(frozen):
            source = self.sources.get(name)
            if source is None:
                continue  # a constant
            new = any((place == NEW).any() for place in source.places.values())
            if source.name is None or new:
                what, mend = self._what_is_new(source, domains)
                raise ValueError(
                    f"training.freeze: {frozen[name]} {what} --warm-start {self.earlier.path}, and "
                    f"those would stay as they were drawn; {mend}"
                )
        shifts = rate_shifts(self.earlier.config, self.config)
        for number, task in enumerate(self.config.tasks):
            if task.name in shifts and f"towers.{number}.logit.bias" in frozen:
                raise ValueError(
                    f"training.freeze: towers.{task.name} is to stay, but the task's "
                    "negative_sampling_rate is another than there, which moves its logit; keep it"
                )

    def _what_is_new(self, source: TensorSource, domains: Sequence[str]) -> tuple[str, str]:
        """What a part has that the earlier network had not, and what to do about it."""
        leave = "leave it out of training.freeze"
        if source.name is None:
            return "has weights that are not in", leave
        dim, there = source.domain_dim, self.earlier.encoder.domains
        if dim is not None and there is not None and NEW in source.places[dim]:
            names = [name for name in domains if name not in there.names]
            return f"has weights for each domain, and for {', '.join(names)} none in", leave
        had = {task.name for task in self.earlier.config.tasks}
        names = [task.name for task in self.config.tasks if task.name not in had]
        if not names:
            return "has more inputs than in", leave
        what = f"has weights for each task, and for {', '.join(names)} none in"
        return what, f"{leave}, or add no task"

    def copy(self, network: nn.Module, old: Stored, only: Collection[str] | None = None) -> None:
        """Fills every tensor that has an origin; what is new in it keeps its value.

        Args:
            network: This rank's part; passed `check`.
            old: The earlier network.
            only: Names of frozen tensors, whose logits do not move; None: all tensors.
        """
        tensors, mine = network.state_dict(), own_sources(self.sources, self.layout)
        for name, own in tensors.items():
            origin = self._origin(name)
            if origin is not None and (only is None or name in only):
                own.copy_(self._moved(name, own, old.read(origin), mine[name]))
        if only is not None:
            return
        tasks = [task.name for task in self.config.tasks]
        shift_logits(tensors, tasks, rate_shifts(self.earlier.config, self.config))

    def not_carried(self, old: Stored) -> list[str]:
        """Lists tensors of this rank that the earlier network has as well, and whose numbers there
        no tensor takes over, under this name or another.
        """
        taken = {source.name for source in self.sources.values() if source.carries}
        return [
            name
            for name, source in self.sources.items()
            if name in old.names and name not in taken and not source.carries
        ]

    def moments(self, network: nn.Module, old: Stored) -> tuple[dict[str, Tensor], list[str]]:
        """Returns the optimizer's moments, `PARAMETER/MOMENT`, where there is an origin.

        Beside them the parameters whose moments do not fit, which begin as those of a new one.
        """
        mine = own_sources(self.sources, self.layout)
        by_parameter: dict[str, dict[str, str]] = {}
        for full_name in old.names:
            name, _, key = full_name.rpartition("/")
            by_parameter.setdefault(name, {})[key] = full_name
        flat, left = {}, []
        for name, own in network.named_parameters():
            names = by_parameter.get(self._origin(name) or "", {})
            if not (own.requires_grad and names):
                continue  # no optimizer has it, or had it
            shapes = [old.shape(full_name) or () for full_name in names.values()]
            whole = self._whole_shape(name, own)
            if not all(not shape or fits(whole, shape, self.sources[name]) for shape in shapes):
                left.append(name)
                continue
            found = {key: old.read(full_name) for key, full_name in names.items()}
            for key, moment in self._moved_moments(name, own, found, mine[name]).items():
                flat[f"{name}/{key}"] = moment
        return flat, left

    def _moved(self, name: str, own: Tensor, old: Tensor, source: TensorSource) -> Tensor:
        """Values of a tensor; of slices, what this rank has of the whole experts'."""
        shards = self.layout.get(name, ())
        if not lie_in_places(shards):
            return moved(own, old, source)
        whole = moved(spread_out(own, shards), old, self.sources[name])
        return taken_from(whole, own, shards)

    def _moved_moments(
        self, name: str, own: Tensor, found: Mapping[str, Tensor], source: TensorSource
    ) -> dict[str, Tensor]:
        """Moments of a parameter, likewise."""
        shards = self.layout.get(name, ())
        if not lie_in_places(shards):
            return moved_moments(own, found, source)
        whole = moved_moments(spread_out(own, shards), found, self.sources[name])
        return {
            key: taken_from(moment, own, shards) if moment.dim() else moment
            for key, moment in whole.items()
        }

    def _origin(self, name: str) -> str | None:
        """The tensor that it was."""
        source = self.sources.get(name)
        return None if source is None else source.name

    def _whole_shape(self, name: str, own: Tensor) -> tuple[int, ...]:
        """Of the tensor that this rank may hold shards of."""
        return self.layout[name][0].shape if name in self.layout else tuple(own.shape)

"""Writer of one checkpoint for `torch.distributed.checkpoint`: safetensors and JSON, no pickle."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Size, Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from mmoe.checkpoint.folder import CheckpointFolder, file_name
from mmoe.parallel.sharded_tensors import Shard
from mmoe.run.atomic_files import flush
from mmoe.run.folder_claim import STEP_FILE, remove_files


class ShardPlanner(DefaultSavePlanner):
    """Plans `{"STATE/NAME": [Shard, …]}`; DCP leaves out what two ranks have, and finds holes."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Plans what this rank writes."""
        self.tensors: dict[MetadataIndex, Tensor] = {}
        items = []
        for name, shards in self.state_dict.items():
            for shard in shards:
                # An empty shard would be taken for the one that begins where it does
                if shard.tensor.numel() or not any(shard.offsets):
                    item = _write_item(name, shard)
                    items.append(item)
                    self.tensors[item.index] = shard.tensor
        self.plan = SavePlan(items)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Decides which rank writes what.

        Raises:
            ValueError: Shards of a tensor overlap or leave a hole.
        """
        if len(all_plans) > 1:
            return super().create_global_plan(all_plans)
        # DCP looks for holes only where there are two
        plans, metadata = super().create_global_plan([*all_plans, SavePlan([])])
        return plans[:1], metadata

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Returns the tensor to be written."""
        return self.tensors[write_item.index].detach().cpu().contiguous()


class StepWriter(HuggingFaceStorageWriter):
    """Writes the files of one step, and gives them their name when all ranks are done.

    The format is that of DCP's own writer, and its reader reads it. But that one makes one string
    of a whole file before it writes (1 s for 256 MiB in which no other thread runs), and has no
    place for two shards of a tensor in a rank's file: here they go into two files.

    Args:
        folder: Where the step goes.
        step: Its number.
        state: Content of state.json.
        best: See `CheckpointFolder.publish`.
        keep: See there.
    """

    def __init__(
        self, folder: CheckpointFolder, step: int, state: str, *, best: bool, keep: int
    ) -> None:
        super().__init__(str(folder.path), save_distributed=True)
        self.folder, self.step, self.state = folder, step, state
        self.best, self.keep = best, keep
        self.temporary: Path | None = None  # on rank 0

    @property
    def what(self) -> str:
        """Names the checkpoint, for messages."""
        return f"{self.folder.path}: the checkpoint of step {self.step}"

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Makes the folder and tells each rank its files; on rank 0."""
        self.temporary = self.folder.begin(self.step)
        files = _files_of_ranks(plans)
        return [
            replace(plan, storage_data=(str(self.temporary), own))
            for plan, own in zip(plans, files, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's files."""
        assert isinstance(planner, ShardPlanner)
        folder, files = Path(plan.storage_data[0]), plan.storage_data[1]
        if files and not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} was made by rank 0 and is not there for this one; put the run on a file "
                "system that all machines share"
            )
        for name, items in files.items():
            tensors = {_plain_name(item): planner.resolve_data(item) for item in items}
            offsets = {
                _plain_name(item): {"saved_offsets": list(item.index.offset)} for item in items
            }
            # Where all tensors are whole there is nothing to say
            notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
            notes = {"format": "pt", **(notes if any(map(_is_shard, items)) else {})}
            try:
                save_file(tensors, folder / name, notes)
            except SafetensorError as error:  # what it makes of a full disk
                raise OSError(str(error)) from error
            flush(folder / name)
        written: Future[list[WriteResult]] = Future()
        written.set_result([])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publishes the step, without DCP's pickled `metadata`; on rank 0."""
        assert self.temporary is not None, "prepare_global_plan comes first"
        self.folder.publish(self.temporary, self.state, best=self.best, keep=self.keep)

    def give_up(self) -> None:
        """Removes what was written."""
        if self.temporary is not None:
            remove_files(self.temporary, STEP_FILE)


def _write_item(name: str, shard: Shard) -> WriteItem:
    sizes, offsets, shape = shard.tensor.size(), Size(shard.offsets), Size(shard.shape)
    return WriteItem(
        index=MetadataIndex(name, offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets, sizes),
            properties=TensorProperties(dtype=shard.tensor.dtype),
            size=shape,
        ),
    )


def _is_shard(item: WriteItem) -> bool:
    data = item.tensor_data
    return data is not None and data.chunk.sizes != data.size


def _plain_name(item: WriteItem) -> str:
    """`model/network.gate.weight` → `network.gate.weight`."""
    return item.index.fqn.partition("/")[2]


def _files_of_ranks(plans: Sequence[SavePlan]) -> list[dict[str, list[WriteItem]]]:
    """For each rank its files; numbered over all ranks, so that a missing one is noticed."""
    grouped = [_by_file(plan.items) for plan in plans]
    total = Counter(state for files in grouped for state, _ in files)
    number: Counter[str] = Counter()
    named: list[dict[str, list[WriteItem]]] = []
    for files in grouped:
        named.append({})
        for (state, _), items in files.items():
            number[state] += 1
            named[-1][file_name(state, number[state], total[state])] = items
    return named


def _by_file(items: Sequence[WriteItem]) -> dict[tuple[str, int], list[WriteItem]]:
    """Groups items into files: by state, and by which of this rank's shards of its tensor it is."""
    seen: Counter[str] = Counter()
    files: dict[tuple[str, int], list[WriteItem]] = {}
    for item in items:
        state = item.index.fqn.partition("/")[0]
        files.setdefault((state, seen[item.index.fqn]), []).append(item)
        seen[item.index.fqn] += 1
    return files

"""What four gloo ranks wrote is read in any cutting, or refused with one message.

The processes run `checkpoint_world.py`.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, load

from mmoe.checkpoint.folder import CheckpointFolder, StoredTensors
from mmoe.parallel import ensure_process_group
from mmoe.parallel.sharded_tensors import Shard

WORLD = Path(__file__).with_name("checkpoint_world.py")
# A world that hangs ends itself before.
PATIENCE = 200

_spec = importlib.util.spec_from_file_location("checkpoint_world", WORLD)
assert _spec is not None and _spec.loader is not None
of_world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(of_world)


@pytest.fixture(scope="module")
def found(tmp_path_factory, repository):
    """What all worlds and processes found, and where."""
    folder = tmp_path_factory.mktemp("worlds")
    (folder / "kills").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error:::mmoe", str(WORLD), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return {"folder": folder, **json.loads((folder / "found.json").read_text())}


@pytest.fixture(scope="module")
def world(found):
    """The folder that four ranks wrote, and what each of them found."""
    codes, reports = found["four"]
    assert codes == [0] * 4
    return CheckpointFolder(found["folder"] / "four" / "checkpoint"), reports


@pytest.fixture
def written(world, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(world[0].path, tmp_path / "checkpoint")
    return CheckpointFolder(tmp_path / "checkpoint")


def same(found, expected):
    return found.dtype == expected.dtype and torch.equal(found, expected)


def test_one_process_reads_all(world, monkeypatch):
    """Saved in the background the numbers are those of the moment of saving; read in blocks."""
    monkeypatch.setattr("mmoe.checkpoint.folder._BLOCK_BYTES", 50)
    folder, _ = world
    for which, salt in (("latest", 4), ("best", 1), ("step-00000002", 2)):
        for found, expected in (
            (folder.model(which), of_world.whole(salt)),
            (folder.training(which), of_world.whole(-salt)),
        ):
            assert found.keys() == expected.keys()
            assert [name for name in expected if not same(found[name], expected[name])] == []


@pytest.mark.parametrize(("ranks", "dim"), [(1, 0), (2, 1), (5, 0), (3, 1)])
def test_any_number_of_ranks_reads_its_pieces(world, ranks, dim):
    """Cut along rows or columns, unevenly: some ranks get nothing of some tensors."""
    stored = world[0].tensors("latest", "model")
    for rank in range(ranks):
        targets, expected = {}, {}
        for name, tensor in of_world.whole(4).items():
            if tensor.dim() <= dim:
                targets[name], expected[name] = torch.empty_like(tensor), tensor
                continue
            size = tensor.shape[dim]
            begin, end = size * rank**2 // ranks**2, size * (rank + 1) ** 2 // ranks**2
            expected[name] = tensor.narrow(dim, begin, end - begin)
            offsets = tuple(begin if d == dim else 0 for d in range(tensor.dim()))
            piece = torch.empty_like(expected[name])
            targets[name] = [Shard(piece, tuple(tensor.shape), offsets)]
        stored.load(targets)
        for name, value in targets.items():
            found = value if isinstance(value, torch.Tensor) else value[0].tensor
            assert same(found, expected[name]), name


def test_pieces_that_are_read_may_lie_apart(world):
    """Experts that a rank holds in another order, as views of one tensor."""
    expected = of_world.whole(4)["experts"]
    own = torch.empty(4, 4, 3)
    order = [5, 0, 3, 2]
    pieces = [Shard(own[n : n + 1], (6, 4, 3), (e, 0, 0)) for n, e in enumerate(order)]
    world[0].tensors("latest", "model").load({"experts": pieces}, all_names=False)
    assert torch.equal(own, expected[order])


def test_only_safetensors_and_json_is_written(world):
    """Of two pieces of a tensor, the second is in a file of its own."""
    folder, _ = world
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "index.json", "step-00000001", "step-00000002", "step-00000004",
    ]  # fmt: skip
    numbered = [f"{n:05d}-of-00006.safetensors" for n in range(1, 7)]
    for step in folder.path.glob("step-*"):
        assert sorted(path.name for path in step.iterdir()) == [
            *(f"model-{n}" for n in numbered), "state.json", *(f"training-{n}" for n in numbered),
        ]  # fmt: skip
    assert json.loads((folder.path / "step-00000002" / "state.json").read_text())["by"] == 0


def test_pieces_that_do_not_fit_are_refused_on_every_rank(world):
    _, found = world
    for what, text in (("hole", "leave a hole"), ("overlap", "overlap")):
        (error,) = {rank[what] for rank in found}
        assert error.startswith("ValueError: ")
        assert "the checkpoint of step 3: cannot be written" in error
        assert text in error and "tensor 'table' of model" in error


def test_a_rank_that_cannot_write_is_named_on_every_rank(world):
    (error,) = {rank["full"] for rank in world[1]}
    assert error.startswith("OSError: ")
    assert "step 3: cannot be written by rank 2: [Errno 28] No space left on device" in error


def test_a_missing_file_is_named(written):
    file = written.step("latest") / "model-00003-of-00006.safetensors"
    file.unlink()
    with pytest.raises(ValueError, match=r"model-00003-of-00006.*no such file, one of the 6 "):
        written.model("latest")
    assert written.model("best"), "the others are whole"


def test_a_truncated_file_is_named(written):
    file = written.step("latest") / "training-00002-of-00006.safetensors"
    for size in (-1, 60, 5, 0):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(ValueError, match=r"training-00002-of-00006.* cannot be read as a che"):
            written.training()


def test_files_of_another_checkpoint_are_noticed(written):
    """Pieces of a tensor that is cut otherwise there."""
    step = written.step("latest")
    shutil.copy(
        step / "model-00003-of-00006.safetensors", step / "model-00001-of-00006.safetensors"
    )
    with pytest.raises(ValueError, match=r"is damaged: pieces of tensor .* are missing"):
        written.model("latest")


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_a_place_of_another_rank_is_damaged(offsets, tmp_path):
    where = json.dumps({"x": {"saved_offsets": offsets}})
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(2, 2)}, file, {"DCP_SHARDING_INFO": where})
    with pytest.raises(ValueError, match=r"model\.safetensors: .* is damaged: tensor 'x' lies at"):
        StoredTensors(tmp_path, "model")


def test_another_model_is_refused_by_name(world):
    stored = world[0].tensors("latest", "model")
    with pytest.raises(ValueError, match=r"the checkpoint has no tensor 'other'"):
        stored.load({"other": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"has a tensor 'columns', the model has none; the config"):
        stored.load({"rows": torch.zeros(10, 6)})
    with pytest.raises(
        ValueError, match=r"'rows' has shape \[10, 6\] in the checkpoint and \[10, 7"
    ):
        stored.load({"rows": [Shard(torch.zeros(1, 7), (10, 7), (0, 0))]}, all_names=False)


def test_a_rank_that_dies_while_it_writes_harms_nothing(found):
    codes, reports = found["dies"]
    assert codes == [0, -9]
    assert reports[0]["error"] is not None
    folder = CheckpointFolder(found["folder"] / "dies" / "checkpoint")
    assert folder.state()["step"] == 1
    assert list(folder.path.glob(".step-*.tmp")), "it was writing"
    folder.remove_strays()
    assert sorted(path.name for path in folder.path.iterdir()) == ["index.json", "step-00000001"]


def test_a_training_state_of_three_ranks_is_restored_on_any_number(found):
    """Experts, tables, their optimizers, the average; random numbers go on, or start anew."""
    for n, (codes, reports) in enumerate(found["states"]):
        assert codes == [0] * (3 - n)
        for report in reports:
            assert (report["step"], report["differs"], report["best"]) == (2, [], True)
    same, *others = (reports for _, reports in found["states"])
    assert [report["random"] for report in same] == [report["after"] for report in same]
    for reports in others:
        for rank, report in enumerate(reports):
            generator = torch.Generator().manual_seed(11 + rank)
            assert report["random"] == torch.rand(3, generator=generator).tolist()


def test_a_process_may_be_killed_at_every_file_operation(found):
    """The step before or this one is whole; a resumed run leaves nothing else."""
    kills = found["kills"]
    assert [kill["code"] for kill in kills] == [-9] * (len(kills) - 1) + [0]
    steps = [kill["step"] for kill in kills]
    assert steps == sorted(steps) and set(steps) == {1, 2} and len(steps) > 10
    for kill in kills:
        assert kill["numbers"] == [kill["step"]]
        assert kill["files"] == ["index.json", f"step-{kill['step']:08d}"]


def test_the_reader_of_torch_reads_the_files(written):
    """It takes all files of a folder."""
    for path in written.step("latest").glob("training-*"):
        path.unlink()
    expected = {n: t for n, t in of_world.whole(4).items() if t.dim()}
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    ensure_process_group()
    load(found, storage_reader=HuggingFaceStorageReader(str(written.step("latest"))))
    assert [name for name in expected if not same(found[name], expected[name])] == []

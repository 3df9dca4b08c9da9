"""`mmoe unshard`: one file that anyone can read."""

import resource

import pytest
import torch
from safetensors.torch import load_file

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.plain_file import unshard
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.parallel.sharded_tensors import Shard
from mmoe.run import RunDirectory

TENSORS = {
    "tables.item": torch.arange(40.0).reshape(10, 4),
    "network.gate": torch.arange(9).reshape(3, 3).bfloat16(),
    "network.flags": torch.tensor([True, False, True]),
    "network.steps": torch.tensor(3),
    "network.empty": torch.zeros(0, 3),
    "network.exact": torch.arange(3, dtype=torch.float64),
}


@pytest.fixture
def run(tmp_path):
    """A run whose table lies in three pieces, in three files; the latest one is all zeros."""
    path = tmp_path / "run"
    (path / "vocabulary").mkdir(parents=True)
    (path / "config.yaml").touch()
    table = TENSORS["tables.item"]
    pieces = [((0, 0), table[:7, :1]), ((0, 1), table[:7, 1:]), ((7, 0), table[7:])]
    shards = [Shard(piece, (10, 4), offsets) for offsets, piece in pieces]
    with CheckpointSaver(CheckpointFolder(path / "checkpoint")) as saver:
        saver.save(1, {**TENSORS, "tables.item": shards}, {}, {}, best=True)
        saver.save(2, {n: torch.zeros_like(t) for n, t in TENSORS.items()}, {}, {}, best=False)
    return RunDirectory.open(path)


def test_pieces_are_joined(run, tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.checkpoint.folder._BLOCK_BYTES", 40)  # smaller than a tensor
    assert len(list((run.checkpoint / "step-00000001").glob("model-*"))) == 3
    for which, factor in (("best", 1), ("latest", 0), ("step-00000001", 1)):
        out = tmp_path / f"{which}.safetensors"
        unshard(run, out, which)
        found = load_file(out)
        assert found.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], (tensor * factor).to(tensor.dtype)), name
    assert not list(tmp_path.glob(".*"))


def test_no_room_is_one_line_and_leaves_nothing(run, tmp_path, mmoe):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
    try:
        code, _, err = mmoe("unshard", run.path, "--output", tmp_path / "out" / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, err.count("\n")) == (2, 1)
    assert "model.safetensors: cannot be written (File too large): it takes " in err
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command(run, tmp_path, mmoe):
    out = tmp_path / "new" / "model.safetensors"
    code, _, err = mmoe("unshard", run.path, "--output", out)
    assert (code, "6 tensors" in err) == (0, True)
    code, _, err = mmoe("unshard", run.path, "--output", out)
    assert (code, "exists already" in err) == (2, True)
    assert mmoe("unshard", run.path, "--output", out, "--overwrite", "--quiet")[0] == 0
    for arguments, text in (
        (["--output", tmp_path / "model.bin"], "end the name in .safetensors"),
        (["--output", tmp_path / "x.safetensors", "--which", "worst"], "no checkpoint 'worst'"),
    ):
        code, _, err = mmoe("unshard", run.path, *arguments)
        assert code == 2
        assert text in err
        assert err.count("\n") == 1


def test_a_damaged_piece_leaves_no_file(run, tmp_path):
    file = run.checkpoint / "step-00000001" / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model-00002-of-00003.safetensors: cannot be read"):
        unshard(run, tmp_path / "model.safetensors")
    assert not list(tmp_path.glob("*.safetensors")) + list(tmp_path.glob(".*"))

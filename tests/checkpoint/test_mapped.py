"""Weights that are pages of a file in the host's cache."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mmoe.checkpoint import plain_file
from mmoe.config import config_from_dict
from mmoe.datasets.rows.splits import Splits
from mmoe.predictor import load_predictor
from mmoe.run import RunDirectory
from mmoe.run.memory import available_bytes
from mmoe.score.scorer import ScoreRequest
from mmoe.train import train_run
from tests.forked import Forked
from tests.mapped_pages import mapped_pages
from tests.own_kinds import own_keys

linux = pytest.mark.skipif(sys.platform != "linux", reason="by Linux's account of memory")
KINDS = {
    "mmoe": {},
    "wide": {"wide": True},
    "ple": {"kind": "ple"},
    "dcn": {"interaction": {"kind": "dcn_v2"}},
}


@pytest.fixture(autouse=True, name="cache")
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module", name="run_of")
def _run_of(funnel_config, train_funnel):
    made: dict[str, RunDirectory] = {}

    def of(kind):
        if kind not in made:
            model = own_keys({**funnel_config["model"], **KINDS[kind]})
            training = {**funnel_config["training"], "epochs": 1}
            made[kind] = train_funnel({**funnel_config, "model": model, "training": training})
        return made[kind]

    return of


def bits(scored):
    return [scored[name].to_numpy().tobytes() for name in scored.column_names]


@pytest.mark.parametrize(
    ("kind", "precision"), [("mmoe", "int8"), ("wide", None), ("ple", "fp16"), ("dcn", None)]
)
def test_scores_are_the_same_bits_as_of_weights_that_are_copied(
    kind, precision, run_of, funnel_table
):
    run = run_of(kind)
    loaded, mapped = (
        ScoreRequest(keep=["row"], table_precision=precision, device="cpu").load(run, mapped=by)
        for by in (False, True)
    )
    assert bits(mapped.score(funnel_table)) == bits(loaded.score(funnel_table))


def test_weights_are_the_files_pages(run_of, cache):
    predictor, *_ = load_predictor(run_of("wide"), mapped=True)
    (file,) = cache.glob("weights/*/model.safetensors")
    first, last = _mapping(file)
    ranker = predictor.ranker
    weights = [*ranker.parameters(), ranker.wide.ids_RT, *ranker.embeddings.stored().values()]
    assert len(weights) > 10
    assert all(first <= weight.data_ptr() < last for weight in weights if weight.numel())
    assert not any(weight.is_meta for weight in weights)


def _mapping(file):
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(file)):
            first, _, last = line.split()[0].partition("-")
            return int(first, 16), int(last, 16)
    raise AssertionError(f"{file} is not mapped")


def test_the_file_is_written_once_and_anew_for_another_checkpoint(run_of, cache, tmp_path):
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(run_of("mmoe").path, run.path)
    load_predictor(run, mapped=True)
    (file,) = cache.glob("weights/*/model.safetensors")
    written = file.stat().st_mtime_ns
    load_predictor(run, mapped=True)
    assert file.stat().st_mtime_ns == written
    (model,) = (run.checkpoint / run_of_best(run)).glob("model*.safetensors")
    os.utime(model, (1, 1))
    load_predictor(run, mapped=True)
    assert len(list(cache.glob("weights/*/model.safetensors"))) == 2
    assert not list(cache.glob("weights/.*.tmp"))


def run_of_best(run):
    return plain_file.CheckpointFolder(run.checkpoint).step("best").name


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(run_of, cache, monkeypatch):
    monkeypatch.setattr("mmoe.run.memory.available_bytes", lambda: 1000)
    says = (
        r"^\S+/run: the model: takes [\d,]+ bytes \(.*\), but this host has 1,000 available .*int8"
    )
    with pytest.raises(ValueError, match=says) as caught:
        load_predictor(run_of("mmoe"), mapped=True)
    assert "\n" not in str(caught.value)
    assert not cache.exists()


@linux
def test_what_is_available_is_known():
    found = available_bytes()
    assert found is not None
    assert 1 << 20 < found < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_control_groups_limit_what_is_available(tmp_path, monkeypatch):
    from mmoe.run import memory

    group = tmp_path / "docker" / "job"
    group.mkdir(parents=True)
    for name, text in (
        ("memory.max", "1000000"),
        ("memory.current", "700000"),
        ("memory.stat", "anon 300000\nfile 400000\nshmem 100000\n"),
    ):
        (group / name).write_text(text)
    monkeypatch.setattr(memory, "_groups", lambda: [group, group.parent])
    assert available_bytes() == 1_000_000 - (700_000 - 400_000 + 100_000)
    (group / "memory.max").write_text("max")
    assert available_bytes() != 600_000


def test_several_processes_or_a_gpu_map_nothing(run_of, monkeypatch):
    with pytest.raises(ValueError, match="not of device cuda"):
        load_predictor(run_of("mmoe"), "cuda", mapped=True)
    monkeypatch.setattr("mmoe.predictor.launched_ranks", lambda: 2)
    with pytest.raises(ValueError, match="not of several ranks"):
        load_predictor(run_of("mmoe"), mapped=True)


def test_a_cache_that_cannot_be_written_is_told(run_of, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MMOE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"the cache cannot be written \(.*set MMOE_CACHE"):
        load_predictor(run_of("mmoe"), mapped=True)


_TOUCH = """
import signal, sys
from mmoe.predictor import load_predictor
from mmoe.run import RunDirectory

predictor, *_ = load_predictor(RunDirectory.open(sys.argv[1]), "cpu", mapped=sys.argv[2] == "1")
for table in predictor.ranker.embeddings.stored().values():
    print(float(table.sum()), flush=True)
signal.pause()
"""


def rollup(process):
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split()[0][:-1]: int(line.split()[1]) * 1024 for line in lines}


@linux
def test_four_processes_have_a_large_table_in_memory_once(tmp_path):
    """200 MB, begun at the same time; every page is touched by all of them."""
    run = big_run(tmp_path)
    mapped = _measured(run, "1", 4)
    copied = _measured(run, "0", 2)
    size = mapped[0][0]["size"]
    assert size > 190 << 20
    for pages, _ in mapped:
        assert pages["rss"] > 0.98 * size
        assert pages["pss"] < 0.3 * size
        assert pages["private"] < 0.02 * size
    pss = [of["Pss"] for _, of in mapped], [of["Pss"] for _, of in copied]
    print("PSS of all, MiB: mapped", [n >> 20 for n in pss[0]], "copied", [n >> 20 for n in pss[1]])
    assert max(pss[0]) < min(pss[1]) - 0.5 * size


def big_run(folder):
    rng = np.random.default_rng(0)
    rows = pa.table({"item": rng.integers(0, 1 << 40, 600), "click": rng.integers(0, 2, 600)})
    item = {"kind": "categorical", "name": "item", "encoding": "hash", "hash_size": 781_000}
    raw = {
        "name": "big",
        "features": [{**item, "dim": 64}],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"num_experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": []}},
        "training": {"epochs": 1, "batch_size": 256, "embedding_backend": "plain"},
    }
    splits = Splits(train=rows[:400], validation=rows[400:500], test=rows[500:], origin="log")
    return train_run(config_from_dict(raw), folder / "run", splits=splits).directory


def _measured(run, mapped, count):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["-c", _TOUCH, str(run.path), mapped]
    going = [Forked(command, environment=environment, number=0) for _ in range(count)]
    try:
        for process in going:
            process.wait_for("\n")
        return [(mapped_pages(p.pid, "weights"), rollup(p.pid)) for p in going]
    finally:
        for process in going:
            process.kill()
        assert len({process.communicate(timeout=60)[0] for process in going}) == 1

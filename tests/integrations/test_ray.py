"""A run on Ray: bits of the local engine, whatever is cut, shuffled, or killed."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.racing.child import descendants
from mmoe.errors import Rejected
from mmoe.integrations.ray import BatchScorer
from mmoe.integrations.ray_engine import RayEngine
from mmoe.integrations.ray_worker import PartWorker
from mmoe.run.console import SilentReporter
from mmoe.score import score_files
from mmoe.score.file_scorer import InputColumns, Output
from mmoe.score.folder import end_folder
from mmoe.score.folder_start import folder_job
from mmoe.score.guard import Guard, ScoreCounts
from mmoe.score.scorer import ScoreRequest
from tests.score.listing import WHOLE, contents, parts

# Processes are started and killed: one test at a time
pytestmark = pytest.mark.xdist_group("ranks")
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="ray is not installed: pip install 'mmoe[ray]'"
)
ROWS_PER_FILE = 2048
# Ray's own name for: processes listen on loopback alone, which is not taken for another address
ON_LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # 15 by default: beside a compiler workers take minutes to start
}


@pytest.fixture(scope="module")
def run(funnel_config, train_funnel):
    return train_funnel({**funnel_config, "training": {**funnel_config["training"], "epochs": 1}})


@pytest.fixture(scope="module")
def log(funnel_table, tmp_path_factory):
    """40,000 rows, in two files."""
    folder = tmp_path_factory.mktemp("ray-log")
    for n in range(2):
        rows = pa.concat_tables([funnel_table] * 5)
        rows = rows.set_column(0, "row", pa.array(range(n * len(rows), (n + 1) * len(rows))))
        pq.write_table(rows, folder / f"{n}.parquet", row_group_size=1000)
    return folder


@pytest.fixture(scope="module")
def whole(run, log, tmp_path_factory):
    """The folder that the local engine writes."""
    out = tmp_path_factory.mktemp("ray-whole") / "out"
    score_files(run, log, out, keep=["row"], rows_per_file=ROWS_PER_FILE)
    return out


@pytest.fixture(scope="module")
def cluster(repository):
    """A cluster of two CPUs on loopback, to which this process is connected."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ON_LOOPBACK.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(repository))  # workers import this mmoe, and the tests
        ray = pytest.importorskip("ray")
        ray.init(
            "local", num_cpus=2, include_dashboard=False, log_to_driver=False,
            object_store_memory=200 << 20,
        )  # fmt: skip
        yield ray
        ray.shutdown()


def scoring_workers(root: int) -> list[int]:
    return [p for p, said in descendants(root).items() if said.startswith("ray::PartWorker")]


@contextmanager
def killing_a_worker(out: Path, root: int):
    """Kills one that scores when three parts are there; gives a list of those that were."""
    killed, ends = [], threading.Event()

    def watch():
        while not ends.is_set() and not killed:
            if len(list((out / "_staging").glob("*.parquet"))) >= 3 and scoring_workers(root):
                killed.append(scoring_workers(root)[0])
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        ends.set()
        thread.join()


class Counting(SilentReporter):
    """Keeps how many rows it was told of."""

    def __init__(self):
        self.rows, self.said = 0, []

    def say(self, text):
        self.said.append(text)

    @contextmanager
    def track(self, what, total, unit, *, done=0):
        self.total = total
        yield self

    def advance(self, amount, note=""):
        self.rows += amount


def command(run, log, out, *more):
    return [sys.executable, "-m", "mmoe", "score", str(run.path), "--input", str(log), "--output",
            str(out), "--keep", "row", "--rows-per-file", str(ROWS_PER_FILE), *more]  # fmt: skip


def environment(repository):
    return {**os.environ, **ON_LOOPBACK, "PYTHONPATH": str(repository)}


def one_line(said: str, words: str) -> None:
    assert len(said.strip().splitlines()) == 1, said
    assert said.startswith("mmoe: error: ") and words in said


# Without a cluster


@pytest.mark.parametrize("height", [1, 977, 16_384])
def test_a_batch_of_any_height_has_the_same_bits(run, log, whole, height):
    scorer = BatchScorer(str(run.path), keep=["row"])
    rows = pq.read_table(log / "0.parquet")[: 300 if height == 1 else None]
    blocks = [rows[first : first + height] for first in range(0, len(rows), height)]
    found = pa.concat_tables(scorer(block) for block in blocks)
    wanted = pq.read_table(whole / parts(whole)[0])
    assert found[: len(wanted)].equals(wanted[: len(found)])
    assert scorer(rows[:0]).schema == found.schema


def test_a_batch_with_all_its_columns(run, log):
    rows = pq.read_table(log / "0.parquet")[:9]
    found = BatchScorer(run.path, tasks=["buy"], fused={"value": "click * price"})(rows)
    assert found.column_names == [*rows.column_names, "pred_buy", "value"]
    assert found.select(rows.column_names).equals(rows)


def test_a_batch_of_no_run(tmp_path):
    with pytest.raises(ValueError, match="there is no such run directory"):
        BatchScorer(tmp_path / "none")


def worker_of(run, log, out) -> tuple[PartWorker, object]:
    request = ScoreRequest(str(log), keep=["row"])
    by = request.provenance(run)
    job = folder_job(run, request, Output(out, rows_per_file=ROWS_PER_FILE), by)
    found = InputColumns.of(request, request.columns(run.config()))
    here = str(Path.cwd())
    return PartWorker(str(run.path), request, found, by, str(out), (), here), job


def test_what_a_worker_writes(run, log, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("os.chdir", lambda folder: None)
    worker, job = worker_of(run, log, tmp_path / "out")
    assert worker.score(None) == ScoreCounts()
    job.start()
    sent = [pickle.loads(pickle.dumps(part)) for part in reversed(job.mine)]  # as Ray does
    answers = [worker.score(part).rows for part in sent]
    assert answers == [part.rows[1] - part.rows[0] for part in sent]
    assert sum(answers) == 40_000
    end_folder(job, Guard([], run.training_columns(), run.predicted()))
    job.store.unlock()
    assert contents(tmp_path / "out") == contents(whole)


def test_what_a_worker_refuses(run, log, tmp_path, monkeypatch):
    worker, job = worker_of(run, log, tmp_path / "out")
    again = replace(worker, by={**worker.by, "the model": "another"})
    assert "was trained while it was read" in again.score(None)
    gone = replace(worker, run=str(tmp_path / "none"))
    assert "there is no such run directory" in gone.score(None)
    elsewhere = replace(worker, folder=str(tmp_path / "none"), output="scores")
    assert "scores: lies below" in elsewhere.score(job.mine[0])
    worker.score(None)
    monkeypatch.setattr(worker.files, "score", lambda files, tracker: {}["a key"])
    with pytest.raises(KeyError):  # a fault of the library is one
        worker.score(job.mine[0])

    def exhausted(files, tracker):
        raise MemoryError

    monkeypatch.setattr(worker.files, "score", exhausted)
    assert "not enough memory in a worker" in worker.score(job.mine[0])


def test_without_ray(run, log, tmp_path, monkeypatch, mmoe):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, said = mmoe(*command(run, log, tmp_path / "out", "--engine", "ray")[3:])
    assert code == 2
    one_line(said, "ray cannot be imported")
    assert "pip install 'mmoe[ray]'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--address", "--workers"])
def test_options_of_ray_alone(run, log, tmp_path, mmoe, option):
    code, _, said = mmoe(*command(run, log, tmp_path / "out", option, "1")[3:])
    assert code == 2
    one_line(said, f"{option} 1: is of --engine ray; say that too")


# On a cluster


@needs_ray
@pytest.mark.parametrize(
    ("height", "shuffled"), [(1, False), (977, False), (977, True), (16_384, True)]
)
def test_a_data_set_of_any_blocks_has_the_same_bits(cluster, run, log, whole, height, shuffled):
    from ray.data import DataContext, read_parquet

    DataContext.get_current().enable_progress_bars = False
    rows = read_parquet(str(log))
    if height == 1:
        rows = rows.limit(200)
    if shuffled:
        rows = rows.random_shuffle(seed=5)
    scored = rows.map_batches(
        BatchScorer,
        fn_constructor_kwargs={"run": str(run.path), "keep": ["row"]},
        batch_format="pyarrow",
        batch_size=height,
        concurrency=1,
    )
    found = pa.concat_tables(cluster.get(scored.to_arrow_refs())).combine_chunks()
    if shuffled:
        assert found["row"].to_pylist() != sorted(found["row"].to_pylist())
    wanted = pa.concat_tables(pq.read_table(whole / name) for name in parts(whole))
    wanted = wanted.take(found["row"])  # a row's number is its place
    assert len(found) == (200 if height == 1 else 40_000)
    assert found.equals(wanted.combine_chunks())


@needs_ray
def test_a_worker_has_the_threads_that_ray_gave_it(cluster):
    class Looks:
        def __init__(self):
            import torch

            from mmoe.process_settings import use_cpus_of_ray

            torch.set_num_threads(7)
            use_cpus_of_ray()

        def threads(self):
            import torch

            return torch.get_num_threads(), pa.cpu_count()

    for cpus in (1, 2):
        actor = cluster.remote(num_cpus=cpus)(Looks).remote()
        assert cluster.get(actor.threads.remote()) == (cpus, cpus)
        cluster.kill(actor)


@needs_ray
def test_what_is_not_as_expected_is_put_aside(cluster, run, log, whole, tmp_path):
    asked = {"keep": ["row"], "rows_per_file": ROWS_PER_FILE, "engine": RayEngine(count=2)}
    with pytest.raises(Rejected, match=r"rows > 1e6 \(4e\+04\)"):
        score_files(run, log, tmp_path / "out", expect=["usual", "rows > 1e6"], **asked)
    assert parts(tmp_path / "out") == []
    asked["engine"] = None  # which publishes what the workers have scored
    assert score_files(run, log, tmp_path / "out", expect=["usual"], resume=True, **asked) == 0
    assert set(parts(tmp_path / "out")) == set(parts(whole))


@needs_ray
def test_the_same_folder_as_the_local_engine(cluster, run, log, whole, tmp_path):
    told = Counting()
    out = tmp_path / "out"
    engine = RayEngine()
    asked = {"keep": ["row"], "rows_per_file": ROWS_PER_FILE, "engine": engine, "reporter": told}
    assert score_files(run, log, out, **asked) == 40_000
    assert contents(out) == contents(whole)
    assert (told.rows, told.total) == (40_000, 40_000)
    assert told.said == [f"40,000 rows scored into {out}", "unseen ids: none"]
    # Nothing is left: no worker is started
    assert score_files(run, log, out, resume=True, **asked) == 0
    with pytest.raises(ValueError, match="holds scores already"):
        score_files(run, log, out, **asked)


@needs_ray
def test_folders_text_and_what_is_asked_for(cluster, run, funnel_table, tmp_path, monkeypatch):
    for day in (1, 2):
        (tmp_path / "log" / f"day={day}").mkdir(parents=True)
        rows = funnel_table[day * 10 : day * 20].drop_columns("tags")
        with_tags = rows.append_column("tags", pa.array([None] * len(rows), pa.string()))
        with_tags.to_pandas().to_csv(tmp_path / "log" / f"day={day}" / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)  # relative paths mean the same to workers
    asked = {"keep": ["day", "row"], "keep_types": True, "tasks": ["buy"],
             "fused": {"value": "click * buy"}, "table_precision": "int8"}  # fmt: skip
    score_files(run, "log", "here", **asked)
    score_files(run, "log", "there", engine=RayEngine(count=2, run=str(run.path)), **asked)
    assert contents(Path("there")) == contents(Path("here"))


@needs_ray
def test_a_killed_worker_is_replaced(cluster, run, log, whole, tmp_path):
    out, told = tmp_path / "out", Counting()
    with killing_a_worker(out, os.getpid()) as killed:
        score_files(
            run, log, out, keep=["row"], rows_per_file=ROWS_PER_FILE, engine=RayEngine(),
            reporter=told,
        )  # fmt: skip
    assert len(killed) == 1
    assert contents(out) == contents(whole)
    assert told.rows == 40_000


@needs_ray
@pytest.mark.parametrize("own_cluster", [False, True])
def test_a_killed_driver_is_gone_on_with(
    cluster, run, log, whole, tmp_path, repository, own_cluster
):
    out = tmp_path / "out"
    address = cluster.get_runtime_context().gcs_address
    where = ["--engine", "ray", *([] if own_cluster else ["--address", address])]
    going = subprocess.Popen(
        command(run, log, out, *where, "--quiet"), env=environment(repository), cwd=tmp_path
    )
    deadline = time.monotonic() + 200
    while len(list((out / "_staging").glob("*.parquet"))) < 3:
        assert going.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    own = scoring_workers(going.pid)
    going.kill()
    going.wait()
    assert parts(out) == [] and not set(WHOLE) & {path.name for path in out.iterdir()}
    while any(Path(f"/proc/{p}").exists() and not _is_zombie(p) for p in own):
        assert time.monotonic() < deadline, "workers of a killed driver go on"
        time.sleep(0.1)
    if own_cluster:  # either engine goes on with what the other began
        score_files(run, log, out, keep=["row"], rows_per_file=ROWS_PER_FILE, resume=True)
    else:
        again = command(run, log, out, *where, "--resume")
        done = subprocess.run(
            again, env=environment(repository), cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stderr.strip().splitlines()) <= 2, done.stderr  # nothing of Ray's
        assert "files were there already" in done.stderr
    assert contents(out) == contents(whole)


def _is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@needs_ray
def test_a_part_that_kills_every_worker(cluster, run, log, whole, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os\n"
        "from mmoe.score.file_scorer import FileScorer\n"
        "scored = FileScorer.score\n"
        "def score(self, files, tracker):\n"
        "    if files[0].part.name.endswith('00001.parquet'):\n"
        "        os._exit(1)\n"
        "    return scored(self, files, tracker)\n"
        "FileScorer.score = score\n"
    )
    monkeypatch.chdir(tmp_path)
    asked = {"keep": ["row"], "rows_per_file": ROWS_PER_FILE}
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"00001.parquet\) ended 3 workers of Ray \(Actor"):
        score_files(run, log, out, engine=RayEngine(imports=["deadly"]), **asked)
    assert parts(out) == []
    score_files(run, log, out, resume=True, engine=RayEngine(), **asked)
    assert contents(out) == contents(whole)


@needs_ray
def test_a_cluster_that_others_hold_is_said(cluster, run, log, tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.integrations.ray_engine._PLACE_SECONDS", 1.0)
    others = [cluster.remote(num_cpus=1)(lambda: time.sleep(600)).remote() for _ in range(2)]
    deadline = time.monotonic() + 60
    while cluster.available_resources().get("CPU", 0):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(
        ValueError, match="no worker was given a CPU in 1 s; the cluster has 0 free"
    ):
        score_files(run, log, tmp_path / "out", engine=RayEngine())
    for task in others:
        cluster.cancel(task, force=True)
    assert parts(tmp_path / "out") == []


@needs_ray
def test_what_is_refused(cluster, run, log, tmp_path, mmoe):
    def refused(words, *more, out="out"):
        given = command(run, log, tmp_path / out, "--engine", "ray", *more)[3:]
        code, _, said = mmoe(*given)
        assert code == 2
        one_line(said, words)
        assert not (tmp_path / out).exists()

    refused("--workers 3: too few resources of Ray: this machine has 2 CPUs", "--workers", "3")
    refused("--workers 0: expected one at least", "--workers", "0")
    refused("there is no column 'nothing', which --keep needs", "--keep", "nothing")
    refused("this process is connected to a cluster already", "--address", "127.0.0.1:1")
    refused("its workers write a file for each input file, into a folder", out="out.parquet")
    if not cluster.cluster_resources().get("GPU"):
        refused("--device cuda: too few resources of Ray: this machine has 0 GPUs, and each of 2",
                "--device", "cuda")  # fmt: skip
    memory = f"memory://{tmp_path.name}"
    with pytest.raises(ValueError, match="is the memory of one process, and workers are others"):
        score_files(run, log, memory, engine=RayEngine())


@needs_ray
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "no cluster of Ray answers there (Connection refused); start one with"),
        ("nowhere", "expected HOST:PORT, or auto"),
        ("ray://127.0.0.1:10001", "expected HOST:PORT, or auto, of a cluster that this machine is"),
    ],
)
def test_an_address_that_is_none(run, log, tmp_path, repository, address, words):
    where = ["--engine", "ray", "--address", address]
    done = subprocess.run(
        command(run, log, tmp_path / "out", *where),
        env=environment(repository), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    one_line(done.stderr, words)
    assert not (tmp_path / "out").exists()


@needs_ray
def test_ray_is_imported_late(repository):
    """Where its processes listen it reads as it is imported: on loopback, for a cluster of ours."""
    said = (
        "import sys; from mmoe.integrations.ray_engine import RayEngine; RayEngine();"
        "assert 'ray' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", said], env=environment(repository))
    assert done.returncode == 0

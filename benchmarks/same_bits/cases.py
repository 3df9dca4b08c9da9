"""What is trained, scored and refused: each case its config, its runs, and their facts."""

import json
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.same_bits.kinds import KINDS, LIKE, raw_config, rows_to_score
from benchmarks.same_bits.trees import ROOT, Tree, facts_of_json, facts_of_run, facts_of_scores

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FEATURES = [
    {"kind": "categorical", "name": "user", "min_count": 3},
    {"kind": "categorical", "name": "item", "encoding": "hash", "hash_size": 64},
    {"kind": "numeric", "name": "price", "log": True, "buckets": 12},
    {"kind": "numeric", "name": "age"},
    {"kind": "list", "name": "tags", "weights": "weights", "pooling": "mean"},
    {
        "kind": "cross", "name": "user_x_item", "columns": ["user", "item"], "encoding": "hash",
        "hash_size": 500,
    },
    {"kind": "datetime", "name": "time", "parts": ["hour", "weekday"]},
]  # fmt: skip
TASKS = [
    {"name": "click", "label": "click"},
    {"name": "buy", "label": "buy", "observed_when": "click"},
    {"name": "watched", "label": "watched", "kind": "regression"},
]
BASE: Mapping[str, Any] = {
    "name": "same-bits", "seed": 1, "data": {"split": {"by": "random"}, "group_column": "user"},
    "features": FEATURES, "tasks": TASKS,
    "model": {
        "embedding_dim": 8, "num_experts": 5, "expert": {"hidden": [24, 16], "dropout": 0.1},
        "tower": {"hidden": [12]},
    },
    "training": {"epochs": 2, "batch_size": 256, "eval_batch_size": 1024},
}  # fmt: skip


class Case(ABC):
    name: str  # on the command line, and of its folder

    @abstractmethod
    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        """Runs it in the empty folder `runs`."""

    def leave(self, tree: Tree, runs: Path) -> None:  # noqa: B027 - most leave nothing
        """Leaves in `runs` what `read_again` reads beside that, when it is recorded."""

    def read_again(self, tree: Tree, recorded: Path, runs: Path) -> dict[str, str]:
        """Reads what another tree left in `recorded`; a fact's name begins with "again"."""
        return {}


@dataclass(frozen=True)
class Trained(Case):
    """A run of a config or recipe, evaluated; where asked for, scored, killed, gone on with."""

    name: str
    settings: Sequence[str] = ()
    recipe: str | None = None
    ranks: int = 1
    features: Sequence[dict[str, Any]] | None = None
    tasks: Sequence[dict[str, Any]] | None = None
    scored: bool = False
    killed: bool = False
    warm: Sequence[str] | None = None  # settings of a run that begins with this one's weights

    def _source(self, tree: Tree, runs: Path) -> list[str]:
        if self.recipe is not None:
            data = DATA / self.recipe.split("-with")[0].split("-group")[0]
            return [self.recipe, *(["--data", str(data)] if data.exists() else [])]
        config = {**BASE, "features": self.features or FEATURES, "tasks": self.tasks or TASKS}
        # YAML holds JSON
        (runs / "config.yaml").write_text(json.dumps(config))
        return [str(runs / "config.yaml"), "--data", str(tree.logs / "log")]

    def _train(self, tree: Tree, runs: Path, out: str, *more: str) -> Path:
        settings = [word for setting in self.settings for word in ("--set", setting)]
        arguments = ["train", *self._source(tree, runs), *settings, "--out", str(runs / out), *more]
        tree.mmoe(*arguments, "--quiet", ranks=self.ranks)
        return runs / out

    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        facts = facts_of_run(self._train(tree, runs, "run"))
        facts |= self._read(tree, runs / "run", runs)
        if self.warm is not None:
            more = [word for setting in self.warm for word in ("--set", setting)]
            warm = self._train(tree, runs, "warm", "--warm-start", str(runs / "run"), *more)
            facts |= {f"warm {name}": value for name, value in facts_of_run(warm).items()}
        return facts

    def _read(self, tree: Tree, run: Path, runs: Path) -> dict[str, str]:
        facts = facts_of_json(tree.mmoe("evaluate", run, "--json", "--quiet"), "evaluate")
        if not self.scored:
            return facts
        for name, options in (("", ()), ("int8 ", ("--table-precision", "int8"))):
            output = runs / f"{name}scores"
            tree.mmoe("score", run, "--input", tree.logs / "score", "--output", output,
                      "--keep", "user", "--quiet", *options)  # fmt: skip
            facts |= {f"{name}{key}": value for key, value in facts_of_scores(output).items()}
        return facts

    def leave(self, tree: Tree, runs: Path) -> None:
        if not self.killed:
            return
        settings = [word for setting in self.settings for word in ("--set", setting)]
        process = tree.start(
            "train", *self._source(tree, runs), *settings, "--out", runs / "killed", "--quiet"
        )
        end = time.monotonic() + 300
        while not (runs / "killed" / "checkpoint" / "index.json").exists():
            assert time.monotonic() < end and process.poll() is None, "it made no checkpoint"
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (runs / "killed" / "metrics.json").exists(), "it ended too soon"

    def read_again(self, tree: Tree, recorded: Path, runs: Path) -> dict[str, str]:
        (runs / "again").mkdir()
        facts = self._read(tree, recorded / "run", runs / "again")
        if self.killed:
            shutil.copytree(recorded / "killed", runs / "killed")
            facts |= facts_of_run(self._train(tree, runs, "killed", "--resume"))
        return {f"again {name}": value for name, value in facts.items()}


@dataclass(frozen=True)
class Backtest(Case):
    name: str = "backtest"

    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        (runs / "config.yaml").write_text(json.dumps(BASE))
        out = runs / "days"
        tree.mmoe("backtest", runs / "config.yaml", "--data", tree.logs / "log", "--column", "time",
                  "--days", "3", "--out", out, "--quiet")  # fmt: skip
        facts = {}
        for run in sorted({file.parents[2] for file in out.rglob("checkpoint/*/*.safetensors")}):
            facts |= {f"{run.name} {name}": value for name, value in facts_of_run(run).items()}
        for file in sorted(out.glob("*.json")):
            if file.name.startswith(("metrics", "backtest", "total")):
                facts |= facts_of_json(file.read_text(), file.name)
        assert facts, "a backtest leaves runs"
        return facts


@dataclass(frozen=True)
class Refusals(Case):
    name: str
    seed: int
    inputs: int

    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        """Today's inputs, whatever the tree has of its own."""
        out = runs / "verdicts.json"
        tree.python("-c", _JUDGE, ROOT / "tests", runs / "inputs", self.seed, self.inputs, out)
        return json.loads(out.read_text())


_JUDGE = """
import json, re, sys, types
from pathlib import Path
tests, folder, seed, inputs, out = sys.argv[1:]
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [tests]
from tests.chaos.cases import judge_inputs
said = judge_inputs(Path(folder), range(int(inputs)), int(seed), lambda text: None)
def plain(text):
    text = re.sub(re.escape(folder) + r"/worker-\\d+", "FOLDER", text)
    text = re.sub(r"(case-\\d+)-\\w+", r"\\1", text)
    return re.sub(r"process \\d+|0x[0-9a-f]+|\\d+ seconds? ago|\\d\\d:\\d\\d(:\\d\\d)?", "N", text)
facts = {f"{v.number} {v.fault} {v.command}": f"{v.verdict}: {plain(v.said)}" for v in said}
Path(out).write_text(json.dumps(facts))
"""


@dataclass(frozen=True)
class OfKind(Case):
    kind: str
    warm: Mapping[str, Any] | None = None  # sections of a run that begins with this one's weights
    freeze: Sequence[str] = ()  # parts of it that stay

    def __post_init__(self) -> None:
        name = f"kind {self.kind}" if self.warm is None else f"kind {self.kind}, then"
        object.__setattr__(self, "name", name)

    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        raw = raw_config(KINDS[self.kind], tree.logs / "kinds")
        facts = self._of(tree, runs, "run", raw)
        if self.warm is not None:
            after = ["--warm-start", runs / "run"]
            after += ["--freeze", *self.freeze] if self.freeze else []
            found = self._of(tree, runs, "warm", {**raw, **self.warm}, *after)
            facts |= {f"warm {name}": value for name, value in found.items()}
        return facts

    def _of(
        self, tree: Tree, runs: Path, out: str, raw: Mapping[str, Any], *more: object
    ) -> dict[str, str]:
        config = runs / f"{out}.yaml"
        config.write_text(json.dumps(raw))  # YAML holds JSON
        tree.mmoe("train", config, "--out", runs / out, "--quiet", *more)
        return facts_of_run(runs / out) | self._read(tree, runs / out, runs / f"{out}.parquet")

    def _read(self, tree: Tree, run: Path, scores: Path) -> dict[str, str]:
        facts = facts_of_json(tree.mmoe("evaluate", run, "--json", "--quiet"), "evaluate")
        rows = rows_to_score(KINDS[self.kind], tree.logs / "kinds")
        tree.mmoe("score", run, "--input", rows, "--output", scores, "--quiet")
        return facts | facts_of_scores(scores)

    def read_again(self, tree: Tree, recorded: Path, runs: Path) -> dict[str, str]:
        facts = self._read(tree, recorded / "run", runs / "again.parquet")
        return {f"again {name}": value for name, value in facts.items()}


@dataclass(frozen=True)
class OnRanks(Case):
    name: str
    parallel: Mapping[str, Any]
    ranks: int = 2
    kind: str = "grouped"
    model: Mapping[str, Any] = field(default_factory=dict)

    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        raw = raw_config(KINDS[self.kind], tree.logs / "kinds", epochs=1)
        raw["model"] |= self.model
        config = runs / "config.yaml"
        config.write_text(json.dumps({**raw, "parallel": self.parallel}))
        tree.mmoe("train", config, "--out", runs / "run", "--quiet", ranks=self.ranks)
        return facts_of_run(runs / "run")


@dataclass(frozen=True)
class AfterTraining(Case):
    name: str = "after training"

    def facts(self, tree: Tree, runs: Path) -> dict[str, str]:
        logs, config, run = tree.logs / "kinds", runs / "config.yaml", runs / "run"
        config.write_text(json.dumps(raw_config(KINDS["plain"], logs, epochs=1)))
        tree.mmoe("train", config, "--out", run, "--quiet")
        said = {
            "explain": tree.mmoe("explain", run, "--features", "--gradients", "--json", "--quiet",
                                 "--out", runs / "explained"),
            "compare": tree.mmoe("compare", config, "--models", "mmoe,shared_bottom", "--seeds",
                                 "2", "--json", "--quiet", "--out", runs / "compared"),
            "tune": tree.mmoe("tune", config, "--trials", "3", "--json", "--quiet",
                              "--out", runs / "tuned"),
        }  # fmt: skip
        facts: dict[str, str] = {}
        for what, text in said.items():
            facts |= facts_of_json(text[text.index("{") :], what)
        for out, more in (("pruned", ()), ("finetuned", ("--finetune-epochs", "1"))):
            tree.mmoe("prune", run, "--experts", "2", "--out", runs / out, "--quiet", *more)
            of_run = facts_of_run(runs / out).items()
            facts |= {f"{out} {name}": value for name, value in of_run}
        return facts | self._guarded(tree, run, runs) | self._programs(tree, run, runs)

    def _guarded(self, tree: Tree, run: Path, runs: Path) -> dict[str, str]:
        facts = {}
        expected = ("usual", "psi(*) < 0.0001", "mean(pred_click) in [0.9, 1.1] of training")
        for number, expectation in enumerate(expected):
            out = runs / f"night-{number}"
            words = ["score", run, "--input", tree.logs / "kinds" / "scored.parquet", "--output",
                     f"{out}/", "--expect", expectation, "--quiet"]  # fmt: skip
            tree.call("mmoe", *words, codes=(0, 3))
            for file in sorted(out.rglob("_summary.json")):
                facts |= facts_of_json(
                    json.dumps(json.loads(file.read_text())),
                    f"guard {number} {file.parent.relative_to(out)}",
                )
        return facts

    def _programs(self, tree: Tree, run: Path, runs: Path) -> dict[str, str]:
        logs, facts = tree.logs / "kinds", {}
        for program, arguments in {
            "loaded": (run, logs / "scored.parquet"),
            "estimator": (logs / "log.parquet",),
            "converted": (),
            "scored_by_ray": (run, logs / "scored.parquet"),
            "scored_by_spark": (run, logs / "scored.parquet"),
        }.items():
            out = runs / f"{program}.json"
            if (package := _NEEDS.get(program)) and find_spec(package) is None:
                continue  # `make engines` has them
            tree.call(program, *arguments, out)
            facts |= facts_of_json(out.read_text(), program)
        return facts


_NEEDS = {"scored_by_ray": "ray", "scored_by_spark": "pyspark"}

_LIKED = {"tasks": [*raw_config(KINDS["plain"], Path())["tasks"], LIKE]}
_MORE_EXPERTS = {**raw_config(KINDS["plain"], Path())["model"], "num_experts": 5}

_ONE_EPOCH = ("training.epochs=1",)
_MANAGED = [{**FEATURES[0], "encoding": "managed", "rows": 200}, *FEATURES[1:]]
_MANAGED[0].pop("min_count")

CASES: Sequence[Case] = [
    Trained("memory", scored=True, killed=True,
            settings=["training.epochs=6", "training.checkpoint_every_steps=7"],
            warm=["model.num_experts=6"]),
    Trained("stream", scored=True, killed=True,
            settings=["data.input=stream", "data.streaming.shuffle_buffer_rows=3000",
                      "data.streaming.chunk_rows=500", "training.epochs=6",
                      "training.checkpoint_every_steps=7"]),
    Trained("lanes", settings=["data.input=stream", "data.streaming.lanes=8",
                               "data.streaming.shuffle_buffer_rows=3000"]),
    Trained("managed", features=_MANAGED, scored=True, warm=[]),
    Trained("managed plain", features=_MANAGED, settings=["training.embedding_backend=plain"]),
    Trained("accumulated", settings=["training.accumulate_batches=3",
                                     "training.gradient_clip=0.5"]),
    Trained("average", settings=["training.ema_decay=0.9", "training.optimizer.schedule=cosine",
                                 "training.optimizer.warmup_steps=5"]),
    Trained("bf16", settings=["training.precision=bf16"]),
    Trained("plain tables", scored=True, settings=["training.embedding_backend=plain"]),
    Trained("time", settings=["data.split={by: time, column: time}"]),
    *(Trained(f"model {kind}", settings=[f"model.kind={kind}"], scored=kind == "ple",
              tasks=TASKS[:2])
      for kind in ("ple", "cgc", "omoe", "shared_bottom", "single_task", "esmm")),
    *(Trained(f"gate {kind}", settings=[f"model.gate={{kind: {kind}}}", *_ONE_EPOCH])
      for kind in ("top_k", "noisy_top_k", "switch", "gshard", "cosine", "sigmoid", "dselect_k",
                   "static")),
    Trained("balanced", settings=["model.gate={kind: top_k, k: 2, balance_loss: 0.1, z_loss: 0.01}",
                                  "model.expert.norm=batch"]),
    *(Trained(f"two ranks, pipeline {pipeline}", ranks=2,
              settings=[f"parallel.pipeline={pipeline}", "model.gate={kind: top_k, k: 2}",
                        "parallel.experts=spread"])
      for pipeline in ("auto", "off")),
    *(Trained(f"{recipe} {seed}", recipe=recipe, settings=[f"seed={seed}", *_ONE_EPOCH])
      for recipe in ("synthetic-funnel", "census-income", "census-income-with-education",
                     "census-income-group2", "hillstrom")
      for seed in (0, 1)),
    Backtest(),
    *map(OfKind, KINDS),
    OfKind("plain", warm={**_LIKED, "model": _MORE_EXPERTS},
           freeze=["experts", "gates", "towers", "tables", "encoder"]),
    OfKind("domains own towers", warm={"seed": 5}),
    OfKind("requests", warm=_LIKED, freeze=["experts", "gates", "towers", "tables", "encoder"]),
    OfKind("ple of two levels", warm={"seed": 5}),
    OnRanks("ranks dense", {"experts": "replicated"}, kind="plain"),
    OnRanks("ranks requests", {"experts": "spread"}, kind="requests top-k"),
    OnRanks("ranks domains", {"experts": "spread"}, kind="domains top-k"),
    OnRanks("ranks sequences", {"experts": "replicated"}, kind="sequence din"),
    OnRanks("ranks sliced", {"experts": "spread", "slices": 2},
            model={"num_experts": 2, "expert": {"hidden": [8, 8], "output_activation": "none"}}),
    OnRanks("ranks shadowed", {"experts": "spread", "shadowed": [1, 3]}),
    OnRanks("ranks gathered", {"experts": "spread", "exchange": "gathered"}),
    OnRanks("ranks in chunks", {"experts": "spread", "chunks": 2, "wire_precision": "bf16"}),
    OnRanks("ranks rebalanced", {"experts": "spread", "rebalance": "epoch"}),
    OnRanks("ranks of two levels", {"experts": "spread", "exchange": "hierarchical",
                                    "host_size": 2}, ranks=4),
    AfterTraining(),
    Refusals("refusals", seed=0, inputs=150),
]  # fmt: skip

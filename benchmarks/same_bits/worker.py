"""Runs commands of whichever mmoe is on the path, one after another, in one process.

Each line that it reads is a JSON list of `mmoe`'s arguments, or of the name of one of the
PROGRAMS below and its arguments; it answers with one line each. No line of this file may need a
module of the tree but `python -m mmoe` and what the tree's users import.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

# What a command prints where it should not must not be taken for an answer
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def main() -> None:
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            code = _run(what, arguments)
        answer = {"code": code, "out": said.getvalue(), "error": wrong.getvalue()[-4_000:]}
        _answers.write(json.dumps(answer) + "\n")
        _answers.flush()


def _run(what: str, arguments: list[str]) -> int:
    try:
        if what == "mmoe":
            sys.argv = ["mmoe", *arguments]
            runpy.run_module("mmoe", run_name="__main__")
        else:
            PROGRAMS[what](*arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


# What no command of `mmoe` shows: the estimator, a loaded model, Ray, Spark, `convert`. Each writes
# its numbers where it is told; what they import is what users do


def loaded(run: str, rows: str, out: str) -> None:
    """The predictions of `mmoe.load` for a table, a DataFrame, dicts and one row at a time."""
    import mmoe

    model, table = mmoe.load(run), pq.read_table(rows)
    some = table.slice(0, 40)
    each = [model.predict([row]) for row in some.slice(0, 5).to_pylist()]
    found = {
        "table": _values(model.predict(table)),
        "frame": _values(model.predict(table.to_pandas())),
        "dicts": _values(model.predict(some.to_pylist())),
        "one by one": [_values(answer) for answer in each],
    }
    _write(out, found)


def estimator(rows: str, out: str) -> None:
    """A fit without a config, its answers, and those of the view of one task."""
    from mmoe import MultiTaskRanker

    frame = pq.read_table(rows).to_pandas()
    labels = frame[["click", "buy"]].assign(buy=frame["buy"].map({0: "no", 1: "yes"}))
    inputs = frame[["item", "group", "price", "user", "scene"]]
    ranker = MultiTaskRanker(epochs=1, batch_size=200, seed=1)
    ranker.fit(inputs[:900], labels[:900])
    buys = ranker.task("buy")
    found = {
        "predict": _values(ranker.predict(inputs[900:])),
        "predict_proba": _values(ranker.predict_proba(inputs[900:])),
        "score": ranker.score(inputs[900:], labels[900:]),
        "view": buys.predict_proba(inputs[900:]).tolist(),  # pyright: ignore - a classifier
    }
    _write(out, found)


def converted(out: str) -> None:
    """An encoder of torch's whose feed-forward parts became mixtures, before and after steps."""
    import torch

    from mmoe.integrations.convert import auxiliary_losses, convert

    found = {}
    for name, settings in {
        "copy": {"num_experts": 4},
        "split": {"num_experts": 4, "init": "split", "gate": "softmax"},
        "fresh": {"num_experts": 4, "init": "fresh", "gate": {"kind": "top_k", "z_loss": 0.1}},
    }.items():
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        network = convert(torch.nn.TransformerEncoder(layer, num_layers=2), **settings)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        x = torch.randn(4, 5, 16)
        losses = []
        for _ in range(3):
            loss = network(x).square().mean() + sum(auxiliary_losses(network).values())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found[name] = [*losses, *network(x).flatten().tolist()]
    _write(out, found)


def scored_by_ray(run: str, rows: str, out: str) -> None:
    import ray  # pyright: ignore[reportMissingImports] - of `make engines`

    from mmoe.integrations.ray import BatchScorer

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:
        data = ray.data.read_parquet(rows)
        made = data.map_batches(
            BatchScorer,
            fn_constructor_kwargs={"run": run},
            batch_size=100,
            batch_format="pyarrow",
            concurrency=1,
        )
        _write(out, {"ray": _sorted(made.to_pandas())})
    finally:
        ray.shutdown()


def scored_by_spark(run: str, rows: str, out: str) -> None:
    from mmoe.integrations import spark

    session = spark.local_session(cores=1)
    try:
        scored = spark.score(session.read.parquet(rows), run, keep=["item"])
        _write(out, {"spark": _sorted(scored.toPandas())})
    finally:
        session.stop()


def _sorted(frame) -> dict:
    names = [name for name in frame.columns if name.startswith("pred_")]
    return {name: np.sort(frame[name].to_numpy()).tolist() for name in names}


def _values(found) -> object:
    if hasattr(found, "to_dict"):
        return {str(name): np.asarray(found[name]).tolist() for name in found.columns}
    return np.asarray(found).tolist() if isinstance(found, np.ndarray) else found


def _write(out: str, found: object) -> None:
    Path(out).write_text(json.dumps(found, default=str))


PROGRAMS = {
    program.__name__: program
    for program in (loaded, estimator, converted, scored_by_ray, scored_by_spark)
}


if __name__ == "__main__":
    main()

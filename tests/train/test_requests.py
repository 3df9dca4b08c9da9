"""Rows of requests are trained, judged and scored as every row by itself."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from mmoe.config import config_from_dict
from mmoe.datasets import encode_labels
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.frames import as_rows
from mmoe.explain.run import explain_run
from mmoe.models.build import build_ranker
from mmoe.parallel import ensure_process_group
from mmoe.predictor import load_predictor
from mmoe.report.explanation import explanation_grids, write_explanation_page
from mmoe.run.directory import RunDirectory
from mmoe.score import score_files
from mmoe.train import train_run
from mmoe.train.evaluate import evaluate_run
from tests.datasets.request_log import SPLIT, log_of_requests, nested_log, write_forms
from tests.needs_kernels import needs_kernels
from tests.ranks import launch
from tests.runs import one_step
from tests.train.request_runs import MODEL, raw_config


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests(200)


@pytest.fixture(name="files", scope="module")
def _files(log, tmp_path_factory):
    return write_forms(log, tmp_path_factory.mktemp("requests"))


@pytest.fixture(name="runs", scope="module")
def _runs(files):
    found = {}
    for form in ("flat", "nested"):
        data = {"path": str(files / f"{form}.parquet"), "split": SPLIT}
        train_run(config_from_dict(raw_config(form, data)), files / f"run-{form}")
        found[form] = RunDirectory(files / f"run-{form}")
    return found


@pytest.fixture(name="run", params=["flat", "nested"])
def _run(request, runs):
    return request.param, runs[request.param]


@pytest.fixture(name="step", scope="module")
def _step(log):
    """Losses, dense gradients and moved tables after rows in batches of some sizes."""

    def compute(sizes, *, flat, backend, model=MODEL, exact=False):
        rate = {"kind": "sgd", "learning_rate": 1.0}
        raw = raw_config(
            "flat", model=model, exact=exact, embedding_backend=backend, embedding_optimizer=rate
        )
        config = config_from_dict(raw)
        encoder = FeatureEncoder.fit(config, log, "log")
        features = encoder.encode(log, "log")
        labels = encode_labels(config, log, "log", training=True)
        data = EncodedData(features=features.flat() if flat else features, labels=labels)
        torch.manual_seed(0)
        ranker = build_ranker(config, encoder).train()
        starts = np.cumsum([0, *sizes])
        batches = [data.batch(slice(a, a + n)) for a, n in zip(starts, sizes, strict=False)]
        return one_step(ranker, batches, config)

    return compute


@pytest.mark.parametrize(
    ("backend", "exact"),
    [("plain", True), pytest.param("torchrec", False, marks=pytest.mark.torchrec)],
)
def test_a_step_has_the_gradients_of_every_row_by_itself(step, backend, exact):
    if backend == "torchrec":
        ensure_process_group()
    expected_losses, expected = step([150], flat=True, backend=backend)
    losses, found = step([70, 0, 30, 1, 49], flat=False, backend=backend, exact=exact)
    assert losses.losses == pytest.approx(expected_losses.losses, abs=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_both_forms_are_one_run_from_files_to_scores(runs, files, log):
    """The same rows in the same order: the same weights."""
    rows, found = {"flat": log, "nested": nested_log(log)}, []
    for form, directory in runs.items():
        found.append(load_predictor(directory)[0].predict(rows[form]))
        out = files / f"scores-{form}.parquet"
        score_files(directory, files / f"{form}.parquet", out, keep=["item"])
        scored = pq.read_table(out)
        assert scored["item"].equals(log["item"])
        np.testing.assert_array_equal(scored["pred_click"].to_numpy(), found[-1][:, 0])
        metrics = directory.metrics()["tasks"]["click"]
        assert evaluate_run(directory)["tasks"]["click"]["auc"] == pytest.approx(metrics["auc"])
    assert np.array_equal(*found)


@needs_kernels
def test_a_rows_score_has_the_same_bits_in_any_company(run, log):
    form, directory = run
    predictor, encoder, _ = load_predictor(directory)
    features = encoder.encode(log, "log") if form == "flat" else _nested_features(encoder, log)
    data = EncodedData(features=features, labels=None)
    whole = predictor.predict(data)
    for places in ([5], [7, 8], [*range(3, 100, 7)], [*range(len(log))][::-1]):
        some = EncodedData(features=features.take(np.array(places)), labels=None)
        assert np.array_equal(predictor.predict(some), whole[places])
    flat = predictor.predict(replace(data, features=features.flat()))
    np.testing.assert_allclose(whole, flat, atol=1e-6)


def _nested_features(encoder, log):
    return encoder.encode(as_rows(nested_log(log), encoder.config.data.requests), "log")


@needs_kernels
def test_exact_scores_are_those_of_every_row_by_itself(files, log):
    data = {"path": str(files / "flat.parquet"), "split": SPLIT}
    train_run(config_from_dict(raw_config("flat", data, exact=True)), files / "exact")
    predictor, encoder, _ = load_predictor(RunDirectory(files / "exact"))
    features = encoder.encode(log, "log")
    shared, alone = (
        predictor.predict(EncodedData(features=one, labels=None))
        for one in (features, features.flat())
    )
    assert np.array_equal(shared, alone)


def test_a_run_is_explained(run, tmp_path):
    _form, directory = run
    found = explain_run(directory)
    names = [one["name"] for one in found["experts"]]
    assert names == ["request expert 1", "request expert 2", "row expert 1", "row expert 2"]
    assert [one["once_per"] for one in found["experts"]] == ["request", "request", "row", "row"]
    assert 3 < found["rows_per_request"] < 5  # requests of 1 to 7 rows
    (costs,) = explanation_grids(found)["costs"]
    assert costs.headings[3].startswith("computed (")
    assert [row[3] for row in costs.rows] == ["once a request"] * 2 + ["once a row"] * 2
    (tmp_path / "explain.json").write_text(json.dumps(found))
    page = write_explanation_page(tmp_path / "explain.json", tmp_path / "page.html").read_text()
    assert page.count("<td>once a request</td>") == 2
    assert "not of each row" in page


@pytest.mark.torchrec
@pytest.mark.parametrize("gate", ["softmax", "top_k"])
def test_two_ranks_train_as_one_process(files, gate):
    """With experts on all ranks, and spread over them (where gates pick)."""
    data = {"path": str(files / "flat.parquet"), "split": SPLIT}
    picks = {"gate": {"kind": "top_k", "k": 2}} if gate == "top_k" else {}
    raw = raw_config("flat", data, {**MODEL, **picks}, embedding_backend="torchrec")
    path = files / f"{gate}.yaml"
    path.write_text(yaml.safe_dump(raw))
    losses = []
    for ranks in (1, 2):
        out = files / f"{gate}-{ranks}"
        ended = launch(["train", path, "--out", out], ranks)
        assert [rank.code for rank in ended] == [0] * ranks, ended[0].err
        history = json.loads((out / "history.json").read_text())
        losses.append([epoch["loss"] for epoch in history["epochs"]])
    for one, two in zip(*losses, strict=True):
        assert two == pytest.approx(one, abs=1e-4)


def test_experts_of_requests_need_requests():
    with pytest.raises(ValueError, match=r"model.request_experts is 2, but nothing says which"):
        config_from_dict(raw_config("plain"))

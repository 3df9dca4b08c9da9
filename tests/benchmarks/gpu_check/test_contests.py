"""Who is timed beside our products, where a package or a kernel is missing or refuses."""

import argparse
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import kernels, triton_product, whole
from benchmarks.gpu_check.contest import Contest, Layer, Size
from benchmarks.gpu_check.record import MEASURED, Record, machine_name
from benchmarks.gpu_check.triton_product import scattermoe


def drawn() -> Layer:
    return Layer.draw(Size(40, 16, 24, 3, torch.float32), "cpu", 0)


def test_scattermoe_is_named_where_it_is_not_installed():
    assert scattermoe([drawn()], fused=True) == ({}, {"scattermoe": "a Triton kernel needs a GPU"})

    on_gpu: Any = SimpleNamespace(x_PD=SimpleNamespace(is_cuda=True))
    calls, left_out = scattermoe([on_gpu], fused=True)

    assert calls == {}
    assert "No module named 'scattermoe'" in left_out["scattermoe"]


@pytest.mark.parametrize("bias_within", [True, False])
def test_scattermoe_gets_what_its_version_asks_for(monkeypatch, bias_within):
    def product(
        inputs,
        expert_weights,
        k,
        sorted_expert_idxs,
        sorted_scattered_idxs,
        expert_offsets,
        gates=None,
        grouped_in=False,
        grouped_out=False,
        **bias,
    ):
        assert (k, grouped_in, grouped_out) == (1, True, True)
        y_PH = torch.cat(
            [inputs[sorted_expert_idxs == e] @ weight for e, weight in enumerate(expert_weights)]
        )
        return y_PH + bias["expert_biases"][sorted_expert_idxs] if bias else y_PH

    def with_bias(
        inputs,
        expert_weights,
        k,
        sorted_expert_idxs,
        sorted_scattered_idxs,
        expert_offsets,
        expert_biases=None,
        grouped_in=False,
        grouped_out=False,
    ):
        return product(
            inputs,
            expert_weights,
            k,
            sorted_expert_idxs,
            sorted_scattered_idxs,
            expert_offsets,
            None,
            grouped_in,
            grouped_out,
            expert_biases=expert_biases,
        )

    linear = with_bias if bias_within else product
    layer = drawn()
    takes = triton_product.inspect.signature(linear).parameters
    call = triton_product._call([layer], [triton_product._arguments(layer, takes)], linear, True)

    args = layer.x_PD, layer.offsets_E1, layer.weight_EDH, layer.bias_EH, "relu"
    torch.testing.assert_close(call(0), torch.ops.mmoe.grouped_mm(*args)[0])


def test_the_seconds_of_kernels_are_those_of_the_gpu_alone(tmp_path):
    events = [
        {"cat": "kernel", "dur": 3000.0},
        {"cat": "cpu_op", "dur": 9000.0},
        {"cat": "gpu_memcpy", "dur": 1000.0},
        {"ph": "M"},
    ]
    (tmp_path / "table.json").write_text('{"steps": 2}')
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert whole.kernel_seconds(tmp_path, batch=10) == pytest.approx(0.004 / 20)

    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    assert whole.kernel_seconds(tmp_path, batch=10) is None


@pytest.mark.slow
def test_whole_training_says_what_the_tables_are(tmp_path):
    whole.main(["8192", "--device", "cpu", "--small", "--record", str(tmp_path / "record.jsonl")])

    (line,) = Record(tmp_path / "record.jsonl", machine_name("cpu")).lines().values()
    assert (line["key"], line["status"]) == ("train/whole-8192/mmoe", MEASURED)
    assert line["tables"] in ("plain", "torchrec, FBGEMM")
    assert line["rows_per_second"] > 0


def test_a_rival_that_throws_costs_no_other(tmp_path):
    def throws(_):
        raise KeyError("a compiler's own")

    ours = lambda _: torch.ones(3)  # noqa: E731
    record = Record(tmp_path / "record.jsonl", "a machine")
    contest = Contest("product bf16", {"mmoe": ours, "theirs": throws, "loop": ours}, 1)

    assert kernels._measure(contest, record, argparse.Namespace(device="cpu"), {"bf16": 1.0})

    line = record.lines()["kernels/product bf16"]
    assert line["status"] == MEASURED
    assert set(line["milliseconds"]) == {"mmoe", "loop"}
    assert "a compiler's own" in line["left_out"]["theirs"]

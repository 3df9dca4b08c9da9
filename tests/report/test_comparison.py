"""The picture and the page of a comparison."""

import json
import re

import pytest

from mmoe.report import comparison_figure, style, write_comparison_page


def _model(title, seeds, by_measure, verdict="even"):
    results = {}
    for key, (mean, value) in by_measure.items():
        difference = None
        if value is not None:
            difference = {"value": value, "low": value - 0.002, "high": value + 0.002}
        results[key] = {"mean": mean, "sd": 0.001 if seeds else None, "difference": difference}
        results[key]["verdict"] = None if value is None else verdict
    return {
        "name": title.replace(" ", "_"),
        "title": title,
        "seeds": seeds,
        "parameters": 1234,
        "rows_per_second": 50_000.0,
        "seconds": 12.0,
        "results": results,
        "gains": ["click"] if verdict == "gains" else [],
        "pays": [],
    }


@pytest.fixture(name="result")
def _result():
    """Two trained models and a simple one that is far away."""
    measures = [
        {"key": f"{task}.auc", "task": task, "heading": "AUC", "form": "{:.4f}"}
        for task in ("click", "a<b>")
    ]
    return {
        "name": "funnel",
        "origin": "log.parquet",
        "reference": "single_task",
        "rows": {"train": 3000, "validation": 500, "test": 500},
        "measures": measures,
        "interval": "what it is",
        "winners": [
            {
                "task": "click",
                "key": "click.auc",
                "model": "mmoe",
                "second": "single_task",
                "difference": {"value": 0.01, "low": 0.008, "high": 0.012},
                "sure": True,
            },
            {
                "task": "a<b>",
                "key": "a<b>.auc",
                "model": "mmoe",
                "second": "single_task",
                "difference": {"value": 0.0, "low": -0.002, "high": 0.002},
                "sure": False,
            },
            {"task": "rare", "key": "rare.auc", "model": None, "second": None},
        ],
        "models": [
            _model("single_task", [0, 1], {"click.auc": (0.8, None), "a<b>.auc": (0.7, None)}),
            _model("mmoe", [0, 1], {"click.auc": (0.81, 0.01), "a<b>.auc": (0.7, 0.0)}, "gains"),
            _model("boosted trees", None, {"click.auc": (0.6, -0.2), "a<b>.auc": (0.69, -0.005)}),
        ],
    }


def test_the_page_says_every_number_and_loads_nothing(result, tmp_path):
    (tmp_path / "compare.json").write_text(json.dumps(result))
    page = write_comparison_page(tmp_path / "compare.json", tmp_path / "compare.html").read_text()
    for text in (
        "0.8100 ± 0.0010",
        "+0.0100",
        "+0.0080 to +0.0120",
        "click is won by mmoe (AUC +0.0100 [+0.0080, +0.0120] over single_task)",
        "rare cannot be judged",
        "gains",
        "12.0 s",
        "what it is",
    ):
        assert text in page, text
    assert "a&lt;b&gt;" in page and "<b>" not in page
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "<script" not in page


def test_a_simple_model_far_away_does_not_squeeze_the_others(result):
    near, with_trees = comparison_figure(result).axes
    low, high = near.get_xlim()
    assert -0.02 < low < 0 < 0.012 < high < 0.02
    assert "−0.2000" in [text.get_text() for text in near.texts]
    low, _ = with_trees.get_xlim()
    assert low < -0.007  # one that is not so far is drawn where it is
    colours = {line.get_color() for line in near.lines}
    assert style.MODEL in colours


def test_a_metric_without_a_value_and_one_model_alone_are_drawn(result):
    result["models"] = result["models"][:1]
    result["models"][0]["results"]["click.auc"] = {"mean": None, "values": None}
    axes = comparison_figure(result).axes[0]
    assert [text.get_text() for text in axes.texts] == ["–"]


def test_a_damaged_file_is_named(result, tmp_path):
    del result["models"][1]["results"]
    (tmp_path / "compare.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"compare.json: is damaged .*results.*--resume"):
        write_comparison_page(tmp_path / "compare.json", tmp_path / "compare.html")
    assert not (tmp_path / "compare.html").exists()

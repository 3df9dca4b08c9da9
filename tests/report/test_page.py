"""The page: complete, self-contained, written whole or not at all."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mmoe.config import ModelConfig, load_config
from mmoe.metrics.columns import count
from mmoe.report import write_report
from mmoe.report.tables import duration, model_line, results_tables

_VOID = {"meta", "br", "link", "img", "hr", "input"}


class _Page(HTMLParser):
    """Checks that tags nest, and collects links, ids and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def _parse(path: Path) -> tuple[_Page, str]:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page, " ".join(" ".join(page.text).split())


def test_the_page_tells_the_whole_run(fake_run):
    run = fake_run({"click": 0.2, "purchase": 0.06})
    path = write_report(run)
    assert path == run / "report.html"
    page, text = _parse(path)
    metrics = json.loads((run / "metrics.json").read_text())["tasks"]
    for task, values in metrics.items():
        assert task in text
        for key in ("auc", "oracle_auc", "gauc", "logloss", "ne", "ece"):
            assert f"{values[key]:.4f}" in text, (task, key)
        assert f"{values['oracle_auc'] - values['auc']:.4f}" in text
        assert f"{values['calibration']:.3f}" in text
        assert f"model {values['auc']:.3f}" in text
        assert f"oracle {values['oracle_auc']:.3f}" in text
    for expected in ("fake-mmoe", "8 (best: 5)", "1 min 35 s", "torch 2.13.0", "mean.auc"):
        assert expected in text
    assert "batch_size: 4096" in text  # a default, so the config is the resolved one
    whole = path.read_text()
    assert whole.count("<svg") == 4
    assert page.links
    assert all(link.startswith("#") for link in page.links), "the page must load nothing"
    used = set(re.findall(r"url\(#([^)]+)\)", whole))
    assert used | {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "<script" not in whole and "@import" not in whole
    assert set(re.findall(r"https?://[^\s\"'<>]+", whole)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_what_ranks_sent_is_drawn(fake_run):
    run = fake_run({"click": 0.2})
    assert "Communication" not in _parse(write_report(run))[1]
    history = json.loads((run / "history.json").read_text())
    sent = {
        "megabytes_inside_hosts": 1.5,
        "megabytes_between_hosts": 0.25,
        "seconds_under_way": 0.02,
        "share_hidden": 0.75,
    }
    for entry in history["epochs"][1:]:  # the first was trained on one rank
        entry["communication"] = {
            "modes": ["rows travel", "rows travel, 2 chunks"],
            "experts": sent,
            "choices": [{"level": 1, "call": 10, "mode": "weights travel", "why": "2 ms"}],
            "gradients": {**sent, "megabytes_inside_hosts": 0.7, "share_hidden": None},
        }
    (run / "history.json").write_text(json.dumps(history))
    page, text = _parse(write_report(run))
    assert "1.5 0.25 20 75 % rows travel; rows travel, 2 chunks" in text
    assert "sums of gradients 0.7 0.25 20 – –" in text
    assert "8 1 10 weights travel 2 ms" in text
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "sums of gradients, inside hosts" in text


def test_what_there_is_not_has_no_section(fake_run):
    """One task, expert and epoch without an oracle; a regression alone; no gates."""
    _, text = _parse(write_report(fake_run({"click": 0.2}, experts=1, epochs=1, oracle=False)))
    assert "1 expert of 256-128" in text
    assert "best AUC" not in text
    assert "oracle 0." not in text
    path = write_report(fake_run({"watch": "regression"}, kind="shared_bottom", folder="other"))
    _, text = _parse(path)
    assert "Ranking" not in text and "Calibration" in text
    assert "This model has no gates" in path.read_text()


def test_what_gates_shared_and_could_not_be_computed_is_said_and_escaped(fake_run):
    run = fake_run({"never": 0.0, "buy": 0.1})
    assert "decide together" not in write_report(run).read_text()
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["notes"] = ["never: auc not computed: <all rows> are negative"]
    metrics["tasks"]["never"]["logloss"] = float("nan")
    metrics["versions"] = {"<img src=x>": "1"}
    (run / "metrics.json").write_text(json.dumps(metrics))
    curves = json.loads((run / "curves.json").read_text())
    curves["gates"][0] |= {
        "distinct_pair_ratio": 0.634,
        "kept_probability": [0.912] * 2,
        "kept_probability_p5": [0.703] * 2,
        "first_choice_missing": [0.0456] * 2,
    }
    (run / "curves.json").write_text(json.dumps(curves))
    page = write_report(run).read_text()
    assert "never: auc not computed: &lt;all rows&gt; are negative" in page
    assert "stands where the test rows of a task are all of one class" in " ".join(page.split())
    assert ">nan<" not in page
    assert "&lt;img src=x&gt; 1" in page
    assert "Level 1: 63 % of the (sample, gate, expert) picks" in page
    assert "Level 1: the gates decide together" in page
    assert "<td>91.2 %</td><td>70.3 %</td><td>4.6 %</td>" in page


def test_the_config_on_the_page_reads_back_the_same(fake_run, tmp_path):
    run = fake_run({"click": 0.2})
    page = write_report(run).read_text()
    shown = re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)
    assert shown is not None
    again = tmp_path / "again.yaml"
    again.write_text(html.unescape(shown[1]))
    assert load_config(again) == load_config(run / "config.yaml", of_run=True)


def test_the_default_page_is_replaced_but_a_named_one_only_when_asked(fake_run, tmp_path):
    run = fake_run({"click": 0.2})
    (run / "report.html").write_text("old")
    assert "<svg" in write_report(run).read_text()
    named = tmp_path / "mine.html"
    named.write_text("old")
    with pytest.raises(ValueError, match=r"mine\.html: exists already; name another file"):
        write_report(run, named)
    assert named.read_text() == "old"
    assert "<svg" in write_report(run, named, overwrite=True).read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine.html", "run"]


def test_a_failed_write_leaves_the_old_page_and_no_rubbish(fake_run, monkeypatch):
    run = fake_run({"click": 0.2}, kind="shared_bottom")
    (run / "report.html").write_text("old")
    before = sorted(each.name for each in run.iterdir())

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(run)
    assert (run / "report.html").read_text() == "old"
    assert sorted(each.name for each in run.iterdir()) == before


def test_refuses_outputs_that_cannot_be(fake_run, tmp_path):
    run = fake_run({"click": 0.2}, kind="shared_bottom")
    with pytest.raises(ValueError, match="is a folder; name a file"):
        write_report(run, tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*absent; create it first"):
        write_report(run, tmp_path / "absent" / "page.html")


def test_refuses_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="there is no such folder; name one that `mmoe train`"):
        write_report(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"is not a run directory, for it holds no config\.yaml"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing, so the run is not finished; finish it with `mmoe train .*--resume`"),
        ('{"tasks": {', r"is damaged \(Expecting .*\); write it again with `mmoe train .*"),
        ("[1]", r"is damaged \(the whole: Input should be .*\); write it again with"),
        ('{"tasks": {"click": 1}, "epochs": [1]}', r"is damaged \((tasks.click|epochs.0): Input"),
    ],
)
def test_refuses_missing_and_damaged_files(fake_run, content, message):
    run = fake_run({"click": 0.2}, kind="shared_bottom")
    for name in ("metrics.json", "history.json", "curves.json"):
        whole = (run / name).read_text()
        (run / name).unlink()
        if content is not None:
            (run / name).write_text(content)
        with pytest.raises(ValueError, match=f"{re.escape(name)}: .*{message}") as caught:
            write_report(run)
        (run / name).write_text(whole)
        assert "\n" not in str(caught.value)
        assert not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["metrics.json", "history.json"])
def test_refuses_numbers_that_no_axis_can_hold(fake_run, name):
    """Of 1e308, and no more than that, half the distance to another number is infinite."""
    run = fake_run({"click": 0.2}, kind="shared_bottom")
    text = (run / name).read_text()
    (run / name).write_text(
        re.sub(r'("click": )(\{"[a-z]+": )?[\d.]+', r"\1\g<2>1e308", text, count=1)
    )
    with pytest.raises(
        ValueError, match=rf"{re.escape(name)}: .*up to 1e\+100 in size, got 1e\+308"
    ):
        write_report(run)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"kind": "mmoe", "num_experts": 4}, "MMoE · 4 experts of 256-128 · softmax gates · tower"),
        (
            {"kind": "mmoe", "gate": {"kind": "top_k", "k": 2}},
            "MMoE · 8 experts of 256-128 · top-2",
        ),
        ({"kind": "ple", "levels": 3}, "PLE · 3 levels of 4 shared + 2 own experts a task"),
        ({"kind": "cgc"}, "CGC · 4 shared + 2 own experts a task of 256-128"),
        ({"kind": "shared_bottom"}, "Shared-Bottom · 1 shared network of 256-128 · tower 64"),
        ({"kind": "single_task", "tower": {"hidden": []}}, "Single-task · 1 network a task of"),
        ({"kind": "esmm"}, "ESMM · 8 experts"),
    ],
)
def test_model_line(settings, line):
    assert model_line(ModelConfig.model_validate(settings)).startswith(line)


def test_numbers_as_text():
    assert count(1234567) == "1\u202f234\u202f567"
    assert (count(None), count(float("nan")), duration(None)) == ("–", "–", "–")
    table = results_tables(
        {"click": {"auc": 0.71, "oracle_auc": 0.7, "rows": 10_000, "positives": 3}}
    )
    headings = [column.heading for column in table[0].columns]
    cells = dict(zip(headings, table[0].rows[0][1:], strict=True))
    assert cells["gap"] == "−0.0100"
    assert cells["positives"] == "3 (0.03 %)"
    assert "GAUC" not in headings

"""The command line: its names, its files, its errors (exit code 2, one line, no traceback)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from mmoe import cli
from mmoe.config import load_config
from mmoe.ops import ExtensionStatus


@pytest.fixture(name="log")
def _log(funnel_table, tmp_path) -> Path:
    path = tmp_path / "log.parquet"
    pq.write_table(funnel_table, path)
    return path


@pytest.fixture(name="config")
def _config(funnel_config, tmp_path) -> Path:
    path = tmp_path / "funnel.yaml"
    path.write_text(yaml.safe_dump(funnel_config))
    return path


def test_the_whole_road(mmoe, config, log, tmp_path):
    run = tmp_path / "run"
    code, out, err = mmoe(
        "train", config, "--data", log, "--out", run, "--set", "training.epochs=2"
    )
    assert code == 0, err
    assert out.splitlines()[-1] == str(run)
    assert "epoch 2/2" in err
    assert "rows/s" in err
    stored = json.loads((run / "metrics.json").read_text())

    code, out, err = mmoe("evaluate", run, "--json")
    assert code == 0, err
    assert json.loads(out) == stored

    code, out, _ = mmoe("evaluate", run, "--data", log)
    assert str(log) in out
    assert "test split" not in out
    assert code == 0
    assert "click" in out
    assert "4,000" in out

    scores = tmp_path / "scores.parquet"
    code, _, err = mmoe("score", run, "--input", log, "--output", scores, "--keep", "row", "item")
    assert code == 0, err
    assert pq.read_table(scores).column_names == ["row", "item", "pred_click", "pred_buy"]

    code, out, err = mmoe("report", run)
    assert code == 0, err
    page = (run / "report.html").read_text()
    assert "click" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("https://www.w3.org", "")


def test_a_feature_of_another_kind_is_trained_and_what_it_loses_is_said(
    mmoe, config, log, tmp_path
):
    run = tmp_path / "run"
    settings = ("features.price.kind=categorical", "training.epochs=1", "features.tags.dim=8")
    code, _, err = mmoe("train", config, "--data", log, "--out", run, "--quiet", "--set", *settings)
    assert code == 0
    assert err == (
        "note: --set features.price.kind=categorical: dropped buckets, log, which this kind has "
        "not\n"
    )
    features = {one.name: one for one in load_config(run / "config.yaml").features}
    assert (features["price"].kind, features["price"].dim) == ("categorical", 4)
    assert features["tags"].dim == 8


def test_default_run_directory_has_name_and_time(mmoe, config, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = mmoe("train", config, "--data", log, "--set", "training.epochs=1", "--quiet")
    assert (code, err) == (0, "")
    folder = Path(out.splitlines()[-1])
    assert folder.parent == Path("runs")
    assert folder.name.startswith("funnel-20")


def test_resume(mmoe, config, log, tmp_path):
    arguments = ("train", config, "--data", log, "--out", tmp_path / "run", "--set",
                 "training.epochs=1")  # fmt: skip
    assert mmoe(*arguments)[0] == 0
    code, _, err = mmoe(*arguments)
    assert code == 2
    assert "exists already; continue it with --resume" in err
    code, _, err = mmoe(*arguments, "--resume")
    assert code == 0
    assert "resuming" in err


def test_init_writes_a_config_that_trains(mmoe, funnel_table, tmp_path):
    flat = funnel_table.set_column(
        funnel_table.column_names.index("tags"),
        "tags",
        pa.array(["|".join(tags) for tags in funnel_table["tags"].to_pylist()]),
    )
    log, config = tmp_path / "my log (1).csv", tmp_path / "config.yaml"
    pa_csv.write_csv(flat, log)
    code, out, err = mmoe("init", log, "--label", "click", "--label", "buy", "--out", config)
    assert code == 0, err
    assert f"next: mmoe train {config}" in out
    text = config.read_text()
    assert "row" in text
    assert "#" in text
    code, _, err = mmoe(
        "train", config, "--out", tmp_path / "run", "--set", "training.epochs=1",
        "--set", "training.embedding_backend=plain",
    )  # fmt: skip
    assert code == 0, err
    code, _, err = mmoe("init", log, "--label", "click", "--out", config)
    assert code == 2
    assert "exists already" in err


def test_init_says_which_of_two_values_counts(mmoe, tmp_path):
    log, config = tmp_path / "log.csv", tmp_path / "config.yaml"
    rows = [f"{row % 7},{('ja', 'nein')[row % 3 == 0]},{row % 2}" for row in range(90)]
    log.write_text("\n".join(["user,is skipped,like it", *rows]))
    labels = ("--label", "is skipped", "--label", "like it")
    code, out, err = mmoe("init", log, *labels, "--out", config)
    assert code == 0, err
    assert "task is_skipped: binary, `is skipped` == 'ja'\n" in out
    assert "task like_it: binary\n" in out


def test_init_takes_labels_with_commas_between(mmoe, tmp_path):
    log, config = tmp_path / "log.csv", tmp_path / "config.yaml"
    rows = [f"{row % 7},{row % 2},{int(row % 3 == 0)}" for row in range(90)]
    log.write_text("\n".join(["user,click,long click", *rows]))
    code, out, err = mmoe("init", log, "--label", "click,long click", "--out", config)
    assert code == 0, err
    assert "task click: binary\n" in out
    assert "task long_click: binary\n" in out
    code, _, err = mmoe("init", log, "--label", "click,long", "--out", tmp_path / "other.yaml")
    assert code == 2
    assert "there is no column 'long', which --label 'click,long' needs" in err
    assert "(labels one by one: --label click --label long)" in err
    code, _, err = mmoe("init", log, "--label", "clik, buyy", "--out", tmp_path / "other.yaml")
    assert code == 2


@pytest.mark.parametrize(
    ("column", "task", "says"),
    [
        (["7"] * 200, {"kind": "regression"}, "one value only among its 160 observed training"),
        (["1", "2"] * 99 + ["inf", "3"], {"kind": "regression"}, "row 199: label 'y' .* is inf"),
        (["1", "2"] * 99 + ["n/k", "3"], {"kind": "regression"}, "row 199: .* the text 'n/k'"),
        (["0", "1"] * 90 + ["0"] * 20, {}, "is 0 on all rows of the test part .20 rows, split by"),
    ],
)
def test_a_label_that_cannot_be_learnt_or_judged_is_one_line(mmoe, tmp_path, column, task, says):
    rows = "".join(f"{n % 9},{n},{y}\n" for n, y in enumerate(column))
    (tmp_path / "log.csv").write_text(f"x,at,y\n{rows}")
    config = {
        "data": {"path": str(tmp_path / "log.csv"), "split": {"by": "time", "column": "at"}},
        "features": [{"kind": "numeric", "name": "x"}],
        "tasks": [{"name": "y", "label": "y", **task}],
        "training": {"monitor": "y.gain"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    code, _, err = mmoe("train", tmp_path / "config.yaml", "--out", tmp_path / "run")
    assert code == 2
    assert re.search(says, err)
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_init_does_not_split_by_a_time_of_two_units(mmoe, log, tmp_path):
    """Its config would not train."""
    table = pq.read_table(log).slice(0, 2000)
    folder = tmp_path / "log"
    folder.mkdir()
    for part, unit in enumerate((1, 1000)):
        seconds = 1_700_000_000 + np.arange(1000) + 1000 * part
        here = table.slice(1000 * part, 1000)
        here = here.append_column("timestamp", pa.array(seconds * unit))
        pq.write_table(here, folder / f"{part}.parquet")
    config = tmp_path / "config.yaml"
    code, _, err = mmoe("init", folder, "--label", "click", "--out", config)
    assert code == 0, err
    text = config.read_text()
    assert "by: random" in text
    assert "1.parquet: column 'timestamp' looks like milliseconds" in " ".join(text.split())


BROKEN = {
    "no paths": (lambda c, p: c["data"].update(path=[]), "data.path: is missing"),
    "min_count beyond 64 bits": (
        lambda c, p: c["features"].append(
            {"kind": "categorical", "name": "x", "column": "item", "min_count": 2**63}
        ),
        "min_count: Input should be less than or equal",
    ),
    "misspelt key": (lambda c, p: c.update(trainnig={}), "unknown key 'trainnig'; did you mean"),
    "missing column": (
        lambda c, p: c["features"].append({"kind": "numeric", "name": "prise"}),
        "log.parquet: there is no column 'prise'.*did you mean 'price'",
    ),
    "label not 0 or 1": (lambda c, p: c["tasks"].__setitem__(0, {"name": "click", "label": "user"}),
                         "'?click'?.*'?user'?|'?user'?.*'?click'?"),
    "text for a number": (
        lambda c, p: c["features"].append({"kind": "numeric", "name": "n", "column": "item"}),
        r"log.parquet: row \d+.*'i\d+'",
    ),
    "one class": (
        lambda c, p: c["tasks"].__setitem__(0, {"name": "click", "label": "price < 0"}),
        "click.*(one class|negative|only|0)",
    ),
    "no such file": (lambda c, p: c["data"].update(path="nowhere.parquet"), "nowhere.parquet"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_bad_input_is_one_line_and_exit_code_2(case, mmoe, funnel_config, log, tmp_path):
    change, message = BROKEN[case]
    raw = yaml.safe_load(yaml.safe_dump(funnel_config))
    raw["data"]["path"] = str(log)
    change(raw, log)
    config = tmp_path / "bad.yaml"
    config.write_text(yaml.safe_dump(raw))
    _refused(mmoe("train", config, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


def test_broken_files(mmoe, config, log, tmp_path):
    whole = log.read_bytes()
    for content in (b"", b"PAR1 and then nothing", whole[: len(whole) // 2]):
        log.write_bytes(content)
        said = "log.parquet" if content else "empty"
        _refused(mmoe("train", config, "--data", log, "--out", tmp_path / "run"), said)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            MemoryError("log.parquet: malloc failed"),
            r"not enough memory \(log.parquet: malloc failed",
        ),
        (MemoryError(), r"not enough memory \(an allocation failed\); .*data.input=stream"),
        (RuntimeError("[enforce fail] can't allocate memory: you tried 9 bytes."), "you tried 9"),
    ],
)
def test_too_little_memory(error, says, mmoe, config, log, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("mmoe.train.fit.build_ranker", fails)
    _refused(mmoe("train", config, "--data", log, "--out", tmp_path / "run", "--quiet"), says)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "options"),
    [("evaluate", []), ("score", ["--input", "log.parquet", "--output", "scores.parquet"])],
)
def test_too_little_memory_for_a_trained_model(command, options, mmoe, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr("mmoe.run.RunDirectory.open", fails)
    result = mmoe(command, tmp_path, *options)
    _refused(result, r"not enough memory .*--table-precision int8")
    assert "--set" not in result[2]  # they have none


def test_other_errors_of_the_interpreter_stay_what_they_are(mmoe, config, log, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("mmoe.train.fit.build_ranker", fails)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        mmoe("train", config, "--data", log, "--quiet")


def test_other_mistakes(mmoe, config, log, tmp_path):
    _refused(mmoe("train", "sensus-income"), "did you mean 'census-income'")
    _refused(mmoe("train", config, "--resume"), "--resume needs --out")
    _refused(mmoe("train", config, "--set", "training.epochs"), "expected key.path=value")
    _refused(mmoe("evaluate", tmp_path), "is not the directory of a trained run")
    _refused(mmoe("report", tmp_path / "none"), "none")
    _refused(mmoe("score", tmp_path, "--input", log, "--output", tmp_path / "x"), "trained run")


def _refused(result: tuple[int, str, str], message: str) -> None:
    import re

    code, _, err = result
    assert code == 2, err
    assert err.startswith("mmoe: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("score run --keep a b --input x", "score run --keep a --keep b --input x"),
        ("score run --keep a --keep b", "score run --keep a --keep b"),
        ("train r --set a=1 b=2 --resume", "train r --set a=1 --set b=2 --resume"),
        ("score --keep a run", "score --keep a run"),
        ("init d --label x y --out c", "init d --label x --label y --out c"),
        ("score run --output o --input i", "score run --output o --input i"),
        ("doctor", "doctor"),
        (
            "train --warm-start r --set a=1 b.c=2 -q",
            "train --warm-start r --set a=1 --set b.c=2 -q",
        ),
        ("train --set a=1 c.yaml --out r", "train --set a=1 c.yaml --out r"),
    ],
)
def test_options_of_several_values(given, expected):
    assert cli.repeat_flags(given.split()) == expected.split()


def test_help_is_quick_to_import():
    code = "import sys; sys.argv=['mmoe','--help']\ntry:\n import mmoe.cli; mmoe.cli.main()\n"
    code += (
        "except SystemExit: pass\nprint({'torch','pandas','pyarrow','sklearn'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "set()"
    commands = ["train", "backtest", "evaluate", "score", "unshard", "report", "init", "doctor"]
    assert all(command in out.stdout for command in commands)


def test_init_loads_no_torch(tmp_path):
    """It takes two seconds to import, as long as a look at a small log."""
    log = tmp_path / "log.csv"
    log.write_text(
        "user,price,at,y\n" + "".join(f"u{n % 9},{n},2024-01-01,{n % 2}\n" for n in range(99))
    )
    code = "import sys, mmoe.cli\ntry: mmoe.cli.main()\nfinally: print('torch' in sys.modules)"
    out = tmp_path / "c.yaml"
    command = [sys.executable, "-c", code, "init", log, "--label", "y", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False" and out.exists()


def test_doctor_says_what_training_would_run_on(mmoe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = mmoe("doctor")
    assert code == 0
    assert "torch" in out and "C++ extension" in out and "device: auto" in out
    monkeypatch.setattr("mmoe.models.layout.resolve_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr("mmoe.embeddings.torchrec_problem", lambda _=None: "fbgemm is for the CPU")
    code, out, _ = mmoe("doctor")
    assert code == 0
    assert "cuda:0 (NVIDIA H100), embedding_backend plain" in out
    assert "faster tables: fbgemm is for the CPU; install fbgemm-gpu for CUDA" in out


def test_a_device_that_is_not_there_is_one_line(mmoe, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = ("train", "synthetic-funnel", "--out", tmp_path / "run")
    for asked in (("--device", "cuda"), ("--set", "training.device=cuda")):
        code, _, err = mmoe(*command, *asked)
        assert code == 2
        assert "device is cuda, but" in err and "--device cpu on the command line" in err
        assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_doctor_says_what_works_slowly(mmoe, monkeypatch):
    missing = ExtensionStatus(built=False, cuda=False, detail="mmoe._C is not built")
    monkeypatch.setattr("mmoe.ops.extension_status", lambda: missing)
    code, out, _ = mmoe("doctor")
    assert code == 0
    assert "works, but without: C++ extension (slower)" in out
    assert "--editable" in out
    assert "all is well" not in out


@pytest.mark.parametrize("command", ["train", "backtest"])
def test_changed_data_is_for_resumes(mmoe, command, tmp_path):
    code, _, err = mmoe(command, "synthetic-funnel", "--changed-data", "--out", tmp_path / "run")
    assert (code, err) == (
        2,
        "mmoe: error: --changed-data needs --resume: what begins takes the data as it is\n",
    )
    assert not (tmp_path / "run").exists()

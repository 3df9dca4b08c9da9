"""What reaches the terminal: nothing that steers it, and nothing that it cannot show."""

import io
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.progress import Progress
from rich.table import Table

from mmoe import cli
from mmoe.config import load_config
from mmoe.datasets.files.readers import read_table
from mmoe.run.console import ConsoleReporter, Terminal
from mmoe.terminal import readable
from tests.chaos.small_log import small_config, small_log

ESCAPE = "\x1b[31mred\x1b[0m"
EVIL = f"{ESCAPE}\rx\n\u202eab\u2066\x9b5m\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ± × ü 漢 é", "plain – ± × ü 漢 é"),
        ("a\tb\nc", r"a\tb\nc"),
        (ESCAPE, r"\x1b[31mred\x1b[0m"),
        ("\u202eabc\u2069", r"\u202eabc\u2069"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u2028b\udcff", r"a\u2028b\udcff"),
    ],
)
def test_readable(text, shown):
    assert readable(text) == shown
    assert readable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def _steers(text):
    return re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_no_table_line_or_bar_steers_the_terminal():
    file = io.StringIO()
    terminal = Terminal(file=file, width=200, force_terminal=False)
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    terminal.print(table)
    ConsoleReporter(terminal).say(f"rows of {EVIL}")
    with Progress(console=terminal) as progress:
        progress.add_task(EVIL, total=1)
    text = file.getvalue()
    assert not _steers(text)
    assert r"rows of \x1b[31mred\x1b[0m\rx\n\u202eab\u2066\x9b5m\x07" in text


def test_colours_stay_where_there_is_a_terminal():
    file = io.StringIO()
    Terminal(file=file, force_terminal=True, color_system="standard").print("[red]no[/]")
    assert file.getvalue().startswith("\x1b[31mno")


def _run(monkeypatch, encoding, *arguments):
    """As on a terminal of that encoding: (exit code, what it was sent)."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "argv", ["mmoe", *map(str, arguments)])
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, stream.buffer.getvalue().decode(encoding)


def test_every_command_runs_on_a_terminal_that_shows_little(monkeypatch, tmp_path):
    def run(*arguments):
        return _run(monkeypatch, "ascii", *arguments)

    folder, log = tmp_path, tmp_path / "log.parquet"
    pq.write_table(small_log(200, seed=1), log)
    (folder / "config.yaml").write_text(yaml.safe_dump(small_config(str(log))))
    for arguments in (
        ["--help"],
        ["train", "--help"],
        ["train", folder / "config.yaml", "--out", folder / "run"],
        ["evaluate", folder / "run"],
        ["score", folder / "run", "--input", log, "--output", folder / "s"],
        ["report", folder / "run"],
        ["init", log, "--label", "click", "--out", folder / "c–é.yaml"],
    ):
        code, said = run(*arguments)
        assert code == 0, said
    assert "c-" in said
    code, said = run("doctor")
    assert "mmoe doctor" in said
    assert code in (0, 1)
    code, said = run("evaluate", folder / "ру́н")
    assert code == 2
    assert "mmoe: error: " in said


def test_names_from_data_do_not_steer_the_terminal(monkeypatch, tmp_path):
    table = small_log(200, seed=1).drop_columns(["history"])
    table = table.append_column(EVIL, pa.array([f"v{n % 5}" for n in range(200)]))
    table = table.append_column(f"{EVIL}2", pa.array([EVIL] * 200))
    log = tmp_path / f"log{ESCAPE}.parquet"
    pq.write_table(table, log)
    config = tmp_path / "config.yaml"

    code, said = _run(monkeypatch, "utf-8", "init", log, "--label", "click", "--out", config)
    assert code == 0, said
    assert not _steers(said)
    assert r"\x1b[31m" in said
    # What is written stays what it was
    found = load_config(config)
    assert EVIL in [feature.source_columns[0] for feature in found.features]
    assert EVIL in read_table(found.data.path).column_names

    code, said = _run(
        monkeypatch, "utf-8", "train", config, "--out", tmp_path / f"run{ESCAPE}",
        "--set", "training.epochs=1",
    )  # fmt: skip
    assert code == 0, said
    assert not _steers(said)
    code, said = _run(monkeypatch, "utf-8", "train", config, "--data", tmp_path / EVIL)
    assert code == 2
    assert not _steers(said)


def test_an_error_of_a_command_does_not_steer_the_terminal(monkeypatch, tmp_path):
    code, said = _run(monkeypatch, "utf-8", "evaluate", tmp_path / f"{ESCAPE}\u202e")
    assert (code, _steers(said)) == (2, None)
    assert said.count("\n") == 1

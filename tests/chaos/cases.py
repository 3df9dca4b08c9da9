"""Draws cases of `mmoe train`, `evaluate`, `score` and `init`: number N is always the same one."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tests.arrow_types import ARROW_TYPES, ODD, ROLES, TypeCase
from tests.chaos.config_faults import config_case
from tests.chaos.data_faults import break_data
from tests.chaos.draft import Case, Draft, Workspace, cut, either, write_yaml
from tests.chaos.judge import data_config, judge
from tests.chaos.processes import Say, Verdict, judge_in_forks, prepare
from tests.chaos.run_faults import run_case
from tests.chaos.small_log import small_log

Draw = Callable[[random.Random, Workspace, Path], Case]
_OUT = {"score": "scores.parquet", "init": "config.yaml"}  # else a run


def data_case(family: str, draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A log with a fault, in memory or streamed, before any command."""
    command = draw.choices(["train", "score", "evaluate", "init"], [48, 24, 14, 14])[0]
    split = draw.choice([None, None, ("time", "time"), ("hash", "user")])
    streams = draw.random() < 0.5
    tables = cut(small_log(260, seed=draw.randrange(5)), draw.choice([1, 3, 3]))
    kind = draw.choice(["csv", "parquet", "parquet", "csv.gz"])
    draft = Draft(draw, command, kind, tables, split, folder)
    clean = list(tables)
    name, expect = break_data(draft, family)
    out, how = folder / "out" / _OUT.get(command, "run"), "stream" if streams else "memory"
    run = str(space.run(how))
    given = {
        "init": ["init", draft.data, "--label", "click", "--label", "buy", "--out", str(out)],
        "score": ["score", run, "--input", draft.data, "--output", str(out), "--quiet"],
        "evaluate": ["evaluate", run, "--data", draft.data, "--json", "--quiet"],
    }.get(command)
    if given is None:
        config = write_yaml(folder / "config.yaml", data_config(draft.data, split, how))
        given = ["train", config, "--out", str(out), "--quiet"]
    words = (draft.data, *(path.name for path in draft.files))
    name = f"{name}{', streamed' * streams}"
    return Case(name, command, expect, given, out, words, draft, clean)


def type_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A column of any type of Arrow, in any place where a config or command can name one."""
    kind, role = draw.choice(list(ARROW_TYPES)), draw.choice(list(ROLES))
    case = TypeCase(draw, kind, role, folder, streams=draw.random() < 0.5)
    data = case.write_log()
    kept = role == "unread" and draw.random() < 0.7
    command = draw.choice(["score", "init"] if kept else ["train"])
    out = folder / "out" / _OUT.get(command, "run")
    if command == "score":
        run = space.run("stream" if case.streams else "memory")
        given = ["score", str(run), "--input", data, "--output", str(out), "--keep", ODD, "--quiet"]
    elif command == "init":
        given = ["init", data, "--label", "click", "--label", "buy", "--out", str(out)]
    else:
        config = write_yaml(folder / "config.yaml", case.config(data))
        given = ["train", config, "--out", str(out), "--quiet"]
    fault = f"arrow_type ({kind} as {role}{', streamed' * case.streams})"
    expect = either((ODD, "one class only"), reference="none")
    return Case(fault, command, expect, given, out, words=(Path(data).name,))


# How often each is drawn
FAMILIES: dict[Draw, int] = {
    partial(data_case, "table"): 36, partial(data_case, "bytes"): 26,
    partial(data_case, "layout"): 8, config_case: 22, run_case: 8, type_case: 10,
}  # fmt: skip


def draw_case(seed: int, number: int, space: Workspace, folder: Path) -> Case:
    draw = random.Random(f"inputs {seed} {number}")
    (folder / "out").mkdir(parents=True)
    return draw.choices([*FAMILIES], [*FAMILIES.values()])[0](draw, space, folder)


def judge_inputs(
    folder: Path, numbers: Iterable[int], seed: int, say: Say, *, jobs: int = 1
) -> list[Verdict]:
    shared = folder / "worker-0"

    def one(number: int) -> Verdict:
        where, space = shared / f"case-{number}", Workspace(shared)
        return judge(number, draw_case(seed, number, space, where), space, where)

    prepare(lambda: Workspace(shared))
    return judge_in_forks(one, numbers, say, again=f"train --kills 0 --seed {seed}", jobs=jobs)

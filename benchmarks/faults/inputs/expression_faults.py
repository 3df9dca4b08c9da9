"""Label expressions that nobody would write: deep, long, huge, or of things that do not mix."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from benchmarks.faults.inputs.draft import Drawn, either
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.small_log import small_config

COLUMNS = ("user", "item", "history", "price", "time", "note", "click", "buy", "`no such`")
_CONSTANTS = ("0", "1e400", "'x'", "True", "1" * 400, "(1, 'x')", "-0.0", "None")
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "==", "<", ">=", "and", "or", "&", "|", "in",
              "not in", "is")  # fmt: skip
_FUNCTIONS = ("log", "abs", "exp", "is_missing", "round", "sqrt")


def draw_expression(draw: random.Random, names: Sequence[str], depth: int) -> str:
    """A random expression, most often one that makes little sense."""
    if depth == 0:
        return draw.choice([*names, *names, *_CONSTANTS])
    left, right = (draw_expression(draw, names, depth - 1) for _ in range(2))
    two, one = draw.choice(_OPERATORS), draw.choice(_FUNCTIONS)
    return draw.choice([f"({left}) {two} ({right})", f"({left}) {two} {right}", f"-({left})",
                        f"not ({left})", f"~({left})", f"{one}({left})"])  # fmt: skip


def _mixed(draw: random.Random) -> str:
    return draw_expression(draw, COLUMNS, draw.randint(1, 4))


def _minus_flags(draw: random.Random) -> str:
    return f"{'-' * draw.choice([1, 2, 9, 700])}(price > 2) == {draw.choice([-1, 0, 1])}"


def _huge_number(draw: random.Random) -> str:
    digits = draw.choice("123456789") * draw.choice([19, 300, 309, 4_000, 4_400, 9_000])
    return f"{draw.choice(['price', 'user', 'item'])} {draw.choice('<>')} {digits}"


def _many_terms(draw: random.Random) -> str:
    term, joint = draw.choice([("click", "+"), ("(click == 1)", " | "), ("price > 2", " or "),
                               ("click", "**"), ("click", "=="), ("-click", "*")])  # fmt: skip
    count = draw.choice([30, 300, 1_200])
    return joint.join([term] * min(count, 9_990 // len(term + joint)))


def _nested(draw: random.Random) -> str:
    start, end = draw.choice([("(", ")"), ("not ", ""), ("~", ""), ("abs(", ")"), ("[", "]")])
    count = draw.choice([5, 90, 190, 600, 1_500])
    return f"{start * count}{draw.choice(['click', 'price'])}{end * count}"


_SHAPES: tuple[Callable[[random.Random], str], ...] = (
    _mixed, _mixed, _minus_flags, _huge_number, _many_terms, _nested,
)  # fmt: skip


def expression_fault(draw: random.Random, space: Workspace, folder: Path) -> Drawn:
    """A label, or a condition under which one is observed."""
    shape = draw.choice(_SHAPES)
    raw = small_config(str(space.log))
    raw["data"]["input"] = draw.choice(["memory", "stream"])
    key = draw.choice(["label", "label", "observed_when"])
    kind = draw.choice(["binary", "regression"])
    raw["tasks"].append({"name": "third", "label": "click", "kind": kind, key: shape(draw)})
    config, out = folder / "config.yaml", folder / "out" / "run"
    config.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return Drawn(
        fault=f"expression{shape.__name__}",
        command="train",
        expect=either("third", reference="none"),
        arguments=["train", str(config), "--out", str(out), "--quiet"],
        out=out,
        words=(space.log.name, config.name, "expression"),
    )

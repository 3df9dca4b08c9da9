"""Faults of a config and of label expressions: mistyped, misindented, misunderstood, deep, huge."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from mmoe.config import config_from_dict
from tests.chaos.draft import Case, Expect, Workspace, either, error, right, write_yaml
from tests.chaos.small_log import small_config

Raw = dict[str, Any]


@dataclass
class ConfigDraft:
    """A config that is being broken: `raw` as one writes it by hand, `full` with every default.

    What a fault does not write to `path` itself is written as YAML; `overrides` go to `--set`.
    """

    draw: random.Random
    raw: Raw
    full: Raw
    path: Path
    overrides: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        self.path.write_bytes(text.encode())

    @property
    def text(self) -> str:
        return yaml.safe_dump(self.raw, sort_keys=False)


def _sections(node: Any) -> Iterator[Raw]:
    """Every mapping of a config that holds something."""
    if isinstance(node, dict) and node:
        yield node
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for value in inner:
        yield from _sections(value)


def typing_error(d: ConfigDraft) -> Expect:
    """A letter of a key is wrong, missing or twice."""
    d.raw = copy.deepcopy(d.full)
    section = d.draw.choice([*_sections(d.raw)])
    key = d.draw.choice([k for k in section if k != "options"])
    at = d.draw.randrange(len(key))
    typo = d.draw.choice([key[:at] + "q" + key[at + 1 :], key[:at] + key[at:] + "z",
                          key[:at] + key[at] + key[at:], key.upper(), " " + key])  # fmt: skip
    typo = typo if typo != key and typo not in section else key + "_x"
    section[typo] = section.pop(key)
    return error((typo, typo.strip(), key))


def _any_leaf(d: ConfigDraft, fits: Callable[[str, Any], bool]) -> tuple[Raw, str]:
    d.raw = copy.deepcopy(d.full)
    leaves = [(s, key) for s in _sections(d.raw) for key, value in s.items() if fits(key, value)]
    return d.draw.choice(leaves)


def wrong_type(d: ConfigDraft) -> Expect:
    """A number, flag, list or section is a word, a list or a section instead."""
    node, key = _any_leaf(
        d, lambda key, x: x is not None and not isinstance(x, str) and key != "options"
    )
    wrong: list[Any] = ["banana", "", [[]], {"a": {"b": 1}}, "2024-13-45", "1,5"]
    if isinstance(node[key], list):
        wrong = ["banana", 5, {"a": 1}, [None], [[1]], True]
    elif isinstance(node[key], dict):
        wrong = ["banana", 5, [1, 2], True]
    node[key] = d.draw.choice(wrong)
    return error(key)


# Another key that the message may name, where both together are the fault
_AKIN = {
    "learning_rate": ("gradient_clip",), "validation": ("test", "split"), "test": ("validation",
    "split"), "weight": ("tasks",), "num_experts": ("gate.k", "experts"), "eps": ("loss",),
    "weight_decay": ("learning_rate", "loss"), "z_loss": ("loss",), "temperature": ("loss", "gate"),
}  # fmt: skip


def odd_number(d: ConfigDraft) -> Expect:
    """A number is negative, zero, huge, infinite or no number."""
    # Not of epochs, which are as many as one says: it has to end in a test's time
    node, key = _any_leaf(
        d, lambda key, x: isinstance(x, int | float) and not isinstance(x, bool)
        and key not in ("epochs", "patience"))  # fmt: skip
    node[key] = d.draw.choice([-1, 0, 0.5, -0.5, 1e30, 10**30, 2**31, 2**63, 10**9, float("inf"),
                               float("nan"), -(10**12), 1e-30])  # fmt: skip
    return either((key, "memory", *_AKIN.get(key, ())), reference="none")


# Settings that do not go together, and the word that the error must hold
_CONTRADICTIONS: list[tuple[list[str], str]] = [
    (["data.split.by=time"], "column"), (["data.split.column=time"], "column"),
    (["data.split.validation=0.6", "data.split.test=0.5"], "validation"),
    (["data.split.by=file"], "data.path"), (["data.train=x.csv"], "data.train"),
    (["data.source=synthetic-funnel", "data.input=stream"], "data.input"),
    (["data.source=nowhere"], "data.source"), (["data.options={rows: 5}"], "data.options"),
    (["model.gate.kind=top_k", "model.gate.k=9"], "gate.k"), (["model.gate.k=3"], "k is 3"),
    (["model.gate.kind=switch", "model.gate.k=3"], "switch"),
    (["model.gate.jitter=0.1"], "jitter"), (["model.execution=padded"], "capacity"),
    (["model.kind=esmm", "tasks.buy.observed_when=null"], "esmm"),
    (["model.kind=mlp"], "model.kind"), (["model.gate.kind=softmx"], "gate.kind"),
    (["training.monitor=stars.auc"], "stars"),
    (["training.monitor=click.rmse"], "training.monitor"),
    (["training.monitor=auc"], "training.monitor"), (["features.item.table=things"], "things"),
    (["features.item.encoding=hash"], "min_count"), (["tables=[{name: item, dim: 8}]"], "item"),
    (["features.0.name=item"], "item"), (["tasks.buy.name=click"], "click"),
    (["tasks.click.weight=0", "tasks.buy.weight=0"], "weight"),
    (["tasks.buy.observed_when=buy"], "buy"), (["tasks.click.observed_when=buy"], "circle"),
    (["tasks.buy.observed_when=nothing"], "nothing"), (["tasks.click.label=clock"], "clock"),
    (["tasks.click.label=click >"], "click"), (["tasks.click.label=price"], "price"),
    (["tasks.click.label=__import__('os').system('true')"], "click"),
    (["tasks.click.weight_column=item"], "item"),
    (["tasks.click.kind=regression", "training.monitor=click.auc"], "training.monitor"),
    (["features.price.column=prize"], "prize"), (["features.user.dim=6"], "dim"),
    (["data.group_column=nobody"], "nobody"),
    (["data.split={by: hash, column: nobody}"], "nobody"), (["data.path=[]"], "data.path"),
    (["data.path=null"], "data.path"), (["name=../up"], "name"), (["seed=-1"], "seed"),
    (["features=[]"], "features"), (["tasks=[]"], "tasks"),
    (["model.expert.hidden=[]"], "hidden"), (["model.expert.hidden=[8, 0]"], "hidden"),
    (["model.capacity={minimum: 9, maximum: 3}"], "minimum"),
]  # fmt: skip


def contradiction(d: ConfigDraft) -> Expect:
    overrides, word = d.draw.choice(_CONTRADICTIONS)
    d.overrides += overrides
    return error(word)


def bad_override(d: ConfigDraft) -> Expect:
    """`--set` with something that is no assignment, or names nothing."""
    text = d.draw.choice(["epochs", "=3", "training.epochs", "training.epoch=3", "tasks.9.x=1",
                          "tasks.nobody.weight=2", "name.x=1", "seed=[1", "training=5",
                          "features.user.kind.x=1", "model.gate=[1]", "a.b.c.d=1",
                          "tasks.-1.weight=2", "features..name=x"])  # fmt: skip
    d.overrides.append(text)
    words = [part for part in text.split("=")[0].split(".") if part]
    return error(tuple({text, *words}) if words else "--set")


def no_yaml(d: ConfigDraft) -> Expect:
    """A file that YAML cannot read, or that is no config at all."""
    good = yaml.safe_dump(d.raw)
    texts: list[bytes] = [
        b"", b"# nothing yet\n", b"- a\n- b\n", b"just words\n", b"42\n", b"null\n", b"[]", b"{",
        b"a: [1, 2\n", b"a: 'open\n", b"\tname: x\n", b"a: b: c\n", b"a: *nowhere\n", b"&a [*a]\n",
        b"a: &a {b: *a}\n", b"!!python/object/apply:os.system ['true']\n", b"\xff\xfe\x00",
        b"name: \xe4\n", b"%YAML 9.9\n---\na: 1\n", b"a: 1\n---\nb: 2\n", b"? [1, 2]\n: 3\n",
        b"\x00\x01", b"name: x\nname: y\n", b"1: 2\n", b"null: 1\n", b"<<: 5\n",
        (good + "training: {epochs: 1}\n").encode(),
        good.replace("  ", " \t", 3).encode(),
    ]  # fmt: skip
    d.path.write_bytes(d.draw.choice(texts))
    return error(d.path.name)


def cut_yaml(d: ConfigDraft) -> Expect:
    d.write(d.text[: d.draw.randrange(1, len(d.text) - 60)])
    # Half a column's name is another column, which the log has not
    return either((d.path.name, "there is no column"), reference="none")


def flipped_letter(d: ConfigDraft) -> Expect:
    at = d.draw.randrange(len(d.text))
    letter = d.draw.choice("abz019:-[]{},'\"\n\t #&*!|>%@`\\é\0")
    d.write(d.text[:at] + letter + d.text[at + 1 :])
    return either(reference="none")


def alias_bomb(d: ConfigDraft) -> Expect:
    """A few hundred bytes whose aliases within aliases stand for millions of values."""
    names = [f"a{n}" for n in range(d.draw.randrange(8, 30))]
    lines = [f"{names[0]}: &{names[0]} [x, x]"]
    for before, name in pairwise(names):
        aliases = ", ".join([f"*{before}"] * d.draw.randrange(6, 12))
        nested = d.draw.random() < 0.2
        lines.append(f"{name}: &{name} " + (f"{{b: [{aliases}]}}" if nested else f"[{aliases}]"))
    if d.draw.random() < 0.3:
        d.overrides.append("name={" + ", ".join(lines) + "}")
        return error("--set", "alias")
    d.write(d.text + "\n".join(lines) + "\n")
    return error(d.path.name, "alias")


def missing_key(d: ConfigDraft) -> Expect:
    where = d.draw.choice(["features", "tasks", "path", "name", "task name", "label"])
    if where in ("features", "tasks"):
        del d.raw[where]
    elif where == "path":
        del d.raw["data"]["path"]
    elif where == "name":
        del d.raw["features"][d.draw.randrange(4)]["name"]
    else:
        del d.raw["tasks"][d.draw.randrange(2)]["name" if "name" in where else "label"]
    return error({"task name": "name"}.get(where, where))


def no_file(d: ConfigDraft) -> Expect:
    """The config is a folder, or is not there."""
    if d.draw.random() < 0.5:
        d.path.mkdir()
    else:
        d.write("a: 1")
        d.path = d.path.with_name("confg.yaml")
    return error(d.path.name)


def another_spelling(d: ConfigDraft) -> Expect:
    """The same config as JSON, in another order, with comments, or with numbers in quotes."""
    way = d.draw.choice(["json", "order", "comments", "quotes", "windows", "full", "mark",
                         "aliases"])  # fmt: skip
    if way == "quotes":
        d.raw["training"]["batch_size"] = str(d.raw["training"]["batch_size"])
        d.raw["seed"] = str(d.raw["seed"])
    elif way == "full":
        d.raw = d.full
    else:
        numbered = enumerate(d.text.splitlines())
        named = d.text.replace(" batch_size: 64", " batch_size: &rows 64")
        texts = {
            "json": json.dumps(d.raw),
            "order": yaml.safe_dump(d.raw, sort_keys=True),
            "comments": "\n".join(f"{line}  # {n}" for n, line in numbered),
            "aliases": named.replace("eval_batch_size: 64", "eval_batch_size: *rows"),
            "windows": d.text.replace("\n", "\r\n"),
            "mark": "\ufeff" + d.text,
        }
        d.write(texts[way])
    return right("clean")


CONFIG_FAULTS: tuple[Callable[[ConfigDraft], Expect], ...] = (
    typing_error, typing_error, wrong_type, wrong_type, odd_number, odd_number, contradiction,
    contradiction, bad_override, no_yaml, cut_yaml, flipped_letter, missing_key, no_file,
    another_spelling, alias_bomb,
)  # fmt: skip


def config_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    raw = small_config(str(space.log))
    # Small, so that a run whose sizes are odd still ends soon
    full = config_from_dict(raw).model_dump(mode="json")
    draft, fault = ConfigDraft(draw, raw, full, folder / "config.yaml"), draw.choice(CONFIG_FAULTS)
    expect = fault(draft)
    if not draft.path.exists() and fault is not no_file:
        draft.write(draft.text)
    out = folder / "out" / "run"
    overrides = [part for text in draft.overrides for part in ("--set", text)]
    arguments = ["train", str(draft.path), "--out", str(out), "--quiet", *overrides]
    return Case(fault.__name__, "train", expect, arguments, out)


# Label expressions

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


def expression_fault(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A label, or a condition under which one is observed."""
    shape, raw = draw.choice(_SHAPES), small_config(str(space.log))
    raw["data"]["input"] = draw.choice(["memory", "stream"])
    key = draw.choice(["label", "label", "observed_when"])
    kind = draw.choice(["binary", "regression"])
    raw["tasks"].append({"name": "third", "label": "click", "kind": kind, key: shape(draw)})
    config, out = write_yaml(folder / "config.yaml", raw), folder / "out" / "run"
    return Case(
        f"expression{shape.__name__}",
        "train",
        either("third", reference="none"),
        ["train", config, "--out", str(out), "--quiet"],
        out,
        words=(space.log.name, "config.yaml", "expression"),
    )

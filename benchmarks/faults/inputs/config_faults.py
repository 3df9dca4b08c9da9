"""Faults of a config: how people mistype, misindent and misunderstand."""

import copy
import json
import random
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.inputs.draft import Expect, either, error, right

Raw = dict[str, Any]


@dataclass
class ConfigDraft:
    """A config that is being broken.

    Attributes:
        draw: All that is random about the case.
        raw: Short: as one writes it by hand.
        full: Every default spelled out.
        path: Where the file goes; what a fault does not write itself is written as YAML.
        overrides: `--set` arguments.
    """

    draw: random.Random
    raw: Raw
    full: Raw
    path: Path
    overrides: list[str] = field(default_factory=list)


def typing_error(draft: ConfigDraft) -> Expect:
    """A letter of a key is wrong, missing or twice."""
    draft.raw = copy.deepcopy(draft.full)
    section = draft.draw.choice(_sections(draft.raw))
    key = draft.draw.choice([k for k in section if k != "options"])
    at = draft.draw.randrange(len(key))
    typo = draft.draw.choice([key[:at] + "q" + key[at + 1 :], key[:at] + key[at:] + "z",
                              key[:at] + key[at] + key[at:], key.upper(), " " + key])  # fmt: skip
    typo = typo if typo != key and typo not in section else key + "_x"
    section[typo] = section.pop(key)
    return error((typo, typo.strip(), key))


def wrong_type(draft: ConfigDraft) -> Expect:
    """A number, flag, list or section is a word, a list or a section instead."""
    draft.raw = copy.deepcopy(draft.full)
    leaves = [
        (node, key)
        for node in _sections(draft.raw)
        for key, value in node.items()
        if value is not None and not isinstance(value, str) and key != "options"
    ]
    node, key = draft.draw.choice(leaves)
    wrong: list[Any] = ["banana", "", [[]], {"a": {"b": 1}}, "2024-13-45", "1,5"]
    if isinstance(node[key], list):
        wrong = ["banana", 5, {"a": 1}, [None], [[1]], True]
    elif isinstance(node[key], dict):
        wrong = ["banana", 5, [1, 2], True]
    node[key] = draft.draw.choice(wrong)
    return error(key)


def odd_number(draft: ConfigDraft) -> Expect:
    """A number is negative, zero, huge, infinite or no number."""
    draft.raw = copy.deepcopy(draft.full)
    leaves = [
        (node, key)
        for node in _sections(draft.raw)
        for key, value in node.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    # Without an end in a test's time: epochs are as many as one says
    node, key = draft.draw.choice([(n, k) for n, k in leaves if k not in ("epochs", "patience")])
    value = draft.draw.choice([-1, 0, 0.5, -0.5, 1e30, 10**30, 2**31, 2**63, 10**9, float("inf"),
                               float("nan"), -(10**12), 1e-30])  # fmt: skip
    node[key] = value
    return either((key, "memory", *_AKIN.get(key, ())), reference="none")


# Another key that the message may name, where both together are the fault
_AKIN = {
    "learning_rate": ("gradient_clip",), "validation": ("test", "split"), "test": ("validation",
    "split"), "weight": ("tasks",), "num_experts": ("gate.k", "experts"), "eps": ("loss",),
    "weight_decay": ("learning_rate", "loss"), "z_loss": ("loss",), "temperature": ("loss", "gate"),
}  # fmt: skip


def contradiction(draft: ConfigDraft) -> Expect:
    """Settings that do not go together."""
    overrides, words = draft.draw.choice(_CONTRADICTIONS)
    draft.overrides += overrides
    return error(*words)


_CONTRADICTIONS: list[tuple[list[str], tuple[str, ...]]] = [
    (["data.split.by=time"], ("column",)),
    (["data.split.column=time"], ("column",)),
    (["data.split.validation=0.6", "data.split.test=0.5"], ("validation",)),
    (["data.split.by=file"], ("data.path",)),
    (["data.train=x.csv"], ("data.train",)),
    (["data.source=synthetic-funnel", "data.input=stream"], ("data.input",)),
    (["data.source=nowhere"], ("data.source",)),
    (["data.options={rows: 5}"], ("data.options",)),
    (["model.gate.kind=top_k", "model.gate.k=9"], ("gate.k",)),
    (["model.gate.k=3"], ("k is 3",)),
    (["model.gate.kind=switch", "model.gate.k=3"], ("switch",)),
    (["model.gate.jitter=0.1"], ("jitter",)),
    (["model.execution=padded"], ("capacity",)),
    (["model.kind=esmm", "tasks.buy.observed_when=null"], ("esmm",)),
    (["model.kind=mlp"], ("model.kind",)),
    (["model.gate.kind=softmx"], ("gate.kind",)),
    (["training.monitor=stars.auc"], ("stars",)),
    (["training.monitor=click.rmse"], ("training.monitor",)),
    (["training.monitor=auc"], ("training.monitor",)),
    (["features.item.table=things"], ("things",)),
    (["features.item.encoding=hash"], ("min_count",)),
    (["tables=[{name: item, dim: 8}]"], ("item",)),
    (["features.0.name=item"], ("item",)),
    (["tasks.buy.name=click"], ("click",)),
    (["tasks.click.weight=0", "tasks.buy.weight=0"], ("weight",)),
    (["tasks.buy.observed_when=buy"], ("buy",)),
    (["tasks.click.observed_when=buy"], ("circle",)),
    (["tasks.buy.observed_when=nothing"], ("nothing",)),
    (["tasks.click.label=clock"], ("clock",)),
    (["tasks.click.label=click >"], ("click",)),
    (["tasks.click.label=price"], ("price",)),
    (["tasks.click.label=__import__('os').system('true')"], ("click",)),
    (["tasks.click.weight_column=item"], ("item",)),
    (["tasks.click.kind=regression", "training.monitor=click.auc"], ("training.monitor",)),
    (["features.price.column=prize"], ("prize",)),
    (["features.user.dim=6"], ("dim",)),
    (["data.group_column=nobody"], ("nobody",)),
    (["data.split={by: hash, column: nobody}"], ("nobody",)),
    (["data.path=[]"], ("data.path",)),
    (["data.path=null"], ("data.path",)),
    (["name=../up"], ("name",)),
    (["seed=-1"], ("seed",)),
    (["features=[]"], ("features",)),
    (["tasks=[]"], ("tasks",)),
    (["model.expert.hidden=[]"], ("hidden",)),
    (["model.expert.hidden=[8, 0]"], ("hidden",)),
    (["model.capacity={minimum: 9, maximum: 3}"], ("minimum",)),
]


def bad_override(draft: ConfigDraft) -> Expect:
    """`--set` with something that is no assignment, or names nothing."""
    text = draft.draw.choice(["epochs", "=3", "training.epochs", "training.epoch=3", "tasks.9.x=1",
                              "tasks.nobody.weight=2", "name.x=1", "seed=[1", "training=5",
                              "features.user.kind.x=1", "model.gate=[1]", "a.b.c.d=1",
                              "tasks.-1.weight=2", "features..name=x"])  # fmt: skip
    draft.overrides.append(text)
    words = [part for part in text.split("=")[0].split(".") if part]
    return error(tuple({text, *words}) if words else "--set")


def no_yaml(draft: ConfigDraft) -> Expect:
    """A file that YAML cannot read, or that is no config at all."""
    good = yaml.safe_dump(draft.raw)
    texts: list[bytes] = [
        b"", b"# nothing yet\n", b"- a\n- b\n", b"just words\n", b"42\n", b"null\n", b"[]", b"{",
        b"a: [1, 2\n", b"a: 'open\n", b"\tname: x\n", b"a: b: c\n", b"a: *nowhere\n", b"&a [*a]\n",
        b"a: &a {b: *a}\n", b"!!python/object/apply:os.system ['true']\n", b"\xff\xfe\x00",
        b"name: \xe4\n", b"%YAML 9.9\n---\na: 1\n", b"a: 1\n---\nb: 2\n", b"? [1, 2]\n: 3\n",
        b"\x00\x01", b"name: x\nname: y\n", b"1: 2\n", b"null: 1\n", b"<<: 5\n",
        (good + "training: {epochs: 1}\n").encode(),
        good.replace("  ", " \t", 3).encode(),
    ]  # fmt: skip
    draft.path.write_bytes(draft.draw.choice(texts))
    return error(draft.path.name)


def cut_yaml(draft: ConfigDraft) -> Expect:
    """A config that ends in the middle."""
    text = yaml.safe_dump(draft.raw, sort_keys=False)
    draft.path.write_text(text[: draft.draw.randrange(1, len(text) - 60)], encoding="utf-8")
    # Half a column's name is another column, which the log has not
    return either((draft.path.name, "there is no column"), reference="none")


def flipped_letter(draft: ConfigDraft) -> Expect:
    """One character of the file is another."""
    text = yaml.safe_dump(draft.raw, sort_keys=False)
    at = draft.draw.randrange(len(text))
    letter = draft.draw.choice("abz019:-[]{},'\"\n\t #&*!|>%@`\\é\0")
    draft.path.write_text(text[:at] + letter + text[at + 1 :], encoding="utf-8")
    return either(reference="none")


def alias_bomb(draft: ConfigDraft) -> Expect:
    """A few hundred bytes whose aliases within aliases stand for millions of values."""
    names = [f"a{n}" for n in range(draft.draw.randrange(8, 30))]
    lines = [f"{names[0]}: &{names[0]} [x, x]"]
    for before, name in pairwise(names):
        aliases = ", ".join([f"*{before}"] * draft.draw.randrange(6, 12))
        nested = draft.draw.random() < 0.2
        lines.append(f"{name}: &{name} " + (f"{{b: [{aliases}]}}" if nested else f"[{aliases}]"))
    if draft.draw.random() < 0.3:
        draft.overrides.append("name={" + ", ".join(lines) + "}")
        return error("--set", "alias")
    text = yaml.safe_dump(draft.raw, sort_keys=False)
    draft.path.write_text(text + "\n".join(lines) + "\n", encoding="utf-8")
    return error(draft.path.name, "alias")


def missing_key(draft: ConfigDraft) -> Expect:
    """Something that is required is left out."""
    where = draft.draw.choice(["features", "tasks", "path", "name", "task name", "label"])
    if where in ("features", "tasks"):
        del draft.raw[where]
    elif where == "path":
        del draft.raw["data"]["path"]
    elif where == "name":
        del draft.raw["features"][draft.draw.randrange(4)]["name"]
    else:
        del draft.raw["tasks"][draft.draw.randrange(2)]["name" if "name" in where else "label"]
    return error({"task name": "name"}.get(where, where))


def no_file(draft: ConfigDraft) -> Expect:
    """The config is a folder, or is not there."""
    if draft.draw.random() < 0.5:
        draft.path.mkdir()
    else:
        draft.path = draft.path.with_name("confg.yaml")
        draft.path.with_name("config.yaml").write_text("a: 1", encoding="utf-8")
    return error(draft.path.name)


def another_spelling(draft: ConfigDraft) -> Expect:
    """The same config as JSON, in another order, with comments, or with numbers in quotes."""
    way = draft.draw.choice(["json", "order", "comments", "quotes", "windows", "full", "mark",
                             "aliases"])  # fmt: skip
    if way == "json":
        draft.path.write_text(json.dumps(draft.raw), encoding="utf-8")
    elif way == "order":
        draft.path.write_text(yaml.safe_dump(draft.raw, sort_keys=True), encoding="utf-8")
    elif way == "comments":
        lines = yaml.safe_dump(draft.raw, sort_keys=False).splitlines()
        commented = "\n".join(f"{line}  # {n}" for n, line in enumerate(lines))
        draft.path.write_text(commented, encoding="utf-8")
    elif way == "quotes":
        draft.raw["training"]["batch_size"] = str(draft.raw["training"]["batch_size"])
        draft.raw["seed"] = str(draft.raw["seed"])
    elif way == "aliases":
        text = yaml.safe_dump(draft.raw, sort_keys=False)
        named = text.replace(" batch_size: 64", " batch_size: &rows 64")
        named = named.replace("eval_batch_size: 64", "eval_batch_size: *rows")
        draft.path.write_text(named, encoding="utf-8")
    elif way == "full":
        draft.raw = draft.full
    else:
        text = yaml.safe_dump(draft.raw, sort_keys=False)
        encoded = text.replace("\n", "\r\n").encode() if way == "windows" else text.encode(
            "utf-8-sig")  # fmt: skip
        draft.path.write_bytes(encoded)
    return right("clean")


def _sections(node: Any) -> list[Raw]:
    """Every mapping of a config that holds something."""
    if isinstance(node, list):
        return [section for item in node for section in _sections(item)]
    if not isinstance(node, dict):
        return []
    return ([node] if node else []) + [s for value in node.values() for s in _sections(value)]


CONFIG_FAULTS = (
    typing_error, typing_error, wrong_type, wrong_type, odd_number, odd_number, contradiction,
    contradiction, bad_override, no_yaml, cut_yaml, flipped_letter, missing_key, no_file,
    another_spelling, alias_bomb,
)  # fmt: skip

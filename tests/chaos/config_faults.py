"""Faults of a config: mistyped, misunderstood, cut, or written in another way.

tests/config holds what contradicts itself, is no YAML or no assignment, one by one.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mmoe.config import config_from_dict
from tests.chaos.draft import Case, Expect, Workspace, either, error, right
from tests.chaos.small_log import small_config

Raw = dict[str, Any]


@dataclass
class ConfigDraft:
    """A config that is being broken: `raw` as one writes it by hand, `full` with every default.

    What a fault does not put in place of `text` is written as YAML.
    """

    draw: random.Random
    raw: Raw
    full: Raw
    text: str = ""

    def yaml(self) -> str:
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


def cut_yaml(d: ConfigDraft) -> Expect:
    text = d.yaml()
    d.text = text[: d.draw.randrange(1, len(text) - 60)]
    # Half a column's name is another column, which the log has not
    return either(("config.yaml", "there is no column"), reference="none")


def flipped_letter(d: ConfigDraft) -> Expect:
    text = d.yaml()
    at = d.draw.randrange(len(text))
    letter = d.draw.choice("abz019:-[]{},'\"\n\t #&*!|>%@`\\é\0")
    d.text = text[:at] + letter + text[at + 1 :]
    return either(reference="none")


def another_spelling(d: ConfigDraft) -> Expect:
    """The same config as JSON, in another order, with comments, or with numbers in quotes."""
    way = d.draw.choice(["json", "order", "comments", "quotes", "windows", "full", "mark",
                         "aliases"])  # fmt: skip
    if way == "quotes":
        d.raw["training"]["batch_size"] = str(d.raw["training"]["batch_size"])
        d.raw["seed"] = str(d.raw["seed"])
    elif way == "full":
        d.raw = d.full
    text = d.yaml()
    named = text.replace(" batch_size: 64", " batch_size: &rows 64")
    d.text = {
        "json": json.dumps(d.raw),
        "order": yaml.safe_dump(d.raw),
        "comments": "\n".join(f"{line}  # {n}" for n, line in enumerate(text.splitlines())),
        "aliases": named.replace("eval_batch_size: 64", "eval_batch_size: *rows"),
        "windows": text.replace("\n", "\r\n"),
        "mark": "\ufeff" + text,
    }.get(way, "")
    return right("clean")


CONFIG_FAULTS: tuple[Callable[[ConfigDraft], Expect], ...] = (
    typing_error, typing_error, wrong_type, wrong_type, odd_number, odd_number, cut_yaml,
    flipped_letter, another_spelling,
)  # fmt: skip


def config_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    raw = small_config(str(space.log))
    # Small, so that a run whose sizes are odd still ends soon
    full = config_from_dict(raw).model_dump(mode="json")
    draft, fault = ConfigDraft(draw, raw, full), draw.choice(CONFIG_FAULTS)
    expect = fault(draft)
    path, out = folder / "config.yaml", folder / "out" / "run"
    path.write_bytes((draft.text or draft.yaml()).encode())
    given = ["train", str(path), "--out", str(out), "--quiet"]
    return Case(fault.__name__, "train", expect, given, out)

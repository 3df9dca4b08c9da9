"""Config files: what is accepted, and what the errors say."""

import subprocess
import sys

import pytest
import yaml

from mmoe.config import config_from_dict, dump_config, load_config, loading, set_values

SMALL = {
    "features": [{"kind": "numeric", "name": "age"}],
    "tasks": [{"name": "click", "label": "click"}],
}


def _with(**sections):
    return {**SMALL, **sections}


@pytest.mark.parametrize(("raw", "message"), [
    (_with(training={"epoch": 3}), "training.epoch: unknown key 'epoch'; did you mean 'epochs'?"),
    (_with(parallel={"per_table": {"a": {"precision": "int8"}}}),
     r"parallel.per_table.a.precision: int8 rows cannot be trained \(FBGEMM's CPU kernels have no "
     r"gradient for them\); train in fp32 or fp16, .*--table-precision int8"),
    (_with(parallel={"tables": {"precision": "int4"}}), "precision: .*'fp16'.*got 'int4'"),
    (_with(features=[{"kind": "categorical", "name": "user.id"}]),
     "name: expected a letter or _, .* got 'user.id'; say name: user_id, column: 'user.id'"),
    (_with(tasks=[{"name": "5 stars", "label": "5 stars"}]),
     r"tasks.0.name: expected .* got '5 stars'; say name: _5_stars$"),
    (_with(tasks=[{"name": "mean", "label": "mean"}]),
     r"tasks.0.name: 'mean' is what training.monitor calls .* choose another name"),
    (_with(training=3), r"training: expected a mapping \{key: value, …\}, got 3"),
    (_with(model={"interaction": 3}), "model.interaction: expected a mapping"),
    (_with(features=[3]), "features.0: expected a mapping"),
    (_with(tasks=[3]), "tasks.0: expected a mapping"),
    (_with(training={"epochs": "many"}), "training.epochs: .*valid integer.*got 'many'"),
    (_with(model={"embedding_dim": 6}), "model.embedding_dim: .*multiple of 4, got 6"),
    ({"tasks": SMALL["tasks"]}, "features: is required, but missing"),
    (_with(tasks=[]), "tasks: .*at least 1 item"),
    (_with(features=SMALL["features"] * 2), "feature 'age' is defined twice"),
    (_with(features=[{"kind": "categorical", "name": "a", "table": "b"}]),
     "names the table 'b', which is not under `tables`; there: none"),
    (_with(tables=[{"name": "t"}], features=[{"kind": "categorical", "name": "a", "table": "t",
                                              "min_count": 2}]),
     "min_count must be set on that table under `tables`"),
    (_with(training={"monitor": "buy.auc"}), "there is no task 'buy'; tasks: click"),
    (_with(training={"monitor": "click.rmse"}), "rmse needs a regression task"),
    (_with(model={"kind": "esmm"}), "esmm needs exactly two binary tasks"),
    (_with(tasks=[{"name": "buy", "label": "buy", "kind": "entire_space"}]),
     "kind is entire_space, which needs `observed_when:` .*got None, binary: none"),
    (_with(model={"gate": {"kind": "top_k", "k": 9}}),
     "gate.k is 9, but a gate of mmoe sees 8 expert"),
    (_with(data={"split": {"by": "time"}}), "split by time needs `column`"),
    (_with(data={"split": {"validation": 0.6, "test": 0.5}}), "must leave rows to train on"),
    (_with(training={"gradient_clip": float("nan")}), "training.gradient_clip"),
])  # fmt: skip
def test_errors_name_the_key_and_the_way_out(raw, message):
    with pytest.raises(ValueError, match=message) as caught:
        config_from_dict(raw, origin="my.yaml")
    assert str(caught.value).startswith("my.yaml: ")
    assert "\n" not in str(caught.value)


def test_overrides():
    raw = set_values(SMALL, ["training.epochs=3", "tasks.click.weight=2.5", "features.0.log=true"])
    config = config_from_dict(raw)
    assert (config.training.epochs, config.tasks[0].weight) == (3, 2.5)
    assert config.features[0].log
    assert "training" not in SMALL, "the original is left alone"


def test_keys_of_what_was_written_as_a_bare_name():
    raw = {
        "model": {"interaction": "masknet", "transfer": "aitm", "gate": None},
        "features": [{"kind": "sequence", "name": "seen", "encoder": "din"}],
    }
    settings = ["interaction.blocks=2", "transfer.dim=4", "gate.k=3"]
    texts = [f"model.{text}" for text in settings]
    found = set_values(raw, [*texts, "features.seen.encoder.hidden=[3]"])
    assert found == {
        "model": {
            "interaction": {"kind": "masknet", "blocks": 2},
            "transfer": {"kind": "aitm", "dim": 4},
            "gate": {"k": 3},
        },
        "features": [
            {"kind": "sequence", "name": "seen", "encoder": {"kind": "din", "hidden": [3]}}
        ],
    }


@pytest.mark.parametrize(("override", "message"), [
    ("training.epochs", "expected key.path=value"),
    ("tasks.buy.weight=1", "no item 'buy' in that list; there are: click"),
    ("name.first=1", "name"),
    ("name=2024-13-01", "--set .*'2024-13-01' in line 1 is no timestamp .*in quotes"),
    ("name=!!bool maybe", "--set .*'maybe' in line 1 is no bool; .*in quotes"),
    ("name={a: 1, a: 2}", "--set .*key 'a' is given twice in the section from line 1"),
    pytest.param(f"name={'[' * 3000}", "--set .*nested too deeply", id="deep"),
])  # fmt: skip
def test_bad_overrides(override, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(set_values({**SMALL, "name": "run"}, [override]))


@pytest.mark.parametrize(("text", "message"), [
    ("", "got an empty file"),
    ("- a\n- b\n", "got a list"),
    ("a: [1,\n", "is not valid YAML"),
    ("seed: 1\nseed: 2\n", "key 'seed' is given twice"),
    ("features: &a [*a]\n", "contains itself|recursive"),
    ("a: &a {x: 1}\nb: {<<: *a, x: 2, x: 3}\n", "key 'x' is given twice .* line 2"),
    ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", r"twice .*merge several with <<: \[\*a, \*b\]"),
    ("a: 1\nb: {<<: 3}\n", "is not valid YAML: .*expected a mapping"),
    ("a: 1\nb: [2024-13-01]\n", "'2024-13-01' in line 2 is no timestamp .month must be in"),
    ("a: !!timestamp soon\n", "'soon' in line 1 is no timestamp; if it is text, write"),
    ("a: !!int ''\n", "'' in line 1 is no int"),
    pytest.param("[" * 3000, "nested too deeply", id="deep"),
])  # fmt: skip
def test_broken_files(tmp_path, text, message):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_merged_keys_may_be_overridden(tmp_path):
    path = tmp_path / "merged.yaml"
    path.write_text(
        """
features:
  - &id {kind: categorical, name: user, min_count: 3, dim: 8}
  - &seldom {<<: *id, name: item, min_count: 9}
  - {<<: [*seldom, *id], name: shop}
  - {name: place, <<: *seldom, dim: 4}
tasks: [{name: click, label: click}]
"""
    )
    found = [(f.name, f.table_encoding.min_count, f.dim) for f in load_config(path).features]
    assert found == [("user", 3, 8), ("item", 9, 8), ("shop", 9, 8), ("place", 9, 4)]


def test_what_is_too_deep_or_too_long_is_refused_before_it_is_made(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text(f"a: {'[' * 100}{']' * 100}")
    with pytest.raises(ValueError, match=r"cannot be read as a config: its lists .* too deeply"):
        load_config(path)
    monkeypatch.setattr(loading, "_LONGEST", 10)
    with pytest.raises(ValueError, match=r"it has 203 characters, expected at most 10"):
        load_config(path)
    with pytest.raises(ValueError, match=r"none.yaml: no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"--set .*it has 11 characters, expected at most 10"):
        set_values(SMALL, [f"name={'n' * 11}"])


def test_config_and_help_import_no_torch():
    code = (
        "import sys, mmoe.config, mmoe.cli; print({'torch','pandas','sklearn'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def _bomb(levels, width=9):
    """Each line names the one before it so many times."""
    lines = ["a0: &a0 [x]"]
    for n in range(1, levels):
        aliases = ", ".join([f"*a{n - 1}"] * width)
        lines.append(f"a{n}: &a{n} [{aliases}]")
    return "\n".join(lines)


def _doubling(levels, times=2):
    """Each line merges the one before it so many times."""
    lines = ["m0: &m0 {a: 1, b: 2}"]
    lines += [
        f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * times)}]}}" for n in range(1, levels)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [_bomb(40), _bomb(7), _doubling(7, 30), _doubling(60)])
def test_aliases_that_stand_for_millions_of_values(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"^\S+config.yaml: cannot be read .* repeat .* values, ex"
    ):
        load_config(path)
    value = "{" + text.replace("\n", ", ") + "}"
    with pytest.raises(ValueError, match=r"^--set 'name=.*bad value: its aliases .* repeat"):
        set_values(SMALL, [f"name={value}"])


def test_ordinary_anchors(tmp_path):
    path = tmp_path / "config.yaml"
    features = "\n".join(f"  - {{kind: numeric, name: f{n}, buckets: *b}}" for n in range(300))
    path.write_text(
        "features:\n  - {kind: numeric, name: age, buckets: &b 8}\n"
        f"{features}\ntasks:\n  - {{name: &c click, label: *c}}\n"
    )
    config = load_config(path, ["data.path=[&p x.csv, *p]"])
    assert {feature.buckets for feature in config.features} == {8}
    assert config.tasks[0].label == "click"
    assert config.data.path == ["x.csv", "x.csv"]


@pytest.mark.parametrize("kind", ["cat", "mlp", {"x": 1}, None, "['a']"])
def test_a_kind_that_is_misspelt_or_none_at_all_is_no_matter_of_imports(kind):
    with pytest.raises(ValueError, match=r"features\.0\.kind: expected one of 'numeric'") as caught:
        config_from_dict(_with(features=[{"kind": kind, "name": "age"}]))
    assert ("--import" in str(caught.value)) == (kind == "['a']")


def test_another_kind_of_any_section_keeps_the_keys_that_it_has():
    raw = yaml.safe_load(dump_config(config_from_dict(_with(
        features=[{"kind": "categorical", "name": "item", "min_count": 3, "dim": 8}],
        model={"gate": {"kind": "top_k", "k": 3, "hidden": [4]}, "interaction": "masknet"},
    ))))  # fmt: skip
    said = []
    sets = ["features.item.encoding=hash", "model.gate.kind=softmax", "model.interaction.kind=none",
            "model.kind=cgc", "training.embedding_optimizer.kind=adam"]  # fmt: skip
    config = config_from_dict(set_values(raw, sets, said.append))
    assert config.features[0].model_dump()["hash_size"] == 100_000
    assert (config.features[0].dim, config.model.gate.hidden) == (8, [4])
    assert said == [
        "--set features.item.encoding=hash: dropped min_count, which this kind has not",
        "--set model.gate.kind=softmax: dropped k, which this kind has not",
    ]
    raw = yaml.safe_load(dump_config(config_from_dict(SMALL)))
    sets = [
        "model.expert.kind=fm",
        "model.kind=shared_bottom",
        "training.embedding_optimizer={}",
        "training.embedding_optimizer.kind=adam",
        "training.embedding_optimizer.kind=adagrad",
    ]
    config_from_dict(set_values(raw, sets, said.append))
    assert len(said) == 2, "what says a default, sections among them, is dropped without a word"
    number = {"kind": "numeric", "name": "age", "column": "years", "log": True, "buckets": 20}
    raw = _with(features=[number])
    # Keys given before the kind that has them stay, and so does what no kind has, to be refused
    early = ["features.age.min_count=5", "features.age.bukets=5", "features.age.kind=categorical"]
    with pytest.warns(UserWarning, match="dropped log, buckets"):
        [found] = set_values(raw, early)["features"]
    expected = {"kind": "categorical", "name": "age", "column": "years"}
    assert found == expected | {"min_count": 5, "bukets": 5}
    assert set_values(raw, ["features.age.kind=numbers"])["features"][0]["log"]


@pytest.mark.parametrize(("model", "nearest"), [
    ({"kind": "mmo"}, "got 'mmo'; did you mean 'mmoe'?"),
    ({"kind": "MMoE"}, "got 'MMoE'; did you mean 'mmoe'?"),
    ({"kind": "single-task"}, "got 'single-task'; did you mean 'single_task'?"),
    ({"kind": "mmoe", "gate": {"kind": "topk"}}, "got 'topk'; did you mean 'top_k'?"),
])  # fmt: skip
def test_a_misspelt_choice_is_answered_with_the_nearest(model, nearest):
    with pytest.raises(ValueError, match=r"kind: Input should be") as caught:
        config_from_dict(_with(model=model))
    assert str(caught.value).endswith(nearest)

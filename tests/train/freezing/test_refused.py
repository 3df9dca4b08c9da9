"""What cannot be frozen, or not in this way: one line with the mend, and nothing written."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.explain import prune_run
from mmoe.train import WarmStart, train_run
from mmoe.train.backtest import BacktestSettings, backtest
from tests.train.freezing.growing import AGE, PLACE, config_of, grown_log, splits_of

EVERYTHING = "training.freeze=[experts, gates, towers, tables, encoder]"


@pytest.fixture(scope="module", name="log")
def _log(funnel_table) -> pa.Table:
    return grown_log(funnel_table)


@pytest.fixture(scope="module", name="before")
def _before(funnel_config, log, tmp_path_factory):
    """A run, and the config it was trained with."""
    config = config_of(funnel_config)
    folder = tmp_path_factory.mktemp("before") / "run"
    return train_run(config, folder, splits=splits_of(log, users=25)).directory


@pytest.fixture(name="refused")
def _refused(funnel_config, log, before, tmp_path):
    """The line with which a run that adds a task (or `new=False`: none) is refused."""

    def run(*values: str, new: bool = True, start: bool = True, features=()) -> str:
        config = config_of(funnel_config, *values, new=new, features=features)
        warm = WarmStart(before.path) if start else None
        with pytest.raises(ValueError, match=r"^(training\.|--warm-start)") as caught:
            train_run(config, tmp_path / "run", splits=splits_of(log), warm_start=warm)
        assert not (tmp_path / "run").exists()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return run


def test_what_is_not_there(refused):
    line = refused("training.freeze=[exprts]")
    assert line.startswith(
        "training.freeze: 'exprts' matches no parameter of the --warm-start run; there are: "
        "experts, gates, towers.click, towers, towers.buy, tables, tables.user, "
    )
    assert line.endswith("encoder; did you mean experts?")
    assert "did you mean towers.click?" in refused("training.freeze=[towers.clik]")
    assert "did you mean tables.user?" in refused("training.freeze=[tables.users]")


def test_what_is_new(refused):
    line = "training.freeze: 'towers.like' is new in this run, and would stay as it was drawn; "
    assert refused("training.freeze=[towers.like]").startswith(line)
    assert "'tables.place' is new" in refused(
        "training.freeze=[tables.place]", features=({"kind": "categorical", "name": "place"},)
    )


def test_nothing_left_to_train(refused):
    line = refused(EVERYTHING, new=False)
    assert "freezes everything, so that nothing is left to train; add a task" in line
    assert "nothing is left to train" in refused("training.freeze=['*', tables]", new=False)


def test_without_a_warm_start(refused, mmoe, before, tmp_path):
    line = refused(start=False)
    assert "would keep weights that nothing has trained; name the run that has" in line
    code, _, err = mmoe("train", before.config_file, "--freeze", "experts", "--out", tmp_path / "x")
    assert code == 2
    assert err.count("\n") == 1 and "--warm-start RUN_DIR, or remove training.freeze" in err


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("features.1.min_count=3", "features.item.min_count is 1 there and 3 here, but"),
        ("features.0.max_rows=999", "features.user.max_rows is None there and 999 here, but"),
        ("features.2.log=false", "features.price.log is True there and False here"),
        ("model.gate.temperature=2", "model.gate.temperature is 1.0 there and 2.0 here, and what"),
        ("model.execution=grouped", "model.execution is 'auto' there and 'grouped' here, and what"),
        ("training.precision=bf16", "training.precision is 'fp32' there and 'bf16' here"),
        ("tasks.0.negative_sampling_rate=0.5", "towers.click is to stay, but the task's"),
    ],
)
def test_other_settings_of_what_is_frozen(refused, value, said):
    assert said in refused(value)


def test_what_nothing_would_read(refused):
    line = refused("model.num_experts=5", "training.freeze=[experts]", new=False)
    assert line.startswith("training.freeze: expert 4 is new, but gates and experts of before")
    line = refused("training.freeze=[experts]", new=False, features=(AGE,))
    assert line.startswith("training.freeze: feature age is new, but gates and experts of before")


def test_what_was_there_and_is_not(refused, funnel_config, log, before, tmp_path):
    raw = {**funnel_config, "features": funnel_config["features"][:3]}
    config = config_of(raw, "training.freeze=[experts, tables]")
    with pytest.raises(ValueError, match=r"training\.freeze: tags of .* is not in this config"):
        train_run(config, tmp_path / "x", splits=splits_of(log), warm_start=WarmStart(before.path))
    assert "expert 3 of " in refused("model.num_experts=2")


def test_rows_for_new_ids_without_a_frozen_encoder(refused):
    line = refused("training.extend_ids=true", "training.freeze=[experts]")
    assert "and none is frozen: add encoder to training.freeze" in line
    line = refused("training.extend_ids=true", "training.freeze=[]")
    assert "but training.freeze is empty; add encoder to it" in line
    freeze = "training.freeze=[experts, encoder]"
    assert "feature user__new1 is new" in refused("training.extend_ids=true", freeze, new=False)


GATE = "{kind: top_k, select: joint, shared_k: 1, private_k: 1, select_voters: [click, %s]}"
WEIGHTS = r"^training\.freeze: {} has weights for each task, and for like none in --warm-start"
BIAS = "model.bias={features: [place]}"


@pytest.mark.parametrize(
    ("before", "after", "features", "said"),
    [
        (["model.interaction=dcn_v2"], [], (AGE,), r"all features, and there are new ones \(age\)"),
        (["model.interaction=fm"], ["training.freeze=[interaction]"], (),
         WEIGHTS.format("interaction")),
        ([BIAS], ["training.freeze=[bias]"], (PLACE,), WEIGHTS.format("bias")),
        ([], [BIAS, "training.freeze=[bias]"], (PLACE,), "bias has weights that are not in --"),
        (["model.num_experts=4", f"model.gate={GATE % 'buy'}"], [f"model.gate={GATE % 'like'}"], (),
         r"select_voters is \['click', 'like'\], but \['click', 'buy'\] in"),
    ],
    ids=["features", "interaction", "bias", "no bias", "votes"],
)  # fmt: skip
def test_parts_with_weights_that_the_earlier_run_lacks(
    funnel_config, log, tmp_path, before, after, features, said
):
    old = (PLACE,) if PLACE in features else ()
    one = train_run(
        config_of(funnel_config, *before, features=old), tmp_path / "one", splits=splits_of(log)
    ).directory.path
    config = config_of(funnel_config, *before, *after, new=True, features=features)
    with pytest.raises(ValueError, match=said):
        train_run(config, tmp_path / "two", splits=splits_of(log), warm_start=WarmStart(one))


def test_towers_that_learnt_on_while_others_were_frozen_have_every_domain(
    funnel_config, log, tmp_path
):
    """Frozen only later, they have weights for a domain that is new then."""
    own = "model.domains={column: scene, towers: own}"
    known, path = log.filter(pc.not_equal(log["scene"], "radio")), None
    for number, freeze in enumerate(("[]", "[tables]")):
        config = config_of(funnel_config, own, f"training.freeze={freeze}", new=number > 0)
        path = train_run(
            config, tmp_path / str(number), splits=splits_of(known),
            warm_start=None if path is None else WarmStart(path),
        ).directory.path  # fmt: skip
    config = config_of(funnel_config, own, "training.freeze=[tables, towers]", new=True)
    assert path is not None
    with pytest.raises(ValueError, match=r"^training\.freeze: towers\.click ") as caught:
        train_run(config, tmp_path / "two", splits=splits_of(log), warm_start=WarmStart(path))
    line = "towers.click has weights for each domain, and for radio none in --warm-start"
    assert line in str(caught.value)
    assert str(caught.value).endswith("drawn; leave it out of training.freeze")


def test_a_model_that_grew_does_not_grow_unfrozen(funnel_config, log, before, tmp_path):
    two = train_run(
        config_of(funnel_config, new=True), tmp_path / "two", splits=splits_of(log),
        warm_start=WarmStart(before.path),
    )  # fmt: skip
    raw = set_values(two.directory.config().model_dump(mode="json"), ["training.freeze=[]"])
    raw["tasks"].append({"name": "dear", "label": "price > 1"})
    with pytest.raises(ValueError, match="grew from another run, whose parts were frozen"):
        train_run(
            config_from_dict(raw), tmp_path / "x", splits=splits_of(log),
            warm_start=WarmStart(two.directory.path),
        )  # fmt: skip

    with pytest.raises(ValueError, match="--experts: gates and experts of this run came one after"):
        prune_run(two.directory, [1], tmp_path / "pruned")
    assert not (tmp_path / "pruned").exists()

    raw = {**funnel_config, "features": funnel_config["features"][1:]}
    with pytest.raises(ValueError, match=r"model\.stages\.0: feature 'user' is not there any more"):
        train_run(
            config_of(raw), tmp_path / "y", splits=splits_of(log),
            warm_start=WarmStart(two.directory.path),
        )  # fmt: skip


def test_a_backtest_begins_with_nothing(funnel_config, log, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(log.append_column("day", pa.array([n % 3 for n in range(len(log))])),
                   tmp_path / "log.parquet")  # fmt: skip
    config = config_of(funnel_config, f"data.path={tmp_path}/log.parquet",
                       "training.freeze=[experts]")  # fmt: skip
    with pytest.raises(ValueError, match="would keep weights that nothing has trained"):
        backtest(config, tmp_path / "days", BacktestSettings(column="day"))

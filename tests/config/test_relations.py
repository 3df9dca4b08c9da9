"""`after`, and what reads it: wrong ones are refused in one line that says how to mend them."""

import re

import pytest

from mmoe.config import config_from_dict, dump_config, load_config, set_values
from mmoe.config.relations import order_of, parents_of

RAW = {
    "features": [{"kind": "numeric", "name": "age"}],
    "tasks": [
        {"name": "click", "label": "click"},
        {"name": "cart", "label": "cart"},
        {"name": "buy", "label": "buy"},
        {"name": "stars", "label": "stars", "kind": "regression"},
    ],
}
ENTIRE = ("tasks.buy.kind=entire_space", "tasks.buy.after=click")


def configured(*settings):
    return config_from_dict(set_values(RAW, settings))


def test_parents_and_their_order():
    config = configured("tasks.cart.after=click", "tasks.buy.after=[click, cart]")
    assert [task.after for task in config.tasks] == [[], ["click"], ["click", "cart"], []]
    assert parents_of(config.tasks) == [[], [0], [0, 1], []]
    assert configured("tasks.buy.after=null").tasks[2].after == []
    assert order_of([[2], [], [1], []]) == [1, 2, 0, 3]
    assert order_of([[], [], []]) == [0, 1, 2]
    chain = [[n + 1] for n in range(3000)] + [[]]
    assert order_of(chain) == list(range(3000, -1, -1))


@pytest.mark.parametrize(("settings", "message"), [
    (["tasks.click.after=buy", "tasks.buy.after=click"],
     "after: in a circle: click → buy → click; remove one"),
    (["tasks.click.after=buy", "tasks.cart.after=click", "tasks.buy.after=[stars, cart]"],
     "after: in a circle: click → cart → buy → click; remove one"),
    (["tasks.buy.after=clik"], "task 'buy': after names 'clik', .*did you mean 'click'"),
    (["tasks.buy.after=x"], "no such task; tasks: click, cart, buy, stars"),
    (["tasks.buy.after=buy"], "task 'buy': after names the task itself; remove it"),
    (["tasks.buy.after=[click, click]"], "after names 'click' twice; remove one"),
    (["tasks.buy.after=3"], "tasks.2.after: Input should be a valid list, got 3"),
    (["tasks.buy.after=[3]"], "tasks.2.after.0: Input should be a valid string, got 3"),
    (["tasks.buy.kind=entire_space"], r"kind is entire_space, which needs .*`after:`.*got None"),
    (["tasks.buy.kind=entire_space", "tasks.buy.after=stars"],
     "needs .*`after:`.*got 'stars', binary: click, cart"),
    ([*ENTIRE, "tasks.buy.observed_when=cart"],
     "after says click and observed_when says cart.*remove observed_when"),
    (["tasks.buy.kind=entire_space", "tasks.buy.after=[click, cart]"],
     "after names click, cart, but kind entire_space has one event; say which: obs"),
    ([*ENTIRE, "tasks.buy.counterfactual=snips"],
     "counterfactual: Input should be 'ips' or 'dr', got 'snips'"),
    ([*ENTIRE, "tasks.buy.propensity_floor=0.1"],
     "propensity_floor is 0.1, which has no effect without counterfactual"),
    ([*ENTIRE, "tasks.buy.counterfactual_weight=2"],
     "counterfactual_weight is 2.0, which has no effect without counterfactual"),
    ([*ENTIRE, "tasks.buy.counterfactual=ips", "tasks.buy.propensity_floor=0"],
     "propensity_floor: Input should be greater than 0, got 0"),
    ([*ENTIRE, "tasks.buy.counterfactual=ips", "tasks.buy.counterfactual_weight=0"],
     "counterfactual_weight: Input should be greater than 0, got 0"),
    (["tasks.buy.counterfactual=ips"],
     "counterfactual goes with kind entire_space, but kind is binary; remove"),
    (["model.transfer=aitm"], "transfer is aitm, but no task says which .*add `after:`"),
    (["model.transfer=dbmtl"], "transfer is dbmtl, but no task says which .*add `after:`"),
    (["model.transfer=aim"], "'none', 'aitm' or 'dbmtl', got 'aim'; did you mean 'aitm'"),
    (["tasks.buy.after=click", "model.transfer={kind: dbmtl, dim: 3}"],
     "dim goes with kind aitm, but kind is dbmtl; remove dim"),
    (["tasks.stars.after=buy", "model.transfer={kind: aitm, calibrator_weight: 0.6}"],
     "calibrator_weight is 0.6, but it compares binary tasks.*there are none.*remove it"),
    (["tasks.buy.after=click", "tasks.buy.observed_when=click",
      "model.transfer={kind: aitm, calibrator_weight: 0.6}"],
     "calibrator_weight is 0.6, but it compares .*remove it"),
])  # fmt: skip
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message) as raised:
        configured(*settings)
    assert "\n" not in str(raised.value)


def test_the_calibrator_is_of_tasks_that_are_observed_on_the_same_rows():
    settings = ("tasks.cart.after=click", "tasks.buy.after=[click, cart]", "model.transfer=aitm")
    config = configured(*settings)
    assert config.model.transfer.calibrator(config.tasks) == (0.6, [(0, 1), (0, 2), (1, 2)])
    given = configured(*settings, "tasks.cart.observed_when=click")
    assert given.model.transfer.calibrator(given.tasks) == (0.6, [(0, 2)])
    off = configured(*settings[:2], "model.transfer={kind: aitm, calibrator_weight: 0}")
    assert off.model.transfer.calibrator(off.tasks) == (0.0, [])
    other = configured("tasks.buy.after=click", "model.transfer=dbmtl")
    assert other.model.transfer.calibrator(other.tasks) == (0.0, [])


def test_the_stored_config_is_the_same(tmp_path):
    config = configured(*ENTIRE, "tasks.buy.counterfactual=dr", "model.transfer=aitm")
    assert config.tasks[2].observed_when == "click"
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


def test_hidden_layers_of_somebodys_towers_cannot_be_read():
    from typing import Literal

    from mmoe.config import TOWERS, TowerConfig

    class LinearTower(TowerConfig):
        kind: Literal["linear"] = "linear"

    TOWERS.add("linear", LinearTower, "torch.nn:Linear")
    settings = ["tasks.buy.after=click", "model.tower={kind: linear}"]
    try:
        configured(*settings, "model.transfer=aitm")
        with pytest.raises(ValueError, match=re.escape("those of tower.kind linear cannot be")):
            configured(*settings, "model.transfer=dbmtl")
    finally:
        TOWERS.remove("linear")

"""Settings that domains do not go with."""

import pytest

from mmoe.config import config_from_dict, set_values

RAW = {
    "features": [{"kind": "numeric", "name": "price"}],
    "tasks": [
        {"name": "click", "label": "click"},
        {"name": "buy", "label": "buy", "domains": ["shop", 3]},
    ],
    "model": {"domains": {"column": "scene"}},
}


def test_values_are_texts_whatever_yaml_makes_of_them():
    assert config_from_dict(RAW).tasks[1].domains == ["shop", "3"]


@pytest.mark.parametrize(("settings", "said"), [
    (["model.domains=null"], r"task 'buy': domains says where .* set model.domains.column"),
    (["model.domains.towers=own", "model.transfer=aitm", "tasks.buy.after=click"],
     "model.transfer aitm does not go with; set model.transfer: none"),
    (["tasks.buy.domains=[]"], "tasks.1.domains"),
    (["tasks.click.domains=[feed]", "tasks.buy.kind=entire_space", "tasks.buy.after=click"],
     "task 'buy': exists in 3, but its event 'click' does not"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        config_from_dict(set_values(RAW, settings))

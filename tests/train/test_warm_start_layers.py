"""A warm start that would lose layers is refused, as far as configs tell."""

from typing import Any

import pytest

from mmoe.config import config_from_dict
from mmoe.train.warm_start import EarlierRun

NOTHING: Any = None  # its encoder and checkpoints are not looked at


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        ({"expert": {"kind": "dcn_v2", "layers": 3}}, {"expert": {"kind": "dcn_v2", "layers": 2}},
         "model.expert.layers is 3 there and 2 here"),
        ({"experts": [{"kind": "mlp", "count": 1}, {"kind": "dcn_v2", "count": 1, "layers": 2,
                                                    "output": 64}]},
         {"experts": [{"kind": "mlp", "count": 1}, {"kind": "dcn_v2", "count": 1, "layers": 1,
                                                    "output": 64}]},
         r"layers of model.experts is \[None, 2\] there and \[None, 1\] here"),
        ({"interaction": {"kind": "deepfm", "hidden": [8, 8]}},
         {"interaction": {"kind": "deepfm", "hidden": [8]}},
         r"model.interaction.hidden is \[8, 8\] there and \[8\] here"),
        ({"bias": {"features": ["place"], "hidden": [8, 8]}},
         {"bias": {"features": ["place"], "hidden": [8]}},
         r"model.bias.hidden is \[8, 8\] there and \[8\] here"),
    ],
    ids=["layers", "one expert", "hidden before", "bias"],
)  # fmt: skip
def test_layers_that_would_be_dropped_are_refused(there, here, message, tmp_path):
    """Their tensors would be in nobody's way, and what they had learnt gone in silence."""
    features = [{"kind": "categorical", "name": name} for name in ("user", "item", "place")]
    before, now = (
        config_from_dict(
            {"features": features, "tasks": [{"name": "click", "label": "c"}], "model": model}
        )
        for model in (there, here)
    )
    earlier = EarlierRun(tmp_path, before, NOTHING, NOTHING, "step-00000001")
    earlier.check(before)
    with pytest.raises(ValueError, match=message):
        earlier.check(now)

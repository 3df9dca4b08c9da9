"""Configs of small runs on a log of requests."""

from tests.datasets.request_log import FEATURES

SPLIT = {"by": "hash", "column": "user", "validation": 0.2, "test": 0.2}
MODEL = {
    "num_experts": {"request": 2, "row": 2},
    "embedding_dim": 4,
    "expert": {"hidden": [8, 6]},
    "tower": {"hidden": [4]},
}


def raw_config(form, data=None, model=MODEL, exact=False, **training):
    """A run of the log in one of its forms: flat, nested, or without requests (plain)."""
    column = {"flat": {"column": "request"}, "nested": {"candidates": "candidates"}}
    requests = {"requests": {**column[form], "exact": exact}} if form in column else {}
    dropped = () if form == "flat" else ("level",)
    plain = {"epochs": 2, "batch_size": 64, "eval_batch_size": 64, "loggers": []}
    return {
        "data": {**(data or {}), **requests},
        "features": [{k: v for k, v in one.items() if k not in dropped} for one in FEATURES],
        "tasks": [{"name": "click", "label": "click"}],
        "model": dict(model),
        "training": {**plain, **training},
    }

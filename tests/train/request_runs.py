"""Configs of small runs on a log of requests."""

from tests.datasets.request_log import of_form

MODEL = {
    "num_experts": {"request": 2, "row": 2},
    "embedding_dim": 4,
    "expert": {"hidden": [8, 6]},
    "tower": {"hidden": [4]},
}


def raw_config(form, data=None, model=MODEL, exact=False, **training):
    """A run of the log in one of its forms: flat, nested, or without requests (plain)."""
    section, features = of_form(form)
    if exact:
        section["requests"]["exact"] = True
    plain = {"epochs": 2, "batch_size": 64, "eval_batch_size": 64, "loggers": []}
    return {
        "data": {**(data or {}), **section},
        "features": features,
        "tasks": [{"name": "click", "label": "click"}],
        "model": dict(model),
        "training": {**plain, **training},
    }

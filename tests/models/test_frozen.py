"""Frozen experts: what is trained, what is stored, what may be imported, and what is refused."""

import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import mmoe as library
from mmoe.config import ModelConfig, config_from_dict, load_config
from mmoe.errors import NotImported
from mmoe.mixture import ExpertPool
from mmoe.models import build_network
from mmoe.models.frozen import FrozenExpert
from mmoe.predictor import load_predictor
from mmoe.run.directory import RunDirectory
from mmoe.train.fit import train_run
from mmoe.train.optim import build_optimizer
from mmoe.train.warm_start import WarmStart
from tests.models.interactions import frozen_modules

HERE = frozen_modules.__name__


def _expert(name="make_six", **keys):
    return {"kind": "frozen", "module": f"{HERE}:{name}", "output": 6, **keys}


def _raw(path_or_expert):
    return {
        "features": [{"kind": "numeric", "name": name} for name in "ab"],
        "tasks": [{"name": "click", "label": "click"}],
        "model": {
            "experts": [{"kind": "mlp", "count": 2, "hidden": [6]}, {**path_or_expert, "count": 1}],
            "tower": {"hidden": []},
        },
        "training": {"epochs": 1, "batch_size": 100, "optimizer": {"weight_decay": 0.1}},
    }


def _log():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 500))
    return pd.DataFrame({"a": a, "b": b, "click": (rng.random(500) < 0.5).astype(int)})


def test_nothing_of_it_is_trained_and_it_stays_in_evaluation_mode():
    pool = ExpertPool([FrozenExpert(4, module=f"{HERE}:make_six", output=6)], stacked=True).train()
    x = torch.randn(50, 4, requires_grad=True)
    (y,) = pool.dense([x])
    torch.testing.assert_close(y, frozen_modules.make_six(4).eval()(x))  # no dropout
    y.sum().backward()
    assert x.grad is not None and all(p.grad is None for p in pool.parameters())
    model = ModelConfig(experts=_raw(_expert())["model"]["experts"])
    network = build_network(model, 4, ["click"])
    optimizer = build_optimizer(network, config_from_dict(_raw(_expert())).training.optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = dict(network.named_parameters())
    left_out = [name for name, p in named.items() if id(p) not in held]
    assert left_out and all("pools.1." in name for name in left_out)


def test_what_it_draws_moves_no_other_weight():
    def weights(kind):
        torch.manual_seed(0)
        experts = [{**kind, "count": 1}, {"kind": "mlp", "count": 1, "hidden": [6]}]
        return build_network(ModelConfig(experts=experts), 4, ["click"]).state_dict()

    drawn, loaded = weights(_expert("draw_six")), weights(_expert())
    name = "levels.0.mixture.experts.pools.1.weights.0"
    assert torch.equal(drawn[name], loaded[name])


def test_weights_of_a_file_are_those_that_score_when_the_file_is_gone(tmp_path):
    trained = frozen_modules.make_six(2)
    torch.nn.init.normal_(trained.linear.weight)
    file = tmp_path / "trained.safetensors"
    save_file(trained.state_dict(), file)
    config, log = config_from_dict(_raw(_expert(weights=str(file)))), _log()
    train_run(config, tmp_path / "run", data=log)
    scores = library.load(tmp_path / "run").predict(log)
    ranker, _, _ = load_predictor(RunDirectory.open(tmp_path / "run"))
    held = ranker.ranker.network.state_dict()
    name = "levels.0.mixture.experts.pools.1.stacked.module.linear.weight"
    assert torch.equal(held[name][0], trained.linear.weight)
    file.rename(tmp_path / "elsewhere")

    loaded = library.load(tmp_path / "run")
    assert np.array_equal(loaded.predict(log)["pred_click"], scores["pred_click"])
    with pytest.raises(ValueError, match=r"weights .*trained.safetensors: cannot be read"):
        train_run(config, tmp_path / "other", data=log)
    assert not (tmp_path / "other").exists()


def test_a_warm_start_keeps_it(tmp_path):
    log, key = _log(), "module"
    train_run(config_from_dict(_raw(_expert())), tmp_path / "run", data=log)
    config = config_from_dict(_raw(_expert(**{key: f"{HERE}:draw_six"})))
    with pytest.raises(ValueError, match=rf"{key} of model.experts is .* keep it as it was"):
        train_run(config, tmp_path / "x", data=log, warm_start=WarmStart(tmp_path / "run"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"output": 5}, r"should give rows of width 5 \(`output`\), but 2 of them gave \[2, 6\]"),
        ({"name": "make_for_ten"}, "rows of width 4, which experts read here, are not what it tak"),
        ({"name": "make_nothing"}, r"make_nothing\(4\) returned a int, expected a torch.nn.Mod"),
        ({"name": "make_doubles"}, r"gave torch.float64; let it return float32"),
        ({"name": "fail"}, r"fail\(4\) failed \(RuntimeError: the file of weights is gone\)"),
        ({"name": "make_sevn"}, "has no make_sevn; name a function or a class of that module"),
        ({"name": "A_NUMBER"}, "defines no function, nor torch.nn.Module, A_NUMBER"),
        ({"name": "nn"}, "defines no function, nor torch.nn.Module, nn"),
    ],
)
def test_what_cannot_be_an_expert(keys, message):
    keys = {"output": 6, "name": "make_six", **keys}
    with pytest.raises(ValueError, match=message):
        FrozenExpert(4, module=f"{HERE}:{keys['name']}", output=keys["output"])


def test_rows_that_others_read_are_left_alone():
    expert = FrozenExpert(4, module=f"{HERE}:make_in_place", output=6)
    x = torch.randn(3, 4, requires_grad=True)
    before = x.detach().clone()
    expert(x).sum().backward()
    assert torch.equal(x, before)
    assert x.grad is not None and (x.grad[before < 0] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("shift"), "has no tensor 'shift'; expected all tensors of"),
        (lambda t: t.update(more=t["shift"].clone()), "has a tensor that the module has not, 'mor"),
        (lambda t: t.update(shift=torch.zeros(5)), r"'shift' has shape \[5\], but \[6\] in .*six"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, change, message):
    tensors = frozen_modules.make_six(4).state_dict()
    change(tensors)
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=f"weights .*w.safetensors: {message}"):
        FrozenExpert(
            4, module=f"{HERE}:make_six", output=6, weights=str(tmp_path / "w.safetensors")
        )
    (tmp_path / "no.safetensors").write_text("no tensors")
    with pytest.raises(ValueError, match=r"weights .*no.safetensors: cannot be read \(Safetensor"):
        FrozenExpert(
            4, module=f"{HERE}:make_six", output=6, weights=str(tmp_path / "no.safetensors")
        )


@pytest.mark.parametrize("path", ["my_package.file", "my_package:a.b", "../file:make", "a b:make"])
def test_a_module_is_named_with_what_makes_it(path):
    with pytest.raises(ValueError, match=r"model.experts.1.module: "):
        config_from_dict(_raw(_expert(module=path)))


def test_a_config_of_ones_own_imports_it_and_that_of_a_run_does_not(tmp_path, monkeypatch, mmoe):
    name = "some_frozen_package"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n\n\ndef make(dim):\n    return torch.nn.Linear(dim, 6)\n"
    )
    log = tmp_path / "log.csv"
    _log().to_csv(log, index=False)
    monkeypatch.syspath_prepend(tmp_path)
    raw = {**_raw(_expert(module=f"{name}:make")), "data": {"path": str(log)}}
    with pytest.raises(NotImported, match="config: no_such_package: cannot be imported: there is"):
        config_from_dict(_raw(_expert(module="no_such_package:make")))
    with pytest.raises(ValueError, match="needs the module some_frozen_package, which a run"):
        FrozenExpert(2, module=f"{name}:make", output=6)
    train_run(config_from_dict(raw), tmp_path / "run")
    monkeypatch.delitem(sys.modules, name)

    run = RunDirectory.open(tmp_path / "run")
    for read in (run.config, lambda: load_config(run.config_file)):
        with pytest.raises(NotImported, match=rf"needs the module {name}, .* say --import {name}"):
            read()
    out = tmp_path / "scores.parquet"
    code, _, err = mmoe("score", run.path, "--input", log, "--output", out)
    assert code == 2 and re.search(rf"needs the module {name}", err) and not out.exists()
    command = ["score", run.path, "--input", log, "--output", out, "--import", name]
    code, _, err = mmoe(*command)
    assert code == 0, err


@pytest.mark.parametrize("path", ["os:abort", "shutil:rmtree", "os.path:exists"])
def test_nothing_of_pythons_own_is_called(path):
    with pytest.raises(ValueError, match="is of Python's standard library; name what makes"):
        FrozenExpert(2, module=path, output=6)


@pytest.mark.parametrize(
    "path",
    ["numpy:load", "torch:Tensor", "mmoe.models.frozen:Path", "mmoe.models.frozen:load_file"],
)
def test_nothing_that_a_module_has_of_another_is_called(path):
    with pytest.raises(ValueError, match=r"defines no function, nor torch.nn.Module,"):
        FrozenExpert(2, module=path, output=6)

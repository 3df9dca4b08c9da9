"""What importing the package does, and what it must not need."""

import logging
import os
import re
import subprocess
import sys
import tomllib
from typing import get_args

import pytest

import mmoe
from mmoe import process_settings as tuning
from mmoe.cli import doctor
from mmoe.config import experts as config
from mmoe.mixture.experts.mlp import Activation, ExpertActivation

# GNU's OpenMP prints its settings when torch loads it.
SPINS = (
    "import os, mmoe; mmoe.tune_process(); import torch; print(os.environ.get('GOMP_SPINCOUNT'))"
)


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python code in a fresh process, without the OpenMP settings of this one."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")],
)
def test_threads_spin_for_a_short_time_only(variables, expected, repository, monkeypatch):
    monkeypatch.chdir(repository)
    done = run(SPINS, **variables, OMP_DISPLAY_ENV="VERBOSE")
    assert done.stdout.strip() == expected
    if expected != "None" and "GOMP_SPINCOUNT" in done.stderr:
        assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr


LIBRARY = """
import logging, os, sys
def changeable():
    cores = getattr(os, "sched_getaffinity", lambda _: ())(0)
    logger = logging.getLogger("torch.fx._symbolic_trace").level, logging.getLogger().level
    return dict(os.environ), cores, logger
before = changeable()
import mmoe

mmoe.register.gate
print("torch" in sys.modules)
import mmoe.parallel.launch.launcher
print("torch" in sys.modules)
import mmoe.cli, mmoe.mixture, mmoe.train
from mmoe.process_settings import is_tuned
print(changeable() == before, is_tuned())
"""


def test_importing_the_package_changes_nothing(repository, monkeypatch):
    monkeypatch.chdir(repository)
    assert run(LIBRARY).stdout.split() == ["False", "False", "True", "False"]


def test_what_a_launcher_says_is_read_in_one_file(repository):
    named = re.compile(
        r"""environ.*["'](RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|MMOE_(?!CACHE))"""
    )
    readers = {p.name for p in (repository / "mmoe").rglob("*.py") if named.search(p.read_text())}
    assert readers == {"launcher.py"}


def test_tuning_after_torch_is_imported_warns_once(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(tuning, "_tuned", False)
    with pytest.warns(RuntimeWarning, match="set GOMP_SPINCOUNT=3000 in the environment") as found:
        mmoe.tune_process()
    assert found[0].filename == __file__
    mmoe.tune_process()  # a second warning would be an error
    assert tuning.is_tuned()
    assert logging.getLogger("torch.fx._symbolic_trace").level == logging.ERROR


WITHOUT_THE_REST = """
import sys
import tomllib
absent = ["pydantic", "yaml", "pandas", "pyarrow", "sklearn", "torchrec", "fbgemm_gpu", "rich"]
sys.modules.update(dict.fromkeys([*absent, "mmoe.config", "mmoe.datasets"]))
import mmoe.mixture, mmoe.ops
import torch
layer = mmoe.mixture.MultiGateMixture(4, 2, mmoe.mixture.MLPExperts(3, 4, [5]))
print(layer(torch.zeros(6, 4)).out_BGO.shape)
"""


def test_the_layer_needs_torch_and_nothing_else(repository, monkeypatch):
    """`sys.modules[name] = None` makes `import name` fail."""
    monkeypatch.chdir(repository)
    assert run(WITHOUT_THE_REST).stdout.strip() == "torch.Size([6, 2, 5])"


def test_config_and_layer_know_the_same_activations():
    """Neither may import the other: the config imports no torch, the layer no pydantic."""
    assert get_args(config.Activation) == get_args(Activation)
    field = config.MLPExpertConfig.model_fields["activation"]
    assert get_args(field.annotation) == get_args(ExpertActivation)
    last = config.MLPExpertConfig.model_fields["output_activation"]
    assert get_args(last.annotation) == ("same", "none", *get_args(ExpertActivation))


TABLES_ON_TORCHREC = """
import warnings
from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, ManagedIds, TableSpec
from mmoe.embeddings import build_embeddings
from mmoe.parallel import ensure_process_group
ensure_process_group()
tables = [TableSpec(name="item", num_rows=9, dim=4, managed=ManagedIds(rows=7))]
features = [FeatureSpec(name="item", table="item", pooling="sum")]
build_embeddings(tables, features, optimizer=EmbeddingOptimizerConfig(), backend="torchrec")
from torch.fx._symbolic_trace import is_fx_tracing
is_fx_tracing()  # as TorchRec's forward does
warnings.warn("the user's own", DeprecationWarning)
"""


@pytest.mark.torchrec
def test_what_torchrec_and_fbgemm_deprecate_does_not_reach_the_screen(repository, monkeypatch):
    """Nor that of the processes of `cross_val_score(…, n_jobs=2)`, which have such filters."""
    monkeypatch.chdir(repository)
    lines = run(TABLES_ON_TORCHREC, PYTHONWARNINGS="default").stderr.splitlines()
    shown = [line for line in lines if line.strip()]
    assert len(shown) == 1 and "DeprecationWarning: the user's own" in shown[0]


def test_extras_are_named_for_what_they_add(repository, mmoe, monkeypatch):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    asked = [
        f"{requirement}; extra == '{extra}'"
        for extra, requirements in project["optional-dependencies"].items()
        for requirement in requirements
    ]
    found = doctor.extras(asked)
    assert found["torchrec"] == ["torchrec", "fbgemm-gpu"]
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setattr(doctor, "_requirements", lambda: [*asked, "numpy; extra == 'arrays'"])
    monkeypatch.setattr(doctor, "_installed", lambda package: not package.startswith("mlflow"))
    code, out, _ = mmoe("doctor")
    assert code == 0 and "all is well" in out
    assert "mlflow not installed" in out and "pip install 'mmoe[mlflow]'" in out
    assert "extras" in out and "arrays" in out and "torchrec not installed" not in out


def test_the_image_has_what_the_set_up_installs(repository):
    """One place decides which versions match."""
    text = (repository / "mmoe/parallel/Dockerfile").read_text()
    setup = (repository / ".ci/setup").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    known = "ARG|FROM|RUN|WORKDIR|COPY|CMD"
    assert all(re.match(rf"({known}) \S|#|$", line) for line in lines)
    runs = "\n".join(line.removeprefix("RUN ") for line in lines if line.startswith("RUN "))
    subprocess.run(["bash", "-n"], input=runs, text=True, check=True)
    versions = set(re.findall(r"[\w.-]+==[\w.]+", runs))
    assert len(versions) == 4
    assert {version for version in versions if version not in setup} == set()
    assert "my-registry/mmoe" in text

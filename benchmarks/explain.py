"""What `mmoe explain` costs and how right it is; last, one JSON line."""

import copy
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import torch

from benchmarks.racing.harness import Clock, Race, Result, Spread, Target, clock_of, options, run
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain.experts import ExpertPlace, places_of, predict_without
from mmoe.mixture.gates.contract import GateOutput
from mmoe.models.build import build_ranker
from mmoe.models.network import MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.predictor import Predictor
from mmoe.run.console import SilentReporter

# What leaving every expert out costs beside one pass, and how far it is from the truth

# As `big` of benchmarks.train: 20 columns of ids of width 16, 10 numbers, 8 experts 256-128
_IDS, _NUMBERS, _TASKS, _BATCH = 20, 10, 4, 4096
# Whose numbers are checked, each as a model of its own
MODELS: Mapping[str, Mapping[str, object]] = {
    "mmoe": {"kind": "mmoe", "num_experts": 8},
    "ple": {"kind": "ple", "levels": 2},
    "top_k": {"kind": "mmoe", "num_experts": 8, "gate": {"kind": "top_k", "k": 2}},
}


def workload(rows: int, model: Mapping[str, object]) -> tuple[Ranker, RunConfig, BatchSource]:
    rng = np.random.default_rng(5)
    columns: dict[str, np.ndarray] = {f"n{i}": rng.normal(size=rows) for i in range(_NUMBERS)}
    columns |= {f"c{i}": rng.integers(0, 1000, rows) for i in range(_IDS)}
    columns |= {f"t{i}": (rng.random(rows) < 0.3).astype(int) for i in range(_TASKS)}
    config = config_from_dict(
        {
            "features": [
                *({"kind": "numeric", "name": f"n{i}"} for i in range(_NUMBERS)),
                *({"kind": "categorical", "name": f"c{i}"} for i in range(_IDS)),
            ],
            "tasks": [{"name": f"t{i}", "label": f"t{i}"} for i in range(_TASKS)],
            "model": {"embedding_dim": 16, **model},
            "training": {"embedding_backend": "plain", "eval_batch_size": _BATCH},
        }
    )
    table = pa.table(columns)
    encoder = FeatureEncoder.fit(config, table, "log")
    torch.manual_seed(5)
    ranker = build_ranker(config, encoder).eval()
    return ranker, config, BatchSource.of_table(table, encoder, "log", config)


def race_passes(clock: Clock, rows: int) -> list[Result]:
    ranker, config, source = workload(rows, MODELS["mmoe"])
    places, predictor = _places(ranker), Predictor(ranker, config)
    times = clock.race(
        "one pass, and with every expert left out",
        {
            "pass": lambda: predictor.predict(source),
            "explained": lambda: _without(ranker, config, source, places),
        },
    )
    more = times.ratio("explained", "pass")
    spread = Spread(more.median - 1, more.low - 1, more.high - 1, more.count)
    note = f"{rows:,} rows, {len(places)} experts, {_TASKS} tasks"
    return [
        Result(
            "explain_passes",
            spread,
            1e3 * (times.median("explained") - times.median("pass")),
            1e3 * times.median("pass"),
            note,
        )
    ]


def largest_error(rows: int) -> Result:
    """The largest difference to a copy of the model that really does without the expert."""
    worst, details = 0.0, []
    for name, model in MODELS.items():
        ranker, config, source = workload(rows, model)
        places = _places(ranker)
        found_VNP = _without(ranker, config, source, places)
        errors = [
            float(
                np.abs(found_NP - Predictor(_masked(ranker, place), config).predict(source)).max()
            )
            for place, found_NP in zip(places, found_VNP, strict=True)
        ]
        details.append({"model": name, "experts": len(places), "error": max(errors)})
        worst = max(worst, *errors)
    return Result("explain_error", Spread.single(worst), digits=9, details=details)


def _places(ranker: Ranker) -> list[ExpertPlace]:
    assert isinstance(ranker.network, MixtureNetwork)
    return places_of(ranker.network)


def _without(
    ranker: Ranker, config: RunConfig, source: BatchSource, places: list[ExpertPlace]
) -> np.ndarray:
    with SilentReporter().track("", None, "rows") as tracker:
        return predict_without(ranker, config, source, places, tracker).without_VNP


class _Masked(torch.nn.Module):
    """A gate that gives an expert nothing, and its weight to the others."""

    def __init__(self, gate: torch.nn.Module, expert: int) -> None:
        super().__init__()
        self.gate, self.expert = gate, expert

    def forward(self, inputs: list[torch.Tensor], visibility_GE: torch.Tensor) -> GateOutput:
        whole = self.gate(inputs, visibility_GE).as_weights(visibility_GE.shape[1]).double()
        rest = whole.clone()
        rest[..., self.expert] = 0
        left = rest.sum(-1, keepdim=True)
        scaled = rest * (whole.sum(-1, keepdim=True) / torch.where(left > 0, left, 1.0))
        return GateOutput(scaled.float(), None, {})


def _masked(ranker: Ranker, place: ExpertPlace) -> Ranker:
    model = copy.deepcopy(ranker)
    assert isinstance(model.network, MixtureNetwork)
    mixture = model.network.levels[place.level].mixture
    mixture.gate = _Masked(mixture.gate, place.expert)
    return model


KEYS = {"explain_passes": Target(0.5, at_most=True), "explain_error": Target(1e-6, at_most=True)}
_ERROR_ROWS = 10_000


def main() -> None:
    parser = options("explain", KEYS, seconds=30.0)
    parser.add_argument("--rows", type=int, default=40_000, help="that are predicted in it")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        parser.error(f"--rows is {arguments.rows}, expected 1+")
    rows = arguments.rows
    races: list[Race[Clock]] = [
        Race({"explain_passes": KEYS["explain_passes"]}, lambda clock: race_passes(clock, rows)),
        Race(
            {"explain_error": KEYS["explain_error"]},
            lambda _: [largest_error(min(rows, _ERROR_ROWS))],
        ),
    ]
    title = "Explanations: median and 10–90 % range"
    run(arguments, races, clock_of(arguments), title=title)


if __name__ == "__main__":
    main()

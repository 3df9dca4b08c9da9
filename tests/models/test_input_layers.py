"""Dense columns that the network replaces: pieces beside projections, before they are rounded."""

import numpy as np
import pytest
import torch

from mmoe.config import ModelConfig, PiecesSpec, ProjectionSpec
from mmoe.datasets.rows.batch import Batch
from mmoe.embeddings import Lookups
from mmoe.models import Ranker, build_network
from mmoe.models.inputs import InputLayers, expand_pieces, replaced_names, widened_by

PRICE = PiecesSpec(name="price", first=1, pieces=48, missing=True)
TITLE = ProjectionSpec(name="title", first=3, width=4, dim=2)


def _encoded(x_N, ends_E):
    """Piecewise linear encoding as the paper writes it, centred, in float64."""
    low_P, high_P = ends_E[:-1], ends_E[1:]
    gone_NP = np.clip((x_N[:, None] - low_P) / (high_P - low_P), 0, 1) - 0.5
    return np.where(np.isnan(x_N)[:, None], 0.0, gone_NP)


def _positions(x_N, ends_E):
    position_N = np.interp(x_N, ends_E, np.arange(len(ends_E)))
    return torch.tensor(np.where(np.isnan(x_N), -1, position_N)[:, None], dtype=torch.float32)


def test_pieces_are_the_encoding_of_the_paper():
    rng = np.random.default_rng(0)
    ends_E, x_N = np.sort(rng.normal(0, 5, 49)), rng.normal(0, 8, 500)
    x_N[::9] = np.nan
    position_N1, other_N1 = _positions(x_N, ends_E), _positions(-x_N, ends_E)
    found = expand_pieces(torch.cat([position_N1, other_N1], dim=1), 48)
    np.testing.assert_allclose(found[:, :48], _encoded(x_N, ends_E), atol=1e-5)
    np.testing.assert_allclose(found[:, 48:], _encoded(-x_N, ends_E), atol=1e-5)
    assert not found[::9].any()


def test_columns_keep_their_places_and_names_and_pieces_follow():
    age, fee = (
        PiecesSpec(name=name, first=first, pieces=2, missing=name == "fee")
        for name, first in (("age", 0), ("fee", 7))
    )
    layers, dense = InputLayers([age, PRICE, TITLE, fee]), torch.rand(5, 9) * 2
    dense[0, 7] = -1
    out, pieces = layers(dense), expand_pieces
    names = replaced_names([f"d{n}" for n in range(9)], layers.of_levels[""])
    assert len(names) == out.shape[1] == 9 + widened_by(layers.of_levels[""])
    expected = {
        "d2": dense[:, 2:3],
        "title projected[0]": dense[:, 3:7] @ layers["title_projection"].weight[:1].T,
        "title projected[1]": dense[:, 3:7] @ layers["title_projection"].weight[1:].T,
        "d8": dense[:, 8:],
        **{f"age piece[{p}]": pieces(dense[:, :1], 2)[:, p : p + 1] for p in range(2)},
        **{f"fee piece[{p}]": pieces(dense[:, 7:8], 2)[:, p : p + 1] for p in range(2)},
        **{f"price piece[{p}]": pieces(dense[:, 1:2], 48)[:, p : p + 1] for p in range(48)},
        "fee[missing]": (dense[:, 7:8] < 0).float(),
        "price[missing]": torch.zeros(5, 1),
    }
    assert names == list(expected)
    torch.testing.assert_close(out, torch.cat(list(expected.values()), dim=1))
    assert list(layers.state_dict()) == ["title_projection.weight"]


def test_without_pieces_the_position_goes():
    layers = InputLayers([PiecesSpec(name="price", first=1, pieces=0, missing=False)])
    assert layers(torch.tensor([[1.0, 0.0, 3.0]])).tolist() == [[1.0, 3.0]]


def _batch(dense_BF):
    none = torch.empty(0, dtype=torch.int64)
    return Batch(dense_BF=dense_BF, values=none, lengths_CB=none.int(), num_rows=len(dense_BF))


@pytest.mark.parametrize("width", [0, 3])
def test_under_autocast_positions_keep_their_fractions(width):
    dense, x = torch.tensor([[0.0, 40.3, 1.0]]), torch.ones(1, width)
    network, read = build_network(ModelConfig(), 51 + width, ["click"]), []
    network.inputs = InputLayers([PRICE])
    network.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        Ranker(None, network, 3)(_batch(dense), Lookups(x) if width else None)
    seen = read[0].float()
    assert seen.shape == (1, 51 + width)
    assert seen[0, 2:42].tolist() == [0.5] * 40
    assert seen[0, 42].item() == pytest.approx(-0.2, abs=1e-3)

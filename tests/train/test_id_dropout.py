"""`training.id_dropout`: rare ids are looked up as unseen ones while training, and never after."""

import numpy as np
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.train.id_dropout import IdDropout


def test_an_id_of_n_rows_is_dropped_once_in_so_many_times():
    counts = np.array([np.inf, np.inf, 60.0, 20.0, np.inf, np.inf, 5.0])
    dropout = IdDropout(counts, [0, None, 4], 20, seed=3, device=torch.device("cpu"))
    rows = 20_000
    of_each = [torch.arange(rows) % 4, torch.arange(rows), torch.arange(rows) % 3]
    lengths = torch.ones(3 * rows, dtype=torch.int32)
    found, same, _ = dropout((torch.cat(of_each), lengths, None), 7)
    assert same is lengths
    first, uncounted, last = found.split(rows)
    assert torch.equal(uncounted, of_each[1])
    for values, own, dropped in ((first, 0, 0), (first, 2, 0.25), (first, 3, 0.5), (last, 2, 0.8)):
        mine = values[(of_each[0] if values is first else of_each[2]) == own]
        assert (mine == 1).float().mean() == pytest.approx(dropped, abs=0.02)
        assert set(mine.tolist()) <= {own, 1}
    again = dropout((torch.cat(of_each), lengths, None), 7)[0]
    assert torch.equal(found, again)
    assert not torch.equal(found, dropout((torch.cat(of_each), lengths, None), 8)[0])


def test_a_resumed_run_drops_the_same_ids(train, tmp_path, dies_after):
    settings = ("training.id_dropout=20", "training.checkpoint_every_steps=5", "model.wide=true")
    whole = train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(7))
    train("broken", *settings, resume=True)
    one, two = (CheckpointFolder(tmp_path / n / "checkpoint").model("latest") for n in ("whole",
                "broken"))  # fmt: skip
    assert all(torch.equal(one[name], two[name]) for name in one)
    plain = train("plain", *settings[1:])
    other = CheckpointFolder(plain.directory.checkpoint).model("latest")
    assert torch.equal(other["wide.ids_RT"], one["wide.ids_RT"])
    assert not torch.equal(other["tables.user"], one["tables.user"])
    assert whole.metrics["tasks"]["click"]["auc"] > 0.6


def test_rows_of_requests_are_refused(funnel_config):
    of_request = ["features.user.level=request", "data.requests={column: user}"]
    raw = set_values(funnel_config, ["training.id_dropout=20", *of_request])
    with pytest.raises(ValueError, match=r"id_dropout is 20, but data\.requests stores ids once"):
        config_from_dict(raw)

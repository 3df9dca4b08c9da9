"""Managed ids: who owns a row, who loses it, and that a new owner starts afresh."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, ManagedIds, TableSpec
from mmoe.embeddings import ManagedEmbeddings, build_embeddings, managed_ids

pytestmark = pytest.mark.torchrec

ROWS = 6
FEATURES = [  # two features share the managed table; `user` is looked up by rows
    FeatureSpec(name="user", table="user", pooling="sum"),
    FeatureSpec(name="item", table="item", pooling="sum"),
    FeatureSpec(name="history", table="item", pooling="mean"),
]
ADAGRAD = EmbeddingOptimizerConfig(learning_rate=0.1)


@pytest.fixture(name="admission")
def _admission():
    from mmoe.embeddings.admission import IdAdmission

    def make(rows: int = 3, **rules) -> IdAdmission:
        return IdAdmission("item", ManagedIds(rows=rows, **rules))

    return make


def _see(admission, *batches: list[int]) -> list[list[int]]:
    """One step a batch; the rows that changed hands in each."""
    given = []
    for batch in batches:
        admission.note(torch.tensor(batch, dtype=torch.int64))
        given.append(admission.end_step().tolist())
    return given


def _owners(admission, ids) -> dict[int, int]:
    rows = admission.rows_of(torch.tensor(ids)).tolist()
    return {raw: row for raw, row in zip(ids, rows, strict=True) if row > 1}


def test_free_rows_go_to_the_most_frequent_first(admission):
    ids = admission(rows=2)
    assert _see(ids, [50, 60, 70, 60, 70, 70]) == [[2, 3]]
    assert _owners(ids, [50, 60, 70]) == {70: 2, 60: 3}
    assert ids.rows_of(torch.tensor([0, 1, 50, 2**63 - 3])).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("evict", "left"), [("lru", {30, 40}), ("lfu", {10, 20}), ("distance_lfu", {10, 40})]
)
def test_the_policies_differ(admission, evict, left):
    """10 was seen ten times, 20 four times and last; then come 30, once, and 40, three times."""
    ids = admission(rows=2, evict=evict, evict_every=1)
    _see(ids, [10] * 9 + [20] * 3, [10], [20], [30, 40, 40, 40])
    assert _owners(ids, [10, 20, 30, 40]).keys() == left
    assert ids.summary()["evicted"] == (2 if evict == "lru" else evict == "distance_lfu")


def test_windows_double_until_they_are_long_enough(admission):
    ids = admission(rows=40, evict_every=4)
    given = _see(ids, *[[100 + step] for step in range(1, 20)])
    ends = [step for step, rows in enumerate(given, 1) if rows]
    assert ends == [1, 2, 4, 8, 12, 16]
    assert [len(given[end - 1]) for end in ends] == [1, 1, 2, 4, 4, 4]


def test_admission_counts_across_windows(admission):
    ids = admission(rows=4, admit_after=3, evict_every=1)
    _see(ids, [50, 60], [50], [60])
    assert not _owners(ids, [50, 60])
    _see(ids, [50], [70] * 3, [70])
    assert _owners(ids, [50, 60, 70]).keys() == {50, 70}
    assert ids.waiting.tolist() == [60, 60]
    _see(ids, [80, 90, 80], [60])
    assert 60 not in _owners(ids, [60]), "of four sightings its first one is the fifth"
    assert ids.waiting.tolist() == [80, 90, 80, 60]


def test_owners_need_no_second_admission(admission):
    """With TorchRec's own threshold an owner seen once in a window would count as not seen."""
    ids = admission(rows=2, admit_after=2, evict_every=1, evict="lru")
    _see(ids, [50, 50], [60, 60], [50], [70, 70])
    assert _owners(ids, [50, 60, 70]).keys() == {50, 70}


@given(
    batches=st.lists(st.lists(st.integers(0, 25), max_size=12), min_size=1, max_size=12),
    evict=st.sampled_from(["lru", "lfu", "distance_lfu"]),
    admit_after=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_no_two_ids_share_a_row(batches, evict, admit_after):
    from mmoe.embeddings.admission import IdAdmission

    rules = ManagedIds(rows=ROWS, evict=evict, admit_after=admit_after, evict_every=2)
    ids = IdAdmission("item", rules)
    every = list(range(2, 26))
    owners: dict[int, int] = {}
    evicted = 0
    for batch in batches:
        [given] = _see(ids, batch)
        now = _owners(ids, every)
        assert len(set(now.values())) == len(now), "two ids share a row"
        assert set(now.values()) <= set(range(2, ROWS + 2))
        changed = {row for raw, row in now.items() if owners.get(raw) != row}
        assert changed == set(given), "exactly the rows with new owners were reported"
        evicted += len(owners.keys() - now.keys())
        owners = now
    assert ids.summary()["in_use"] == len(owners)
    assert ids.summary()["evicted"] == evicted


@pytest.fixture(name="build")
def _build(backend):
    def build(seed: int = 1, **rules) -> ManagedEmbeddings:
        rules = {"rows": ROWS, "evict": "lru", "evict_every": 3, **rules}
        tables = [
            TableSpec(name="user", num_rows=20, dim=4),
            TableSpec(name="item", num_rows=2 + rules["rows"], dim=8, managed=ManagedIds(**rules)),
        ]
        found = managed_ids(
            build_embeddings(tables, FEATURES, optimizer=ADAGRAD, backend=backend, seed=seed)
        )
        assert found is not None
        return found

    return build


def _batch(step: int, rows: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids that wander: 40 apart every ten steps; some are missing."""
    generator = torch.Generator().manual_seed(step)
    history_B = torch.randint(0, 4, (rows,), generator=generator).int()
    users = torch.randint(0, 20, (rows,), generator=generator)
    items = torch.randint(0, 9, (rows + int(history_B.sum()),), generator=generator)
    items = torch.where(items == 0, 0, items + 4 * step)
    lengths = torch.cat([torch.ones(2 * rows, dtype=torch.int32), history_B])
    return torch.cat([users, items]), lengths


def _train(module: ManagedEmbeddings, steps) -> list[torch.Tensor]:
    module.train()
    outputs = []
    for step in steps:
        out = module(*_batch(step)).x_BD
        out.cos().sum().backward()
        module.step()
        outputs.append(out.detach())
    return outputs


def test_lookups_by_hand(build):
    module = build()
    _train(module, range(3))
    values, lengths = _batch(2)
    rows = module.eval().rows_of(values, lengths)
    assert torch.equal(rows[:10], values[:10]), "tables that are not managed are passed through"
    owners = module.admissions["item"].rows_of(values[10:])
    assert torch.equal(rows[10:], owners)
    assert ((values[10:] == 0) == (owners == 0)).all()
    assert len(owners.unique()) > 4
    torch.testing.assert_close(module(values, lengths).x_BD, module.module(rows, lengths).x_BD)


def test_a_new_owner_starts_afresh(build):
    module = build(rows=60, evict_every=1)
    _train(module, range(20))
    weight, total = module.table_weights()["item"], _state_of_items(module)
    before, sums = weight.clone(), total.clone()
    owners = {row: raw for raw, row in _map_of(module).items()}
    module.eval()(*_batch(50)), module.train()
    values, lengths = _batch(50)
    module.rows_of(values, lengths)  # seen, but no gradient
    module.step()
    now = {row: raw for raw, row in _map_of(module).items()}
    changed = torch.tensor([row for row in now if now[row] != owners.get(row)])
    assert 0 < len(changed) < 60
    kept = torch.ones(62, dtype=torch.bool)
    kept[changed] = False
    assert sums[changed].any(), "the old owners had been trained"
    assert not total[changed].any()
    assert (weight[changed] != before[changed]).all()
    assert float(weight[changed].abs().max()) <= 62**-0.5
    assert torch.equal(weight[kept], before[kept])
    assert torch.equal(total[kept], sums[kept])


def _state_of_items(module: ManagedEmbeddings) -> torch.Tensor:
    [state] = [s for name, s in module.optimizer_state().items() if name.startswith("item")]
    return state


def _map_of(module: ManagedEmbeddings) -> dict[int, int]:
    ids, rows = module.maps().values()
    return {raw: row for raw, row in zip(ids.tolist(), rows.tolist(), strict=True) if raw < 2**62}


@pytest.mark.parametrize(("evict", "stop"), [("lru", 5), ("lfu", 0), ("distance_lfu", 7)])
def test_state_goes_on_to_the_bit(build, evict, stop):
    """Between two windows and in the middle of one, into a module that had seen other ids."""
    rules = {"evict": evict, "admit_after": 2}
    whole, broken, resumed = build(**rules), build(**rules), build(**rules)
    _train(whole, range(20)), _train(broken, range(stop)), _train(resumed, range(30, 37))
    saved = [
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in (broken.table_weights(), broken.optimizer_state(), broken.maps())
    ]
    live = (resumed.table_weights(), resumed.optimizer_state(), resumed.maps())
    for targets, sources in zip(live, saved, strict=True):
        for name, target in targets.items():
            target.copy_(sources[name])
    resumed.load_progress({name: t.clone() for name, t in broken.progress().items()})
    _train(resumed, range(stop, 20))
    for kind in ("table_weights", "optimizer_state", "maps", "progress"):
        mine, theirs = getattr(whole, kind)(), getattr(resumed, kind)()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name
    assert whole.summary() == resumed.summary()


def test_progress_of_another_table_is_refused(build):
    progress = build().progress()
    with pytest.raises(ValueError, match="table 'item': the checkpoint has no fitting tensor"):
        build(rows=7).load_progress(progress)
    with pytest.raises(ValueError, match="has no fitting tensor '_mch_counts'"):
        build(evict="lfu").load_progress(progress)


def test_evaluation_only_reads(build):
    module = build()
    _train(module, range(7))
    before = {name: tensor.clone() for name, tensor in module.progress().items()}
    maps = {name: tensor.clone() for name, tensor in module.maps().items()}
    module.eval()
    alone = module(torch.tensor([3, 25, 26]), torch.ones(3, dtype=torch.int32)).x_BD
    values = torch.cat([torch.tensor([9, 3]), torch.tensor([999, 25]), torch.tensor([25, 26])])
    beside = module(values, torch.ones(6, dtype=torch.int32)).x_BD
    assert torch.equal(alone[0], beside[1])
    after, now = module.progress(), module.maps()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(maps[name], now[name]) for name in maps)


def test_the_unseen_share_of_lookups(build):
    module = build(rows=60)
    values = torch.tensor([0, 1, 2, 50, 50, 0, 0, 50, 70])  # user, item and history of three rows
    lengths = torch.ones(9, dtype=torch.int32)
    for _ in range(2):
        module.train()(values, lengths).x_BD.sum().backward()
        module.step()
    summary = module.summary()["item"]
    assert summary == {"rows": 60, "in_use": 2, "evicted": 0, "unseen": 4 / 8}
    module.restart_counts()
    assert module.summary()["item"]["unseen"] is None
    module(values, lengths)
    assert module.summary()["item"]["unseen"] == 0


def test_batches_without_ids(build):
    module = build(evict_every=1)
    nothing = torch.zeros(0, dtype=torch.int64)
    assert module(nothing, nothing.int()).x_BD.shape == (0, module.output_dim)
    missing = torch.zeros(6, dtype=torch.int64)
    module(missing, torch.ones(6, dtype=torch.int32)).x_BD.sum().backward()
    module.step()
    module.step()
    assert module.summary()["item"]["in_use"] == 0


def test_without_torchrec_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(
        "mmoe.embeddings.build.torchrec_problem", lambda: "torchrec is not installed"
    )
    table = TableSpec(name="item", num_rows=8, dim=4, managed=ManagedIds(rows=6))
    with pytest.raises(
        ValueError, match=r"table 'item' has encoding managed, which needs TorchRec.*encoding hash"
    ):
        build_embeddings([table], FEATURES[1:], optimizer=ADAGRAD, backend="plain")

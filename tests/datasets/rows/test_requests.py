"""Requests: what their candidates share is encoded once, and every form gives the same batches."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.id_map import CountFit
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.columns import UnseenIds, all_alike, columns_of
from mmoe.datasets.rows.encoded import EncodedData, join
from mmoe.datasets.rows.frames import as_rows
from mmoe.datasets.rows.order import Share
from mmoe.datasets.rows.requests import find_requests
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.stream import open_stream
from mmoe.explain.features import columns_of as feature_columns
from mmoe.explain.features import values_of, with_shuffled
from mmoe.integrations.estimator_rows import training_rows
from mmoe.train.fit_wide import all_columns
from tests.datasets.request_log import (
    FEATURES,
    SPLIT,
    assert_same,
    config_of,
    expanded,
    log_of_requests,
    nested_log,
)


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests()


def encoded(log, form):
    """Encoder and source of all rows."""
    config = config_of(form)
    table = as_rows(nested_log(log) if form == "nested" else log, config.data.requests)
    encoder = FeatureEncoder.fit(config, table, "log")
    return encoder, BatchSource.of_table(table, encoder, "log", config)


@pytest.fixture(name="forms", scope="module")
def _forms(log):
    return {form: encoded(log, form) for form in ("plain", "flat", "nested")}


def test_ids_above_int64_are_the_same_request_in_every_chunk():
    requests = config_of("flat").data.requests
    ids = pa.array([5, 5, 2**64 - 1, 2**63], pa.uint64())
    table = pa.table({"request": ids})
    keys = find_requests(requests, table, "log").keys_N
    assert len(set(keys.tolist())) == 3
    assert find_requests(requests, table.slice(0, 1), "log").keys_N[0] == keys[0]
    assert find_requests(requests, table.slice(3), "log").keys_N[0] == keys[3]


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_batch_has_what_its_rows_have_without_requests(forms, form):
    encoder, source = forms[form]
    plain = forms["plain"][1].held
    for rows in (np.array([5, 0, 1, 77, 6, 2]), np.arange(10, 28), np.array([], np.int64)):
        for height in (len(rows), max(20, len(rows))):
            batch = source.held.batch(rows, height)
            assert_same(expanded(batch, encoder), plain.batch(rows, height))
    rules, others = encoder.rules, forms["plain"][0].rules
    assert rules["numeric"] == others["numeric"]
    for name, vocabulary in others["tables"].items():  # counted by row though read once
        assert rules["tables"][name].keys.equals(vocabulary.keys), name
        assert rules["tables"][name].counts.tolist() == vocabulary.counts.tolist(), name
    assert others["tables"]["history"].counts.max() > 10


def test_flat_and_nested_rows_give_the_same_batches(forms):
    flat, nested = (forms[form][1].epoch_batches(1, 1, 16) for form in ("flat", "nested"))
    for left, right in zip(flat, nested, strict=True):
        assert_same(left, right)


def test_requests_come_first_among_a_features_places(forms):
    encoder, source = forms["flat"]
    batch = source.held.batch(np.arange(9), 12)
    requests = len(np.unique(source.held.features.requests.request_N[:9]))
    assert batch.request_dense_QF.shape == (requests, len(encoder.of_level("request").dense_names))
    assert batch.dense_BF.shape == (12, len(encoder.of_level("row").dense_names))
    assert int(batch.requests_B.max()) == requests - 1
    assert batch.requests_B[9:].tolist() == [requests - 1] * 3
    names = [spec.name for spec in (*encoder.categorical, *encoder.lists)]
    lengths = dict(zip(names, batch.lengths_CB.view(len(names), 12), strict=True))
    assert lengths["user"].tolist() == [1] * requests + [0] * (12 - requests)
    assert lengths["item"].tolist() == [1] * 12
    assert lengths["history"][requests:].tolist() == [0] * (12 - requests)


def test_an_encoder_says_what_is_of_requests_and_keeps_it(forms, tmp_path):
    encoder, _ = forms["nested"]
    assert [s.name for s in encoder.of_level("request").lists] == ["history", "views__seen"]
    assert [s.name for s in encoder.of_level("row").categorical] == ["item", "user_item"]
    assert encoder.level_of("views") == "request" and encoder.level_of("user_item") == "row"
    [pieces] = encoder.of_level("row").input_layers
    assert (pieces.name, pieces.first) == ("price", 1)
    encoder.save(tmp_path)
    assert FeatureEncoder.load(tmp_path).layout == encoder.layout


def test_a_training_epoch_has_the_rows_of_a_request_side_by_side(forms):
    _, source = forms["flat"]
    request_N = source.held.features.requests.request_N
    whole = [b.requests_B.tolist() for b in source.epoch_batches(3, 0, 24)]
    assert sum(map(len, whole)) == len(source)
    assert {len(batch) for batch in whole[:-1]} == {24}
    for batch in whole:  # each request is one run
        assert batch == sorted(batch)
    computed = sum(max(batch) + 1 for batch in whole)
    assert computed <= len(np.unique(request_N)) + len(whole) - 1
    other = [b.requests_B.tolist() for b in source.epoch_batches(3, 1, 24)]
    assert other != whole


def test_ranks_share_a_batch_by_whole_requests(forms):
    (encoder, source), ranks = forms["flat"], 3
    shares = [Share(rank, ranks) for rank in range(ranks)]
    of_ranks = [list(source.epoch_batches(3, 0, 48, share=share)) for share in shares]
    computed = 0
    for whole, *mine in zip(source.epoch_batches(3, 0, 48), *of_ranks, strict=True):
        whole = expanded(whole, encoder)
        assert sum(map(len, mine)) == len(whole)
        computed += sum(len(one.request_dense_QF) for one in mine)
        prices = np.concatenate([one.dense_BF[:, 0].numpy() for one in mine])
        place = encoder.dense_names.index("price")
        assert prices.tolist() == whole.dense_BF[:, place].tolist()
    alone = sum(len(batch.request_dense_QF) for batch in source.epoch_batches(3, 0, 48))
    assert computed == alone, "no share cuts a request"


def test_rows_and_requests_that_are_cut_and_joined_are_the_same(forms):
    encoder, source = forms["flat"]
    data = source.held
    parts = [data.rows(start, min(start + 7, len(data))) for start in range(0, len(data), 7)]
    assert max(len(part.features.requests) for part in parts) <= 7
    joined = join(parts)
    assert len(joined.features.requests) == len(data.features.requests)
    rows = np.arange(len(data))[::-1]
    assert_same(expanded(joined.batch(rows), encoder), expanded(data.batch(rows), encoder))
    some = EncodedData(features=data.features.take(rows[:30]))
    assert_same(some.batch(np.arange(30)), EncodedData(features=data.features).batch(rows[:30]))


def test_weights_of_ids_follow_their_lists(log):
    features = [
        {"kind": "categorical", "name": "item"},
        {"kind": "list", "name": "history", "level": "request", "weights": "by"},
        {"kind": "list", "name": "tags"},
    ]
    by = [None if ids is None else [0.5] * len(ids) for ids in log["history"].to_pylist()]
    table = log.append_column("by", pa.array(by, pa.list_(pa.float64())))
    batches = []
    for form in ("flat", "plain"):
        config = config_of(form, features)
        encoder = FeatureEncoder.fit(config, table, "log")
        data = BatchSource.of_table(table, encoder, "log", config).held
        batches.append(expanded(data.batch(np.arange(40, 10, -1), 35), encoder))
    assert batches[0].id_weights is not None
    assert_same(*batches)


BAD = {
    "missing": ("request", None, "row 3: column 'request' .* is empty"),
    "number": ("age", 99.5, r"row 3: column 'age' \(of feature 'age', level request\) is 99.5"),
    "text": ("user", "who", "'who', but 'u0' in log: row 1 of the same request 1000"),
    "list": ("history", [1, 2, 3, 4], r"column 'history' .* is \[1, 2, 3, 4\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_of_one_request_is_refused(log, case):
    column, value, message = BAD[case]
    values = log[column].to_pylist()
    assert values[2] != value and log["request"].to_pylist()[:3] == [1000] * 3
    values[2] = value
    at = log.column_names.index(column)
    bad = log.set_column(at, column, pa.array(values, log.schema.field(column).type))
    config = config_of("flat")
    encoder = FeatureEncoder.fit(config, log, "log")
    with pytest.raises(ValueError, match=message):
        encoder.encode(bad, "log")


def test_a_candidate_of_no_list_is_named_by_its_row(log):
    config = config_of("nested")
    table = as_rows(nested_log(log), config.data.requests, origin="log")
    encoder = FeatureEncoder.fit(config, table, "log")
    words = pa.array(["high" if n == 4 else "1" for n in range(len(table))])
    wrong = table.set_column(table.column_names.index("price"), "price", words)
    request = int(table["__mmoe_request__"][4].as_py()) + 1
    with pytest.raises(ValueError, match=rf"log: row {request}, candidate \d+: column 'price'"):
        encoder.encode(wrong, "log")
    features = [one.model_copy(update={"level": "request"}) for one in config.features]
    wrong = config.model_copy(update={"features": features})
    with pytest.raises(ValueError, match="feature 'item': level is request, but column 'item'"):
        FeatureEncoder.fit(wrong, table, "log")
    alone = config_of("nested", [one for one in FEATURES if one["name"] in ("item", "price")])
    with pytest.raises(ValueError, match="no feature is of a request"):
        FeatureEncoder.fit(alone, table, "log")


@pytest.mark.parametrize("form", ["flat", "nested"])
@pytest.mark.parametrize("by", ["random", "hash", "time"])
def test_a_split_has_whole_requests(log, form, by):
    split = {"by": by, "column": {"hash": "user", "time": "at"}.get(by)}
    split |= {} if by == "time" else {"validation": 0.3, "test": 0.3}
    config = config_of(form, split=split)
    splits = load_splits(config, nested_log(log) if form == "nested" else log)
    tables = [splits.train, splits.validation, splits.test]
    found = [find_requests(config.data.requests, table, "log").keys_M for table in tables]
    assert sum(map(len, found)) == len(np.unique(np.concatenate(found)))
    assert sum(table.num_rows for table in tables) == len(log)


def test_rows_held_out_are_whole_requests(log, tmp_path):
    for name, rows in (("train", log.slice(0, 120)), ("test", log.slice(120))):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    paths = {name: str(tmp_path / f"{name}.parquet") for name in ("train", "test")}
    config = config_of("flat", split={"by": "file", "validation": 0.3}, **paths)
    splits, streamed = load_splits(config), open_stream(config)
    of_files = splits.train, splits.validation
    assert [len(streamed.train), len(streamed.validation)] == [rows.num_rows for rows in of_files]
    _, splits, _ = training_rows(config_of("flat"), log, None, None, 0.3)
    for tables in (of_files, (splits.train, splits.validation)):  # of files, of an estimator
        ids = [set(table["request"].to_pylist()) for table in tables]
        assert not ids[0] & ids[1]
        assert len(ids[1]) == pytest.approx(0.3 * len(ids[0] | ids[1]), abs=1)


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_alarms_see_the_columns_that_they_see_without_requests(forms, form):
    encoder, source = forms[form]
    plain_encoder, plain = forms["plain"]
    columns = columns_of(source.held.features, encoder, of_training=True)
    others = columns_of(plain.held.features, plain_encoder, of_training=True)
    for mine, theirs in zip(columns, others, strict=True):
        assert (mine.name, mine.kind, mine.rows, mine.unseen, mine.empty_rows) == (
            (theirs.name, theirs.kind, theirs.rows, theirs.unseen, theirs.empty_rows)
        )
        assert np.array_equal(mine.items, theirs.items)
        assert np.array_equal(mine.missing, theirs.missing)
    assert not all_alike(source.held.features)


def test_rows_with_unseen_ids_are_counted_as_without_requests(log, forms):
    users = ["new" if user == "u3" else user for user in log["user"].to_pylist()]
    lists = [None if ids is None else [i * 7 for i in ids] for ids in log["history"].to_pylist()]
    changed = log.set_column(log.column_names.index("user"), "user", pa.array(users))
    at = changed.column_names.index("history")
    changed = changed.set_column(at, "history", pa.array(lists, pa.list_(pa.int64())))
    counts = []
    for form in ("plain", "flat"):
        encoder = forms[form][0]
        unseen = UnseenIds(encoder)
        unseen.add(encoder.encode(changed, "log"))
        counts.append(unseen.by_feature)
    assert counts[0] == counts[1] and counts[0]["user"] > 1 and counts[0]["history"] > 1


def test_the_wide_parts_columns_are_those_without_requests(forms):
    rows = np.array([3, 50, 4, 9, 12])
    found, places = all_columns(forms["flat"][1].held.features, rows)
    plain = forms["plain"][1].held.features.take(rows)
    assert places.tolist() == list(range(5))
    assert np.array_equal(found.dense_NF, plain.dense_NF)
    assert np.array_equal(found.ids_NC, plain.ids_NC)


def test_a_feature_of_requests_is_shuffled_among_requests(forms):
    encoder, source = forms["flat"]
    data, columns = source.held, feature_columns(encoder)
    user, item = columns["user"], columns["item"]
    assert values_of(data, user) == len(data.features.requests)
    assert values_of(data, item) == len(data)
    order = np.arange(values_of(data, user))[::-1]
    moved = with_shuffled(data, user, order)
    users, before = (one.features.requests.features for one in (moved, data))
    assert np.array_equal(users.ids_NC[:, user.ids], before.ids_NC[::-1][:, user.ids])
    assert np.array_equal(users.dense_NF, before.dense_NF)
    order = np.arange(len(data))[::-1]
    moved = with_shuffled(data, item, order)
    ids, before = (one.features.ids_NC[:, item.ids] for one in (moved, data))
    assert np.array_equal(ids, before[::-1])


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_groups_that_a_loss_compares_stay_whole_and_so_do_their_requests(log, form):
    config = config_of(form, group_column="request")
    tasks = [{"name": "click", "label": "click", "kind": "softmax"}]
    raw = {**config.model_dump(mode="json"), "tasks": tasks}
    raw["training"]["monitor"] = "mean.auc"
    config = config_from_dict(raw)
    table = as_rows(nested_log(log) if form == "nested" else log, config.data.requests)
    encoder = FeatureEncoder.fit(config, table, "log")
    source = BatchSource.of_table(table, encoder, "log", config)
    batches = list(source.epoch_batches(0, 0, 24))
    for batch in batches:
        assert batch.groups_B.tolist() == batch.requests_B.tolist()
    assert sum(len(b.request_dense_QF) for b in batches) == len(source.held.features.requests)


def test_values_that_count_several_times():
    column = pa.chunked_array([[1.5, None, float("nan")], [2.5, 1.5]])
    fit, each = CountFit("x"), CountFit("x")
    fit.add(column, np.array([2, 5, 7, 3, 4]))
    each.add(pa.chunked_array([[1.5] * 6 + [2.5] * 3]))
    assert fit.finish().values.equals(each.finish().values)
    assert fit.finish().counts.to_pylist() == [6, 3]


def _written(rows, folder, name, items=None):
    folder.mkdir(exist_ok=True)
    if items is not None:
        rows = rows.drop_columns(["candidates"]).append_column("candidates", items)
    pq.write_table(rows, folder / name)


@pytest.mark.parametrize("how", ["memory", "stream"])
def test_empty_lists_add_nothing_and_null_candidates_are_refused(log, tmp_path, how):
    rows, counted = nested_log(log), []
    read = load_splits if how == "memory" else open_stream
    configs = {
        name: config_of("nested", path=str(tmp_path / name), split=SPLIT, input=how)
        for name in ("one", "two", "none", "null")
    }
    _written(rows, tmp_path / "one", "b.parquet")
    _written(rows, tmp_path / "two", "b.parquet")
    _written(rows[:5], tmp_path / "two", "a.parquet", pa.array([[]] * 5))  # without a type
    for name in ("one", "two"):
        found = read(configs[name])
        counted.append([len(part) for part in (found.train, found.validation, found.test)])
    assert counted[0] == counted[1] and sum(counted[0]) == len(log)
    _written(rows[:5], tmp_path / "none", "a.parquet", pa.array([[], None, [], [], []]))
    with pytest.raises(ValueError, match="holds no candidates, as every list of them is empty"):
        read(configs["none"])
    rows = rows.to_pylist()
    rows[3]["candidates"].insert(0, None)
    _written(pa.Table.from_pylist(rows), tmp_path / "null", "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet: row 4, candidate 1 .* is null; leave"):
        read(configs["null"])


def test_a_split_that_cuts_requests_is_refused(log):
    times = log.append_column("late", pa.array(np.arange(len(log)) % 11))
    config = config_of("flat", split={"by": "time", "column": "late"})
    with pytest.raises(ValueError, match=r"two; say split: \{by: hash, column: request\}"):
        load_splits(config, times)

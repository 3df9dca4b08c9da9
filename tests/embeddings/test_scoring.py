"""Tables in int8 and fp16: what is stored and looked up equals what is computed by hand."""

import pytest
import torch

from mmoe.config import FeatureSpec, ManagedIds, TableSpec
from mmoe.embeddings import build_scoring_embeddings, memory_of_tables, scoring_embeddings
from mmoe.embeddings.quantized import stored_rows

TABLES = [
    TableSpec(name="item", num_rows=100, dim=8),
    TableSpec(name="user", num_rows=50, dim=3),
    TableSpec(name="city", num_rows=30, dim=17),
    TableSpec(name="bias", num_rows=40, dim=1),
]
FEATURES = [  # not in the order of the tables; `item` is shared by three
    FeatureSpec(name="city", table="city", pooling="sum"),
    FeatureSpec(name="history", table="item", pooling="mean"),
    FeatureSpec(name="user", table="user", pooling="mean"),
    FeatureSpec(name="tags", table="item", pooling="sum", weighted=True),
    FeatureSpec(name="item", table="item", pooling="sum"),
    FeatureSpec(name="bias", table="bias", pooling="sum"),
]
ROWS = {table.name: table.num_rows for table in TABLES}
PRECISIONS = ("int8", "fp16")


def trained(table):
    """Rows as training leaves them: zeros for missing ids, one row far from the others."""
    generator = torch.Generator().manual_seed(table.num_rows)
    weight_RD = 0.1 * torch.randn(table.num_rows, table.dim, generator=generator)
    weight_RD[0] = 0
    weight_RD[5] += 1
    return weight_RD


def filled(precision, tables=TABLES, features=FEATURES):
    module = build_scoring_embeddings(tables, features, precision)
    inner = scoring_embeddings(module)
    assert inner is not None
    for table in tables:
        inner.fill(table.name, 0, trained(table))
    return module


def by_hand(weight_RD, precision):
    """What a table holds after rounding, as the papers have it, in float64."""
    if precision == "fp16":
        return weight_RD.half().double()
    wide_RD = weight_RD.double()
    bias_R1 = wide_RD.amin(dim=1, keepdim=True)
    scale_R1 = (wide_RD.amax(dim=1, keepdim=True) - bias_R1) / 255
    steps_RD = ((wide_RD - bias_R1) / scale_R1.clamp(min=1e-30)).round()
    return steps_RD * scale_R1 + bias_R1


def batch_of(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths_CB = torch.randint(0, 4, (len(FEATURES), rows), generator=generator).int()
    ids = [
        torch.randint(0, ROWS[feature.table], (int(lengths_B.sum()),), generator=generator)
        for feature, lengths_B in zip(FEATURES, lengths_CB, strict=True)
    ]
    values = torch.cat(ids)
    return values, lengths_CB.flatten(), torch.rand(len(values), generator=generator)


def pooled_by_hand(tables, values, lengths_CB, weights):
    """Row by row, id by id."""
    rows = len(lengths_CB) // len(FEATURES)
    out, position = [], 0
    for c, feature in enumerate(FEATURES):
        table = tables[feature.table]
        column = torch.zeros(rows, table.shape[1], dtype=torch.float64)
        for b in range(rows):
            count = int(lengths_CB[c * rows + b])
            for v in range(position, position + count):
                column[b] += table[values[v]] * (weights[v].double() if feature.weighted else 1)
            if feature.pooling == "mean":
                column[b] /= max(count, 1)
            position += count
        out.append(column)
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_lookups_by_hand(precision):
    """Shared, weighted, mean-pooled, odd widths, empty lists."""
    batch = batch_of(30)
    tables = {table.name: by_hand(trained(table), precision) for table in TABLES}
    out_BD = filled(precision)(*batch).x_BD
    assert out_BD.dtype == torch.float32
    torch.testing.assert_close(
        out_BD.double(), pooled_by_hand(tables, *batch), rtol=1e-6, atol=2e-6
    )


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("dim", [1, 4, 17, 64])
def test_no_number_is_off_by_more_than_half_a_step_of_its_row(dim, scale):
    """Of small rows too, which a scale in fp16 would not resolve."""
    generator = torch.Generator().manual_seed(dim)
    weight_RD = 0.1 * torch.randn(500, dim, generator=generator)
    rows = stored_rows(500, dim, "int8")
    assert rows.fill(0, weight_RD).all()
    assert rows.stored.numel() == 500 * (dim + 8)
    found_RD = rows.pool(torch.arange(500), torch.arange(501), None)
    steps_R = (weight_RD.amax(dim=1) - weight_RD.amin(dim=1)) / 255
    largest_R = weight_RD.abs().amax(dim=1)
    errors_R = (found_RD - weight_RD).abs().amax(dim=1)
    assert (errors_R <= steps_R / 2 + 1e-8 + 1e-6 * largest_R).all()


def test_rows_of_one_number_keep_it():
    rows = stored_rows(3, 4, "int8")
    rows.fill(0, torch.tensor([[0.0] * 4, [0.3] * 4, [-1e-7] * 4]))
    found = rows.pool(torch.arange(3), torch.arange(4), None)
    assert found.equal(torch.tensor([[0.0] * 4, [0.3] * 4, [-1e-7] * 4]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_rows_and_no_ids(precision):
    module = filled(precision)
    nothing = torch.empty(0, dtype=torch.int64)
    none = module(nothing, nothing.int(), torch.empty(0)).x_BD
    assert none.shape == (0, module.output_dim)
    empty = module(nothing, torch.zeros(3 * len(FEATURES), dtype=torch.int32), torch.empty(0)).x_BD
    assert empty.equal(torch.zeros(3, module.output_dim))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_blocks_fill_as_the_whole_does(precision):
    whole, in_blocks = filled(precision), build_scoring_embeddings(TABLES, FEATURES, precision)
    for table in TABLES:
        for start in range(0, table.num_rows, 13):  # the last one of `bias` has one row
            in_blocks.fill(table.name, start, trained(table)[start : start + 13])
    batch = batch_of(20)
    assert in_blocks(*batch).x_BD.equal(whole(*batch).x_BD)


@pytest.mark.parametrize(
    ("precision", "number"),
    [("int8", float("nan")), ("int8", float("inf")), ("int8", 3e38), ("fp16", 70_000.0)],
)
def test_numbers_that_do_not_fit_are_named(precision, number):
    module = build_scoring_embeddings(TABLES, FEATURES, precision)
    block_HD = torch.zeros(4, 8)
    block_HD[2, 5], block_HD[2, 6] = number, -number
    with pytest.raises(
        ValueError, match=rf"table 'item': row 92 .* cannot be stored in {precision}"
    ):
        module.fill("item", 90, block_HD)


def test_weights_of_ids_are_needed_where_a_feature_has_them():
    values, lengths, _ = batch_of(3)
    with pytest.raises(ValueError, match="id_weights: expected a weight for each id"):
        filled("int8")(values, lengths)


def test_an_unknown_table_is_named():
    features = [FeatureSpec(name="a", table="nowhere", pooling="sum")]
    with pytest.raises(ValueError, match="feature 'a' looks up table 'nowhere'"):
        build_scoring_embeddings(TABLES, features, "int8")


@pytest.mark.torchrec
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_an_unknown_precision_is_named(precision):
    """Also one that tables are trained in: narrower ones must not stand in for it."""
    with pytest.raises(ValueError, match=f"expected fp16 or int8, or None .*, got '{precision}'"):
        build_scoring_embeddings(TABLES, FEATURES, precision)


def test_managed_ids_are_looked_up_by_their_owners():
    tables = [TableSpec(name="item", num_rows=6, dim=4, managed=ManagedIds(rows=4, evict_every=1))]
    features = [FeatureSpec(name="item", table="item", pooling="sum")]
    module = filled("int8", tables, features).eval()
    admission = module.admissions["item"]
    admission.note(torch.tensor([900, 900, 800]))
    admission.end_step()
    ids = torch.tensor([900, 800, 777, 0])
    rows = admission.rows_of(ids)
    assert len(set(rows[:2].tolist())) == 2
    assert rows[2:].tolist() == [1, 0]
    expected = by_hand(trained(tables[0]), "int8")[rows]
    found = module(ids, torch.ones(4, dtype=torch.int32)).x_BD
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_what_tables_take():
    assert memory_of_tables([], "int8") == "tables: 0 parameters in int8, 0 bytes (0 bytes in fp32)"
    large = [TableSpec(name="a", num_rows=10**9, dim=64)]
    assert memory_of_tables(large, "fp16") == (
        "tables: 64.0B parameters in fp16, 119.2 GiB (238.4 GiB in fp32)"
    )

"""What the page shows of domains."""

from mmoe.report.figures import gate_heatmap_figure
from mmoe.report.page import OTHERS, domain_gates, domain_tables


def level(names, number=1):
    count = len(names)
    return {
        "level": number,
        "gates": ["click", "buy"],
        "experts": ["expert 1", "expert 2"],
        "visible": [[True, True], [True, False]],
        "domains": {
            "names": names,
            "rows": [[10 + n, n % 2] for n in range(count)],
            "mean_weight": [[[0.25, 0.75], [1.0, 0.0]]] * count,
            "entropy": [[0.5, 0.0]] * count,
        },
    }


def test_a_gate_is_drawn_with_the_domains_that_ask_it():
    click, buy = domain_gates([level(["feed", "shop", None])])
    assert (click["title"], click["gates"]) == ("click", ["feed", "shop", OTHERS])
    assert (buy["title"], buy["gates"]) == ("buy", ["shop"])
    assert buy["visible"] == [[True, False]]
    texts = [text.get_text() for text in gate_heatmap_figure([click, buy]).axes[0].texts]
    assert {"click", "buy", "feed", OTHERS, "0.75", "1.00"} <= set(texts)


def test_levels_are_named_where_there_are_several():
    gates = domain_gates([level(["feed"], 1), level(["feed"], 2)])
    assert [one["title"] for one in gates][::2] == ["click, level 1", "click, level 2"]


def test_of_many_domains_those_with_the_most_rows_are_drawn():
    names = [f"d{n:02d}" for n in range(40)]
    click, _ = domain_gates([level(names)])
    assert click["gates"] == names[16:]


def test_without_domains_there_is_nothing():
    assert domain_gates([{**level(["feed"]), "domains": None}]) == []
    assert domain_tables({"tasks": {}}) == []


def test_a_table_has_the_domains_where_there_is_the_task():
    each = [
        {"domain": "feed", "rows": 7, "tasks": {"click": {"auc": 0.6, "rows": 7}}},
        {"domain": None, "rows": 3, "tasks": {"click": {"auc": 0.7}, "buy": {"auc": 0.8}}},
    ]
    tables = dict(domain_tables({"domains": {"column": "scene", "each": each}}))
    assert [row[:2] for row in tables["click"].rows] == [["feed", "0.6000"], [OTHERS, "0.7000"]]
    assert [row[0] for row in tables["buy"].rows] == [OTHERS]

"""A tree has the bits of itself, and another number is told by the name of its fact."""

import json

from benchmarks.same_bits.__main__ import compare, record
from benchmarks.same_bits.cases import OfKind
from benchmarks.same_bits.trees import ROOT


def test_what_is_recorded_is_found_again_and_what_differs_is_named(tmp_path, capsys):
    cases = [OfKind("aitm")]
    assert record(cases, ROOT, tmp_path) == 0
    facts_file = tmp_path / "facts.json"
    known = json.loads(facts_file.read_text())
    facts = known["kind aitm"]
    assert "scores pred_buy" in facts
    assert sum("model" in name for name in facts) > 20

    facts["scores pred_buy"] = "another"
    facts_file.write_text(json.dumps(known))
    capsys.readouterr()
    assert compare(cases, ROOT, tmp_path) == 1
    printed = capsys.readouterr()
    # Nothing else; what reads the recorded run again finds it as well
    assert json.loads(printed.out)["differ"] == 2
    assert "kind aitm: scores pred_buy: another before" in printed.err

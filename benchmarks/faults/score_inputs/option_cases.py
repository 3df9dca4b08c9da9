"""Values of options, right and wrong, alone and together."""

from benchmarks.faults.score_inputs.case import ScoreCase

# What an option may be given: lists of words that follow it
OPTIONS: dict[str, list[list[str]]] = {
    "--keep": [
        ["item"], ["note"], ["item", "note"], ["nope"], ["pred_click"], ["history"], ["price"],
        ["item", "item"], [""], ["*"], ["click"], ["item,note"], ["ITEM"], ["rank"], ["value"],
    ],
    "--tasks": [
        ["click"], ["buy"], ["click,buy"], ["click", "buy"], ["nope"], [""], ["click,"], [","],
        ["click", "click"], ["pred_click"],
    ],
    "--fuse": [
        ["value=click * buy"], ["value=click^0.7 * price"], ["value=click * nope"], ["item=click"],
        ["pred_click=click"], ["value="], ["=click"], ["value=click **"], ["value=click / 0"],
        ["value=log(click)"], ["value=(click"], ["value='x'"], ["a/b=click"],
        ["value=click + note"],
        ["value=click + history"], ["value"], ["value=click", "value=buy"], ["value=1"],
        ["value=click^1e308"], ["value=" + "(" * 2000 + "click" + ")" * 2000],
        ["value=__import__('os')"], ["value=click and buy"], ["value=click == 'x'"], ["v=user % 0"],
        ["value=" + " + ".join(["click"] * 3000)], ["value=click\n"], ["value=click^-1^-1"],
    ],
    "--expect": [
        ["usual"], ["rows > 1"], ["rows > 1e9"], ["psi(*) < 0.25"], ["unseen(user) < 1"],
        ["unseen(item) < 50%"], ["mean(pred_click) in [0, 1]"], ["mean(pred_click) in [1, 0]"],
        ["foo"], ["rows >"], ["repeated < 0.5"], ["rows > 1e400"], ["missing(price) < 200%"],
        ["nan(*) == 0"], ["mean(pred_click) > nan"], ["mean(value) > 0"], ["psi(nope*) < 1"],
        ["mean(*) in [0.9, 0.8] of training"], ["rows > 1 of training"], [""], ["usual", "usual"],
        ["mean([) < 1"], ["mean(pred_[a-c]*) < 1"], ["p50(pred_click) > 1"], ["missing(*) < -1"],
        ["rows in [1, 1e400]"], ["max(*) <= 1 of training"], ["psi(user) < 0 above training"],
    ],
    "--rows-per-file": [["50"], ["1"], ["0"], ["-5"], ["x"], ["1e3"], ["1" + "0" * 30], [""]],
    "--mode": [["error"], ["overwrite"], ["overwrite-partitions"], ["sideways"], [""]],
    "--table-precision": [["int8"], ["fp16"], ["int4"], [""]],
    "--device": [["cpu"], ["cuda"], ["tpu"], ["auto"]],
    "--engine": [["local"], ["nothing"]],
    "--import": [["no_such_module"], ["json"], [""], ["a b"]],
}  # fmt: skip
_ALONE = (["--resume"], ["--overwrite"], ["--keep-types"], ["--nope"], ["--workers", "3"], ["more"])
# --top, --per and --by
_TOP = [
    ("3", "user", "click"), ("0", "user", "click"), ("-1", "user", "click"), ("x", "user", "click"),
    ("3", "nope", "click"), ("3", "user", "nope"), ("3", "history", "click"),
    ("3", "item", "value"),
    ("3", "price", "buy"), ("3", "pred_click", "click"), ("1" + "0" * 30, "user", "click"),
    ("3", "", ""), ("3", "note", "pred_click"),
]  # fmt: skip


def options_of_any_kind(case: ScoreCase) -> None:
    """One to three options, each right or wrong."""
    draw = case.draw
    case.into_any_place()
    for name in draw.sample([*OPTIONS], draw.choice([1, 1, 2, 3])):
        case.options += [name, *draw.choice(OPTIONS[name])]
    if draw.random() < 0.2:
        case.options += draw.choice(_ALONE)
    if draw.random() < 0.3:
        _top(case)
    case.name = f"options: {' '.join(repr(word)[:40] for word in case.options)}"


def best_rows(case: ScoreCase) -> None:
    """The three that go together, or two of them."""
    case.into_any_place()
    _top(case)
    if case.draw.random() < 0.5:
        case.options += ["--keep", *case.draw.choice(OPTIONS["--keep"])]
    case.name = f"options: {' '.join(repr(word)[:40] for word in case.options)}"


def _top(case: ScoreCase) -> None:
    given = dict(zip(("--top", "--per", "--by"), case.draw.choice(_TOP), strict=True))
    if case.draw.random() < 0.15:
        del given[case.draw.choice([*given])]
    case.options += [word for pair in given.items() for word in pair]
    if case.draw.random() < 0.7:
        case.out = str(case.place("top.parquet"))

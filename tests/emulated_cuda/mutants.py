"""Puts a switch at every place of the CUDA sources that a mutation changes.

One library holds all mutations; `emulated_set_mutant` switches one on. Made from every
`__syncthreads`, every wait for asynchronous copies and every group of them, every comparison, and
every operation on an index within a tile of a product (gemm/gemm.cuh). Not from comparisons that
choose between products of the same numbers: they bound nothing, and tests hold what is chosen.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

COMPARISONS = {
    "<": "Less",
    "<=": "LessOrEqual",
    ">": "Greater",
    ">=": "GreaterOrEqual",
    "==": "Equal",
    "!=": "NotEqual",
}
INDICES = {"+": "Plus", "-": "Minus", "*": "Times", "/": "Divide", "%": "Modulo"}
_OTHER = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"+": "+ 1 +", "-": "+ 1 -", "*": "* … + 1", "/": "%", "%": "/"},
}
# Where operations on numbers are those on an index of a fragment
INDEXED = ("gemm.cuh",)
# By size or by a switch; tests/ops/cuda/test_choices.py looks at what is chosen
CHOICES = ("dense_choice.cu", "product_choice.cu")
_OPERATION = re.compile(
    r"(?<=[\w)\]]) ([<>]=?|[=!]=|[-+*/%]) (?=[\w(*&:-])|(?<=\w>) ([<>=!]=) (?=[\w(*&:-])"
)
_BARRIER = "__syncthreads();"
_STATEMENT = re.compile(r"__syncthreads\(\);|commit_copies\(\);|\bwait_copies<[^;]*>\(\);")
# The compiler computes these, and a switch is known at run time alone
_CONSTANT = re.compile(r"\bconstexpr\b|\bstatic_assert\b|^\s*(?:template\b|#|using\b)")
_ARRAY = re.compile(r"^\s*(?:unsigned|int|float|[ST]|sum_t<T>) \w+\[")  # its sizes


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    Attributes:
        number: What switches it on, from 1.
        file: Below csrc/cuda.
        line: From 1.
        column: From 1.
        text: The line.
        kind: barrier, copies, comparison or index.
        change: What becomes what.
        alike: Which of its file's places that say the same, and of how many.
    """

    number: int
    file: str
    line: int
    column: int
    text: str
    kind: str
    change: str
    alike: tuple[int, int] = (1, 1)

    @property
    def key(self) -> str:
        """Names it as long as its line and the lines like it stay: numbers of lines move."""
        one, count = self.alike
        which = f", {one} of {count}" if count > 1 else ""
        return f"{self.file}: {self.text.strip()} [{self.change} at {self.column}{which}]"


class Switches:
    """Rewrites sources one after the other, and lists the mutants of all of them."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def put_into(self, file: str, text: str) -> str:
        """Returns a source with switches; the lines keep their numbers."""
        lines = text.split("\n")
        inside = False  # of a statement that the compiler computes, over several lines
        for number, line in enumerate(lines):
            inside = inside or bool(_CONSTANT.search(line))
            if not inside:
                lines[number] = self._line(file, number + 1, line)
            if line.rstrip().endswith((";", "{", ">", "}")) or line.lstrip().startswith(
                ("#", "//")
            ):
                inside = False
        return "\n".join(lines)

    def _line(self, file: str, number: int, line: str) -> str:
        whole = line
        places = sorted(_places(file, line), key=lambda place: place.start())
        for place in reversed(places):  # the earlier ones keep their columns
            new = self._switched(file, number, whole, place)
            line = line[: place.start()] + new + line[place.end() :]
        return line

    def _switched(self, file: str, number: int, line: str, place: re.Match[str]) -> str:
        said = place.group().strip()
        kind, change = _kind(said)
        self._add(file, number, line, place, kind, change)
        if said.startswith("wait_copies"):
            first = len(self.mutants)
            self._add(file, number, line, place, kind, "one group fewer")
            weaker = said.replace(">()", " + 1>()")
            said = f"if (::emulated::is_on({first + 1})) {weaker} else {said}"
            return f"if (!::emulated::is_on({first})) {said}"
        last = len(self.mutants)
        if kind in ("barrier", "copies"):
            return f"if (!::emulated::is_on({last})) {said}"
        name = {**COMPARISONS, **INDICES}[said]
        return f" {said} ::emulated::{name}{{{last}}} {said} "

    def _add(
        self, file: str, number: int, line: str, place: re.Match[str], kind: str, change: str
    ) -> None:
        mutant = Mutant(len(self.mutants) + 1, file, number, place.start() + 1, line, kind, change)
        self.mutants.append(mutant)


def _kind(said: str) -> tuple[str, str]:
    if said.startswith("__syncthreads"):
        return "barrier", "left out"
    if said.endswith(";"):
        return "copies", "left out"
    return ("comparison" if said in COMPARISONS else "index"), f"{said} to {_OTHER[said]}"


def _places(file: str, line: str) -> Iterator[re.Match[str]]:
    code = line.split("//")[0]
    code = re.sub(r'"[^"]*"', lambda text: '"' + " " * (len(text.group()) - 2) + '"', code)
    statements = list(_STATEMENT.finditer(code))
    yield from statements
    for place in _OPERATION.finditer(code):
        if any(place.start() < s.end() and s.start() < place.end() for s in statements):
            continue  # an argument of a template
        index = Path(file).name in INDEXED and not _ARRAY.match(line)
        if place.group().strip() in COMPARISONS or index:
            yield place


def switched_sources(folder: Path) -> tuple[dict[Path, str], list[Mutant]]:
    """Returns the text of each CUDA source below a folder with its switches, and all mutants."""
    switches = Switches()
    texts = {
        file: switches.put_into(str(file.relative_to(folder)), file.read_text(encoding="utf-8"))
        for file in sorted(folder.rglob("*.cu*"))
        if file.name not in ("ptx.cuh", *CHOICES)  # the emulation has its own PTX
    }
    return texts, _told_apart(switches.mutants)


def _told_apart(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Numbers those whose lines say the same: a reason for one of them is none for the others."""
    counts, seen = Counter(mutant.key for mutant in mutants), Counter[str]()
    apart = []
    for mutant in mutants:
        seen[mutant.key] += 1
        apart.append(replace(mutant, alike=(seen[mutant.key], counts[mutant.key])))
    return apart

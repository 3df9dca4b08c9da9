"""CUDA C++ turned into C++ that calls the emulation: launches, shared memory, the runtime's names.

Mechanical, by the text: kernels are not parsed. What remains (keywords, `threadIdx`, intrinsics)
are macros and functions of host/cuda_runtime.h.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

# What the sources say, and what is said instead; in this order.
_REPLACED = (
    (r"\bSTD_CUDA_KERNEL_LAUNCH_CHECK\(\);", ""),
    (r"\bSTD_CUDA_CHECK\(", "::emulated::check("),
    (r"\btorch::stable::accelerator::DeviceGuard\b", "::emulated::DeviceGuard"),
    (r"\baoti_torch_get_current_cuda_stream\b", "::emulated::current_stream"),
    (r"\btorch::stable::new_empty\b", "::emulated::new_empty"),
    (
        r"\btorch_call_dispatcher\(\s*name, overload,",
        "torch_call_dispatcher(::emulated::operator_name(name, overload), overload,",
    ),
    (r"(?<![\w.>:])(\w+)(?:\.|->)is_cuda\(\)", r"::emulated::is_cuda(\1)"),
    (r"(?<![\w.>:])(\w+)(?:\.|->)get_device_index\(\)", r"::emulated::device_index(\1)"),
    (r"\bSTABLE_TORCH_LIBRARY_IMPL\(mmoe, CUDA,", "STABLE_TORCH_LIBRARY_IMPL(mmoe_emulated, CPU,"),
    (
        r"\bextern __shared__ (?:__align__\(\d+\) )?unsigned char (\w+)\[\];",
        r"unsigned char* const \1 = ::emulated::dynamic_shared();",
    ),
    (
        r"(?<!extern )\b__shared__ (?:__align__\(\d+\) )?([^;=,\[\]]+?(?:<[^;=<>]*>)?) (\w+)"
        r"((?:\[[^\]]+\])*);",
        r"auto& \2 = ::emulated::shared_variable<\1\3>(EMULATED_HERE);",
    ),
)
_CLOSES = {"(": ")", "<": ">", "[": "]", "{": "}"}
_QUOTED = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)
_HELD = re.compile("\0(\\d+)\0")
# What the host would compile into something else, or the emulation does not have
_REFUSED_BEFORE = (
    (r"\basm\b", "instructions stand in ptx.cuh alone, which the emulation has its own of"),
    (r"\b__CUDA_ARCH__\b", "the emulation is of no one architecture"),
    (r"\bcooperative_groups\b|\bcudaLaunch\w+", "kernels are launched as name<<<…>>>(…)"),
    (r"\b__(?:constant|managed)__", "memory of this kind is not emulated"),
    (r"\bR\0", "raw strings are not understood"),
    (r"^[ \t]*#(?:.*\\\n)*.*<<<", "a launch in a macro is not understood"),
    (r"__shared__.*__shared__", "two variables of a line would be one; a line for each"),
)
_REFUSED_AFTER = (
    (r"<<<", "a launch is written name<<<grid, block, shared, stream>>>(arguments);"),
    (
        r"__shared__",
        "expected `__shared__ T name[a][b];`, without a value, or "
        "`extern __shared__ __align__(16) unsigned char name[];`",
    ),
    (r"(?:\.|->)(?:is_cuda|get_device_index)\(\)", "ask a tensor by its name"),
    (
        r"\bSTABLE_TORCH_LIBRARY_IMPL\([^)]*\bCUDA\b",
        "expected STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA,",
    ),
)


def rewrite(text: str, name: str = "source") -> str:
    """Returns the C++ of a CUDA source, without comments; the lines keep their numbers.

    Example:
        >>> rewrite("add<T><<<blocks, 32, 0, stream>>>(a, b);")
        '::emulated::launch({blocks, 32, 0, stream}, [&](auto&... all) { add<T>(all...); }, a, b);'

    Raises:
        ValueError: It has what the host would compile into something else.
    """
    text, held = _without_quoted(text)
    _refuse(text, _REFUSED_BEFORE, name)
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text)
    at = 0
    while (at := text.find("<<<", at)) >= 0:
        text = _without_launch(text, at)
        at += 1
    _refuse(text, _REFUSED_AFTER, name)
    return _HELD.sub(lambda match: held[int(match[1])], text)


def _without_quoted(text: str) -> tuple[str, list[str]]:
    """Comments are left out, but for their lines; strings and characters are held back."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        if match[0][0] == "/":
            return "\n" * match[0].count("\n") or " "
        held.append(match[0])
        return f"\0{len(held) - 1}\0"

    return _QUOTED.sub(hold, text), held


def _refuse(text: str, refused: Sequence[tuple[str, str]], name: str) -> None:
    for pattern, why in refused:
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            line = text.count("\n", 0, found.start()) + 1
            said = found[0].split("\0")[0].strip()
            raise ValueError(f"{name}:{line}: {said!r} cannot be emulated: {why}")


def rewrite_tree(source: Path, target: Path) -> list[Path]:
    """Writes the rewritten files of `csrc` into a folder; returns those to compile.

    A file that has not changed is left alone, so that it need not be compiled again.

    Args:
        source: The folder `csrc`.
        target: Gets the same files.
    """
    written = []
    for file in sorted(source.rglob("*")):
        if file.suffix not in (".h", ".cu", ".cuh") or file.name == "ptx.cuh":
            continue
        if file.is_relative_to(source / "cpu"):
            continue
        place = target / file.relative_to(source)
        place = place.with_suffix(".cpp") if file.suffix == ".cu" else place
        text = file.read_text(encoding="utf-8")
        write_if_new(place, rewrite(text, str(file.relative_to(source.parent))))
        if place.suffix == ".cpp":
            written.append(place)
    return written


def write_if_new(place: Path, text: str) -> None:
    """Writes a file unless it says that already."""
    if place.exists() and place.read_text(encoding="utf-8") == text:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    # At once: another process may be compiling it
    partial = place.with_name(f"{place.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(place)


def _without_launch(text: str, at: int) -> str:
    """Replaces the launch whose `<<<` stands at a place."""
    begin, end = _begin_of_name(text, at), text.find(">>>", at)
    kernel, opened = text[begin:at].strip(), _after_spaces(text, end + 3)
    if not kernel or end < 0 or text[opened : opened + 1] != "(":
        return text  # and is refused
    closed = _matching(text, opened)
    config, arguments = text[at + 3 : end], text[opened + 1 : closed].strip()
    lines = text[begin : closed + 1].count("\n")
    call = " ".join(
        f"::emulated::launch({{{config}}}, [&](auto&... all) {{ {kernel}(all...); }}"
        f"{', ' if arguments else ''}{arguments})".split()
    )
    # The line numbers after it stay
    return text[:begin] + call + "\n" * lines + text[closed + 1 :]


def _after_spaces(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def _begin_of_name(text: str, at: int) -> int:
    """Where the kernel's name begins, template arguments included, before a place."""
    place = at
    while text[:place] and text[place - 1].isspace():
        place -= 1
    if text[:place].endswith(">"):
        depth = 0
        while place > 0:
            place -= 1
            depth += {">": 1, "<": -1}.get(text[place], 0)
            if depth == 0:
                break
    while place > 0 and re.match(r"[\w:]", text[place - 1]):
        place -= 1
    return place


def _matching(text: str, opened: int) -> int:
    """Where the bracket closes that opens at a place."""
    closes = _CLOSES[text[opened]]
    depth = 0
    for place in range(opened, len(text)):
        depth += {text[opened]: 1, closes: -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"expected {closes!r} for what opens at character {opened}")

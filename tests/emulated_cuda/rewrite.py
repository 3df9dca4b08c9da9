"""CUDA C++ turned into C++ that calls the emulation: launches, shared memory, the runtime's names.

Mechanical, by the text: kernels are not parsed. What remains (keywords, `threadIdx`, intrinsics)
are macros and functions of host/cuda_runtime.h.
"""

import re
from collections.abc import Mapping
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
    (r"\b(\w+)(?:\.|->)is_cuda\(\)", r"::emulated::is_cuda(\1)"),
    (r"\b(\w+)(?:\.|->)get_device_index\(\)", r"::emulated::device_index(\1)"),
    (r"\bSTABLE_TORCH_LIBRARY_IMPL\(mmoe, CUDA,", "STABLE_TORCH_LIBRARY_IMPL(mmoe_emulated, CPU,"),
    (
        r"\bextern __shared__ (?:__align__\(\d+\) )?unsigned char (\w+)\[\];",
        r"unsigned char* const \1 = ::emulated::dynamic_shared();",
    ),
    (
        r"\b__shared__ (?:__align__\(\d+\) )?([^;=\[\]]+?) (\w+)((?:\[[^\]]*\])*);",
        r"auto& \2 = ::emulated::shared_variable<\1\3>(EMULATED_HERE);",
    ),
)
_CLOSES = {"(": ")", "<": ">", "[": "]", "{": "}"}


def rewrite(text: str) -> str:
    """Returns the C++ of a CUDA source; the lines keep their numbers.

    Example:
        >>> rewrite("add<T><<<blocks, 32, 0, stream>>>(a, b);")
        '::emulated::launch({blocks, 32, 0, stream}, [&](auto&... all) { add<T>(all...); }, a, b);'
    """
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text)
    while (at := text.find("<<<")) >= 0:
        text = _without_launch(text, at)
    return text


def rewrite_tree(source: Path, target: Path, texts: Mapping[Path, str]) -> list[Path]:
    """Writes the rewritten files of `csrc` into a folder; returns those to compile.

    A file that has not changed is left alone, so that it need not be compiled again.

    Args:
        source: The folder `csrc`.
        target: Gets the same files.
        texts: What stands in the place of a file's own text.
    """
    written = []
    for file in sorted(source.rglob("*")):
        if file.suffix not in (".h", ".cu", ".cuh") or file.name == "ptx.cuh":
            continue
        if file.is_relative_to(source / "cpu"):
            continue
        place = target / file.relative_to(source)
        place = place.with_suffix(".cpp") if file.suffix == ".cu" else place
        text = texts[file] if file in texts else file.read_text(encoding="utf-8")
        write_if_new(place, rewrite(text))
        if place.suffix == ".cpp":
            written.append(place)
    return written


def write_if_new(place: Path, text: str) -> None:
    """Writes a file unless it says that already."""
    if place.exists() and place.read_text(encoding="utf-8") == text:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


def _without_launch(text: str, at: int) -> str:
    """Replaces the launch whose `<<<` stands at a place."""
    begin = _begin_of_name(text, at)
    end = text.index(">>>", at)
    config = text[at + 3 : end]
    opened = text.index("(", end)
    closed = _matching(text, opened)
    kernel, arguments = text[begin:at].strip(), text[opened + 1 : closed]
    lines = text[begin : closed + 1].count("\n")
    call = " ".join(
        f"::emulated::launch({{{config}}}, [&](auto&... all) {{ {kernel}(all...); }}, "
        f"{arguments})".split()
    )
    # The line numbers after it stay
    return text[:begin] + call + "\n" * lines + text[closed + 1 :]


def _begin_of_name(text: str, at: int) -> int:
    """Where the kernel's name begins, template arguments included, before a place."""
    place = at
    while text[place - 1].isspace():
        place -= 1
    if text[place - 1] == ">":
        depth = 0
        while True:
            place -= 1
            depth += {">": 1, "<": -1}.get(text[place], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", text[place - 1]):
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

"""Compiles the rewritten sources into a library, once for each text of theirs.

python -m tests.emulated_cuda.build [--variant plain|asan]
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.emulated_cuda.rewrite import rewrite_tree, write_if_new

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOST = HERE / "host"
BUILD = ROOT / "build" / "emulated_cuda"
VARIANTS = {
    "plain": ("-O2", "-fsanitize=alignment"),
    "asan": ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,alignment"),
}


class NoCompiler(Exception):
    """The emulation cannot be built here; says why."""


def build(variant: str = "plain", source: Path = ROOT / "csrc") -> Path:
    """Returns the library of a variant, compiled where it is not there yet.

    Args:
        variant: How it is compiled.
        source: The folder with the CUDA sources.

    Raises:
        NoCompiler: There is no g++, or no folder to write to.
        subprocess.CalledProcessError: A source does not compile.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise NoCompiler("g++ was not found, and the emulation of CUDA is compiled")
    folder = BUILD / (variant if source.name == "csrc" else f"{variant}-{source.name}")
    try:
        return _built_in(folder, compiler, variant, source)
    except OSError as error:
        raise NoCompiler(f"the emulation of CUDA cannot be written: {error}") from error


def _built_in(folder: Path, compiler: str, variant: str, source: Path) -> Path:
    rewritten = rewrite_tree(source, folder / "csrc")
    write_if_new(folder / "csrc/cuda/gemm/ptx.cuh", (HOST / "ptx.cuh").read_text(encoding="utf-8"))
    command = [compiler, *flags(variant)]
    files = [*rewritten, *sorted(HOST.glob("*.cpp"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda file: _compile(command, file, folder), files))
    name = hashlib.sha256("".join(objects).encode()).hexdigest()[:16]
    library = folder / f"libmmoe_emulated-{name}.so"
    if not library.exists():
        _link(compiler, variant, objects, library)
    return library


def flags(variant: str) -> list[str]:
    """What the compiler is told."""
    torch = torch_folder()
    include = [f"-I{HOST}", "-isystem", str(torch / "include")]
    plain = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-w", "-include", "cuda_runtime.h"]
    return [*plain, *include, "-DTORCH_TARGET_VERSION=0x020a000000000000", *VARIANTS[variant]]


def torch_folder() -> Path:
    """Where torch is installed."""
    import torch

    return Path(torch.__file__).parent


def _compile(command: list[str], file: Path, folder: Path) -> str:
    """The object file, named by what the preprocessor makes of the source and by the flags."""
    made = _run([*command, "-E", "-P", str(file)], stdout=subprocess.PIPE)
    key = hashlib.sha256(made.stdout + " ".join(command).encode()).hexdigest()[:16]
    built = folder / f"{file.stem}-{key}.o"
    if not built.exists():
        partial = built.with_suffix(f".{os.getpid()}")
        _run([*command, "-c", str(file), "-o", str(partial)])
        partial.rename(built)
    return str(built)


def _run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[bytes]":
    # The compiler itself does not run beside the sanitizer that this process may run with
    surroundings = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(command, env=surroundings, check=True, **options)


def _link(compiler: str, variant: str, objects: list[str], library: Path) -> None:
    lib = torch_folder() / "lib"
    options = ["-fsanitize=address"] if variant == "asan" else []
    libraries = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch", "-ltorch_cpu", "-lc10"]
    partial = library.with_suffix(f".{os.getpid()}")
    _run([compiler, "-shared", *options, *objects, *libraries, "-o", str(partial)])
    partial.rename(library)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.emulated_cuda.build")
    parser.add_argument("--variant", choices=VARIANTS, default="plain")
    chosen = parser.parse_args().variant
    try:
        print(build(chosen))
    except NoCompiler as error:
        sys.exit(f"tests.emulated_cuda: {error}")

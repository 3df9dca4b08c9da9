"""Builds mmoe._C, the compiled operators; all else about the package is in pyproject.toml.

The extension uses LibTorch's stable ABI and Python's limited API: one binary serves every torch
from 2.10 on and every CPython from 3.11 on. Without torch or a working compiler the package is
installed in pure Python, with one warning, and the operators run as plain PyTorch.

MMOE_BUILD, read here at build time only, says what to build:

    auto    (default) CPU kernels; CUDA kernels too when torch has CUDA and nvcc is found
    cpu     CPU kernels only; a compiler that fails is an error
    cuda    CPU and CUDA kernels; anything missing is an error
    bundle  CPU and CUDA kernels beside any torch, to be carried to another machine: CUDA's runtime
            is linked statically, and torch_cuda by name alone
    python  nothing, on purpose and without a warning

MMOE_CUDA_ARCHITECTURES says for which GPUs, as in 9.0 or "8.0 9.0"; default: all that are known.

`python setup.py cuda_check` compiles the CUDA sources and nothing else; see .ci/cuda-check.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

CHOICES = ("auto", "cpu", "cuda", "bundle", "python")
INSISTS = ("cpu", "cuda", "bundle")  # what was asked for by name is not left out in silence
# The oldest torch whose ABI is asked for: major 2, minor 10.
TORCH_TARGET = "0x020a000000000000"
PYTHON_TARGET = ("0x030B0000", "cp311")
# A100, H100/H200, B200; code for 8.0 runs on 8.6 and 8.9 as well.
CUDA_ARCHITECTURES = ("80", "90", "100")
ROOT = Path(__file__).resolve().parent


class BuildError(Exception):
    """Why the extension cannot be built, in words for the person who installs."""


def sources(pattern: str) -> list[str]:
    """List the files of a pattern, relative to this folder as setuptools wants them."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def torch_folder() -> Path:
    """Find torch without importing it, which would cost seconds and may fail for other reasons."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(
            "torch cannot be imported while building; install torch first, then mmoe with "
            "pip's --no-build-isolation"
        )
    folder = Path(spec.origin).parent
    if not (folder / "include/torch/csrc/stable/library.h").exists():
        raise BuildError(f"the torch in {folder} has no stable ABI; mmoe needs torch 2.10 or later")
    return folder


def torch_cuda_version(folder: Path) -> str | None:
    """Read which CUDA torch is built with, without importing it."""
    text = (folder / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\s*(?::[^=]*)?=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def find_nvcc() -> tuple[str, str]:
    """Return nvcc's path and version."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=str(Path(home) / "bin") if home else None)
    if nvcc is None:
        raise BuildError("nvcc was not found; put it on PATH or set CUDA_HOME")
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"release (\d+\.\d+)", text)
    if match is None:
        raise BuildError(f"{nvcc} --version does not say which release it is")
    return nvcc, match.group(1)


def cuda_toolkit(folder: Path, choice: str) -> str | None:
    """Return the nvcc to use, or None where CUDA kernels are not to be built."""
    if choice == "cpu":
        return None
    if choice == "bundle":
        return find_nvcc()[0]
    try:
        wanted = torch_cuda_version(folder)
        if wanted is None:
            raise BuildError("this torch is built without CUDA")
        nvcc, version = find_nvcc()
        if version.split(".")[0] != wanted.split(".")[0]:
            raise BuildError(f"nvcc is CUDA {version} and torch is built with CUDA {wanted}")
        cudart_libraries(cudart_folder(nvcc), static=False)
    except BuildError:
        if choice == "cuda":
            raise
        return None
    return nvcc


def cudart_folder(nvcc: str) -> str:
    """Find CUDA's runtime beside the nvcc that works: the one that was found may be a script."""
    asked = [nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    said = subprocess.run(asked, capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    home = Path(top.group(1)) if top else Path(nvcc).resolve().parents[1]
    folders = [home / "lib64", home / "lib", *sorted(home.glob("targets/*/lib"))]
    for folder in folders:
        if any(folder.glob("libcudart.so*")) or (folder / "libcudart_static.a").exists():
            return str(folder.resolve())
    looked = ", ".join(str(folder) for folder in folders)
    raise BuildError(f"CUDA's runtime, libcudart, was not found; looked into {looked}")


def cudart_libraries(folder: str, static: bool) -> list[str]:
    """Name what to link CUDA's runtime with: a toolkit in parts may lack the usual file."""
    if not static and (Path(folder) / "libcudart.so").exists():
        return ["cudart"]
    if (Path(folder) / "libcudart_static.a").exists():
        return ["cudart_static", "rt", "dl", "pthread"]
    if static:
        raise BuildError(f"a bundle needs libcudart_static.a, which is not in {folder}")
    return [f":{min(Path(folder).glob('libcudart.so.*')).name}"]


def architectures(nvcc: str) -> list[str]:
    """Say which GPUs to compile for: those asked for, or all of ours that this nvcc knows."""
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True)
    known = [arch.removeprefix("compute_") for arch in listed.stdout.split()]
    asked = os.environ.get("MMOE_CUDA_ARCHITECTURES", "").replace(";", " ").replace(",", " ")
    wanted = [arch.replace(".", "") for arch in asked.split()]
    if not wanted:
        return [arch for arch in CUDA_ARCHITECTURES if arch in known]
    for arch in wanted:
        if arch not in known:
            raise BuildError(
                f"MMOE_CUDA_ARCHITECTURES: expected some of {', '.join(known)}, which {nvcc} "
                f"knows, got {arch!r}"
            )
    return sorted(wanted, key=int)


def nvcc_flags(nvcc: str, folder: Path) -> list[str]:
    """Name the architectures to compile for, and what the headers need."""
    known = architectures(nvcc)
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in known]
    # PTX of the newest, so that later GPUs can run it too.
    flags.append(f"-gencode=arch=compute_{known[-1]},code=compute_{known[-1]}")
    return [*flags, "-c", "-O3", *header_flags(folder)]


def header_flags(folder: Path) -> list[str]:
    """Say what the sources are written in, and where torch's headers are."""
    flags = ["-std=c++17", "-DUSE_CUDA", f"-DTORCH_TARGET_VERSION={TORCH_TARGET}"]
    return [*flags, "-isystem", str(folder / "include"), "-Xcompiler", "-fPIC,-fvisibility=hidden"]


def checking_flags(nvcc: str, folder: Path) -> list[str]:
    """Show in a fifth of the time that sources compile: device code, with little optimisation.

    NVIDIA's front end reads what is for the host too. While no source asks which architecture it is
    for, all assemble the PTX of the oldest.
    """
    known = architectures(nvcc)
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in sources("csrc/**/*.*")]
    if any("__CUDA_ARCH__" in text for text in texts):
        flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in known]
    else:
        codes = ",".join(f"sm_{arch}" for arch in known)
        flags = [f"-gencode=arch=compute_{known[0]},code=[{codes}]"]
    return [*flags, "-fatbin", "-Xcicc", "-O1", "-Xptxas", "-O1", *header_flags(folder)]


def compile_cuda(nvcc: str, source: str, built: Path, flags: list[str]) -> None:
    """Run nvcc on one source."""
    subprocess.run([nvcc, source, "-o", str(built), *flags], check=True)


class BuildOperators(build_ext):
    """Compiles the sources side by side; where that fails, leaves a pure Python package."""

    def run(self) -> None:
        """Build as MMOE_BUILD asks."""
        try:
            super().run()
        except Exception as error:  # whatever a compiler or the tools around it can throw
            if os.environ.get("MMOE_BUILD") in INSISTS:
                if isinstance(error, BuildError):
                    raise SystemExit(f"mmoe: {error}") from None
                raise
            self.extensions = self.distribution.ext_modules = []
            # A failed compiler's message holds its whole command: the ends are enough for one line.
            reason = " ".join(str(error).split())
            reason = reason if len(reason) < 200 else f"{reason[:60]} … {reason[-60:]}"
            print(
                f"WARNING: mmoe is installed without its compiled operators ({reason}). Everything "
                "works, but slower; `mmoe doctor` shows the state.",
                file=sys.stderr,
            )

    def build_extension(self, ext: Extension) -> None:
        """Compile all sources and link them into one file."""
        choice = os.environ.get("MMOE_BUILD", "auto")
        folder = torch_folder()
        nvcc = cuda_toolkit(folder, choice)
        # First the one that takes as long as the others together
        first = sorted(ext.sources, key=lambda source: not source.endswith("/gemm_avx512.cpp"))
        jobs = [(self.compile_cpp, source, folder) for source in first]
        runtime, cudart = "", []
        if nvcc is not None:
            # Before minutes of compiling: a wrong word, or a part that is missing
            architectures(nvcc)
            runtime = cudart_folder(nvcc)
            cudart = cudart_libraries(runtime, static=choice == "bundle")
            jobs += [
                (self.compile_cuda, source, (nvcc, folder))
                for source in sources("csrc/cuda/**/*.cu")
            ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: job[0](*job[1:]), jobs))
        library_dirs, libraries = [str(folder / "lib")], ["c10", "torch_cpu", "torch"]
        before: list[str] = []
        if nvcc is not None:
            library_dirs.append(runtime)
            libraries += ["torch_cuda", *cudart]
        if choice == "bundle":
            library_dirs.insert(0, self.stand_in("torch_cuda"))
            # A stand-in has no symbols, and would be left out as not needed
            before = ["-Wl,--no-as-needed"]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects,
            str(target),
            libraries=libraries,
            library_dirs=library_dirs,
            extra_preargs=before,
            target_lang="c++",
        )

    def stand_in(self, library: str) -> str:
        """Make an empty library of a name, to link with where the real one is not; its folder."""
        folder = Path(self.build_temp) / "stand_in"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"lib{library}.so"
        options = ["-shared", "-x", "c", os.devnull, f"-Wl,-soname,{name}"]
        subprocess.run([os.environ.get("CC", "cc"), *options, "-o", str(folder / name)], check=True)
        return str(folder)

    def compile_cpp(self, source: str, folder: Path) -> str:
        """Compile one C++ source, if it has changed since; return the object file."""
        flags = ["-O3", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wno-psabi", "-g0"]
        # pip takes a new folder for each build: a wheel has what an editable install has compiled
        said = [self.compiler.compiler_so, flags, TORCH_TARGET, (folder / "version.py").read_text()]
        kept = ROOT / "build" / f"objects-{zlib.crc32(repr(said).encode()):08x}"
        known = kept / f"{source.removesuffix('.cpp')}.o"
        read_by_all = ["setup.py", *sources("csrc/**/*.h")]
        if known.exists() and all(
            (ROOT / path).stat().st_mtime < known.stat().st_mtime for path in [source, *read_by_all]
        ):
            return str(known)
        (built,) = self.compiler.compile(
            [source],
            output_dir=str(kept),
            macros=[("TORCH_TARGET_VERSION", TORCH_TARGET), ("Py_LIMITED_API", PYTHON_TARGET[0])],
            include_dirs=[str(folder / "include")],
            extra_postargs=flags,
        )
        return built

    def compile_cuda(self, source: str, tools: tuple[str, Path]) -> str:
        """Compile one CUDA source; return the object file."""
        built = Path(self.build_temp) / f"{source}.o"
        built.parent.mkdir(parents=True, exist_ok=True)
        nvcc, folder = tools
        compile_cuda(nvcc, source, built, nvcc_flags(nvcc, folder))
        return str(built)


class CudaCheck(Command):
    """Compiles every CUDA source; needs neither a GPU nor a torch with CUDA."""

    description = "compile the CUDA sources and throw the result away"
    user_options: ClassVar = [("output=", None, "folder for the object files")]

    def initialize_options(self) -> None:
        """Set the options' defaults."""
        self.output = "build/cuda_check"

    def finalize_options(self) -> None:
        """Check the options; there is nothing to check."""

    def run(self) -> None:
        """Compile, and print what was compiled and how long it took."""
        nvcc, version = find_nvcc()
        folder, output = torch_folder(), Path(self.output)
        output.mkdir(parents=True, exist_ok=True)
        started, files = time.monotonic(), sources("csrc/cuda/**/*.cu")
        flags = checking_flags(nvcc, folder)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [
                pool.submit(compile_cuda, nvcc, file, output / f"{Path(file).stem}.fatbin", flags)
                for file in files
            ]
        for file, job in zip(files, jobs, strict=True):
            job.result()
            print(f"compiled {file}")
        names = ", ".join(f"sm_{arch}" for arch in architectures(nvcc))
        print(f"CUDA {version}: {names}: {time.monotonic() - started:.0f} s")


def extension_modules() -> list[Extension]:
    """Declare the extension only where building it is to be tried: without, the wheel is pure."""
    choice = os.environ.get("MMOE_BUILD", "auto")
    if choice not in CHOICES:
        raise SystemExit(f"MMOE_BUILD: expected one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "python":
        return []
    try:
        torch_folder()
    except BuildError as error:
        if choice in INSISTS:
            raise SystemExit(f"mmoe: {error}") from None
        if any(command in sys.argv for command in ("build_ext", "bdist_wheel", "editable_wheel")):
            print(
                f"WARNING: mmoe is installed without its compiled operators: {error}.",
                file=sys.stderr,
            )
        return []
    cpp = ["csrc/library.cpp", *sources("csrc/cpu/**/*.cpp")]
    depends = [*sources("csrc/**/*.h"), *sources("csrc/cuda/**/*.cu*")]
    return [Extension("mmoe._C", cpp, depends=depends, language="c++", py_limited_api=True)]


extensions = extension_modules()
setup(
    ext_modules=extensions,
    cmdclass={"build_ext": BuildOperators, "cuda_check": CudaCheck},
    options={"bdist_wheel": {"py_limited_api": PYTHON_TARGET[1]}} if extensions else {},
    package_data={
        "mmoe": ["py.typed"],
        "mmoe.datasets": ["recipes/*.yaml"],
        "mmoe.mixture": ["cost_rates.jsonl"],
        "mmoe.report": ["templates/*"],
    },
)

"""`mmoe doctor`: what is installed, what works, what to install."""

import platform
import re
import shutil
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from mmoe import __version__
from mmoe.run.console import Terminal


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: Is looked at.
        found: Was there.
        good: Nothing to do.
        needed: Nothing works without it.
        mend: What to do about it.
        price: What going without it costs; empty: nothing worth a word at the end.
    """

    what: str
    found: str
    good: bool
    needed: bool = True
    mend: str = ""
    price: str = ""


def diagnose() -> int:
    """Prints the findings.

    Returns:
        0 where everything needed works, else 1.
    """
    findings = [
        Finding("mmoe", f"{__version__}, {Path(__file__).parent}", True),
        Finding("Python", platform.python_version(), True),
        _torch(),
        _extension(),
        _cuda(),
        _torchrec(),
        _device(),
        _extras(),
    ]
    table = Table(title="mmoe doctor", title_justify="left")
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = (
            "[green]ok[/]" if finding.good else "[red]no[/]" if finding.needed else "[yellow]–[/]"
        )
        mend = "" if finding.good else finding.mend
        table.add_row(mark, finding.what, escape(finding.found), escape(mend))
    console = Terminal(highlight=False)
    console.print(table)
    broken = [finding.what for finding in findings if finding.needed and not finding.good]
    console.print(_summary(findings, broken))
    return 1 if broken else 0


def _summary(findings: list[Finding], broken: list[str]) -> str:
    if broken:
        return f"[red]needed: {', '.join(broken)}[/]"
    without = [f"{f.what} ({f.price})" for f in findings if f.price and not f.good]
    if without:
        return f"[yellow]works, but without: {', '.join(without)}[/]"
    return "[green]all is well[/]"


def _torch() -> Finding:
    found = _version("torch")
    if found == "not installed":
        return Finding("torch", found, False, mend="pip install torch")
    major, minor = (int(part) for part in found.split(".")[:2])
    return Finding("torch", found, (major, minor) >= (2, 10), mend="pip install 'torch>=2.10'")


def _extension() -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table says it
        from mmoe.ops import REBUILD, extension_status

        status = extension_status()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    mend = "" if compiler else "install a C++ compiler, then "
    mend += f"{REBUILD}; until then operators run in plain PyTorch"
    return Finding(
        "C++ extension", status.detail, status.built, needed=False, mend=mend, price="slower"
    )


def _cuda() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("CUDA", f"{torch.version.cuda}, {torch.cuda.get_device_name()}", True)
    return Finding("CUDA", "no device", False, needed=False, mend="mmoe runs on the CPU")


def _device() -> Finding:
    """The device that `mmoe train` would use, and how tables and operators would run there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other lines say it
        from mmoe.embeddings import torchrec_problem
        from mmoe.models.layout import describe_device, resolve_device
        from mmoe.ops import extension_status

        device = resolve_device()
        problem = torchrec_problem(device)
        kernels = extension_status()
    tables = "plain" if problem else "torchrec"
    found = f"{describe_device(device)}, embedding_backend {tables}"
    mend = []
    if device.type == "cuda" and problem is not None:
        mend.append(f"faster tables: {problem}; install fbgemm-gpu for CUDA (see the README)")
    if device.type == "cuda" and not kernels.cuda:
        mend.append("faster operators: MMOE_BUILD=cuda, see the README")
    return Finding("device: auto", found, not mend, needed=False, mend="; ".join(mend))


def _torchrec() -> Finding:
    missing = [name for name in ("torchrec", "fbgemm_gpu") if find_spec(name) is None]
    if missing:
        return Finding(
            "TorchRec and FBGEMM",
            f"{', '.join(missing)} not installed",
            False,
            needed=False,
            mend="embeddings run on nn.EmbeddingBag; the README says how to install them",
        )
    try:
        from mmoe.embeddings.build import quiet_import

        with quiet_import():
            import torchrec  # noqa: F401  # a broken pair of wheels shows only at import
    except (ImportError, OSError, RuntimeError) as error:
        mend = "torch, torchrec and fbgemm-gpu must match; install the versions in the README"
        return Finding("TorchRec and FBGEMM", " ".join(str(error).split())[:200], False, mend=mend)
    fbgemm = next(
        (_version(name) for name in ("fbgemm-gpu", "fbgemm-gpu-cpu") if _installed(name)), "unknown"
    )
    return Finding("TorchRec and FBGEMM", f"{_version('torchrec')}, {fbgemm}", True)


def _extras() -> Finding:
    """The extras of `pip install 'mmoe[…]'`; TorchRec has its own line, tools are not listed."""
    there, absent = [], []
    for extra, packages in sorted(extras(_requirements()).items()):
        if extra not in ("dev", "torchrec"):
            (there if all(map(_installed, packages)) else absent).append(extra)
    found = [*(f"{one} installed" for one in there), *(f"{one} not installed" for one in absent)]
    mend = "; ".join(f"pip install 'mmoe[{extra}]'" for extra in absent)
    return Finding("extras", ", ".join(found) or "none", not absent, needed=False, mend=mend)


def extras(requirements: list[str]) -> dict[str, list[str]]:
    """Returns each extra and the packages it asks for; other names of one are left out.

    Example:
        >>> extras(["torch>=2.10", "optuna>=4; extra == 'tune'", "mmoe[tune]; extra == 'search'"])
        {'tune': ['optuna']}
    """
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        package = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w.-]+)['\"]", requirement)
        if package is not None and extra is not None and package[0] != "mmoe":
            found.setdefault(extra[1], []).append(package[0])
    return found


def _requirements() -> list[str]:
    try:
        return requires("mmoe") or []
    except PackageNotFoundError:  # run from its folder, not installed
        return []


def _installed(package: str) -> bool:
    return _version(package) != "not installed"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

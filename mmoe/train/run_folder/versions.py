"""Versions of what a run was trained with."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("mmoe", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "pyarrow")


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python and of what is installed of the packages that matter.

    Example:
        >>> "torch" in installed_versions()
        True
    """
    found = {"python": platform.python_version()}
    return found | {name: known for name in _PACKAGES if (known := _version(name))}


@cache  # every run asks, and each package's metadata are a file
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""Versions of what a run was trained with."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("mmoe", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "pyarrow")


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python and of what is installed of the packages that matter.

    Example:
        >>> "torch" in installed_versions()
        True
    """
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

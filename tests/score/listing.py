"""What a folder of scores holds."""

from pathlib import Path


def parts(out: Path) -> list[str]:
    """Names of the files of scores, in their order; without what says how they came to be."""
    names = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.startswith("_"))


def names(out: Path) -> list[str]:
    """All names, of what is no part last."""
    return [*parts(out), *sorted(path.name for path in out.iterdir() if path.name.startswith("_"))]


def contents(out: Path) -> dict[str, bytes]:
    """Bytes of every file."""
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file()
    }


WHOLE = ["_SUCCESS", "_manifest.json", "_summary.json"]

"""Limits of the house: files of a folder, lines of a file. `make lint` runs it.

An exception is one line below, with its reason.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES, LINES = 40, 600
# Folders that may hold more files
FOLDERS: dict[str, str] = {}
# Files that may be longer
LONG_FILES = {
    "mmoe/ops/reference.py": "the specification of all operators, read from top to bottom",
}


def main() -> int:
    """Prints what is over a limit; 1 where anything is."""
    wrong = []
    for top in ("mmoe", "datasets"):
        folders = [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]
        for folder in folders:
            if "__pycache__" in folder.parts or folder.is_symlink():
                continue
            files = sorted(folder.glob("*.py"))
            name = folder.relative_to(ROOT).as_posix()
            if len(files) > FILES and name not in FOLDERS:
                wrong.append(f"{name}: {len(files)} files; at most {FILES}")
            wrong += [line for file in files for line in _too_long(file)]
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    return 1 if wrong else 0


def _too_long(file: Path) -> list[str]:
    name, lines = file.relative_to(ROOT).as_posix(), len(file.read_text().splitlines())
    if lines <= LINES or name in LONG_FILES:
        return []
    return [f"{name}: {lines} lines; at most {LINES}"]


if __name__ == "__main__":
    sys.exit(main())

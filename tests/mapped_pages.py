"""What a process has in memory of files that it has mapped, by Linux's own account."""

from pathlib import Path


def mapped_pages(process: int, folder: str) -> dict[str, int]:
    """Bytes of the mapped files below a folder: `rss`, `pss`, `private`, and `size`.

    `pss` counts a page that so many processes have for as large a part of it.
    """
    found = dict.fromkeys(("rss", "pss", "private", "size"), 0)
    of_ours = False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            of_ours = f"/{folder}/" in line
        elif of_ours:
            name = words[0].removesuffix(":").lower()
            name = "private" if name.startswith("private_") else name
            if name in found and words[-1] == "kB":
                found[name] += int(words[1]) * 1024
    return found

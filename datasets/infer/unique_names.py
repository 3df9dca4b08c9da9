"""Names that a config takes, out of whatever columns are called."""

import re
import unicodedata


class Names:
    """Names that a config takes, out of whatever the columns are called."""

    def __init__(self) -> None:
        self.features: set[str] = set()
        self.tasks: set[str] = set()

    def feature(self, column: str) -> str:
        """Returns a feature's name."""
        return self._unique(column, "feature", self.features)

    def task(self, label: str) -> str:
        """Returns a task's name."""
        return self._unique(label, "task", self.tasks)

    @staticmethod
    def run(name: str) -> str:
        """Returns a run's name."""
        cleaned = re.sub(r"[^A-Za-z0-9_\-]+", "-", name).strip("-")
        return cleaned if re.match(r"^[A-Za-z_]", cleaned) else f"run-{cleaned}".rstrip("-")

    @staticmethod
    def _unique(column: str, kind: str, taken: set[str]) -> str:
        """ASCII letters, digits and _; distinct even where case is ignored.

        Letters lose their accents (Künstler: Kunstler). Never two underscores in a row, as in the
        names of bucket tables.
        """
        plain = unicodedata.normalize("NFKD", column.replace("ß", "ss"))
        plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
        base = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:100] or f"{kind}_{len(taken) + 1}"
        base = base if re.match(r"^[A-Za-z_]", base) else f"{kind[0]}_{base}"
        base = "mean_value" if kind == "task" and base == "mean" else base
        name, number = base, 1
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        return name

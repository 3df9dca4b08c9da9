"""Counts of labels that are masked in each split, since their rows are young."""

from collections.abc import Iterator, Mapping

from mmoe.config import RunConfig, TaskConfig
from mmoe.datasets.rows.encoded import EncodedLabels

Masked = dict[str, dict[str, dict[str, int]]]
"""Split → task → labels that are `masked`, `left`, and of those left `weighted`."""

_ROWS = {"train": "training", "validation": "validation", "test": "test"}


def masked_counts(config: RunConfig, labels: EncodedLabels) -> dict[str, dict[str, int]]:
    """Counts labels of each task whose labels mature."""
    counts = {}
    for t, task in enumerate(config.tasks):
        if task.matures_after is None or labels.young_NT is None:
            continue
        young_N, observed_N = labels.young_NT[:, t], labels.observed_NT[:, t]
        counts[task.name] = {
            "masked": int((young_N & ~observed_N).sum()),
            "left": int(observed_N.sum()),
            "weighted": int((young_N & observed_N).sum()),
        }
    return counts


class MaskedFit:
    """Adds up `masked_counts` of splits, chunk by chunk."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.found: Masked = {}

    def add(self, split: str, labels: EncodedLabels) -> None:
        """Counts labels of more rows of a split."""
        for task, counts in masked_counts(self.config, labels).items():
            mine = self.found.setdefault(split, {}).setdefault(task, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                mine[name] += count


def describe_masked(config: RunConfig, masked: Masked, as_of: str | None) -> Iterator[str]:
    """Yields a line a task on what is masked, and a warning for each split that loses most."""
    for task in config.delayed_tasks:
        mine = {split: counts[task.name] for split, counts in masked.items() if task.name in counts}
        shares = [
            f"{c['masked']:,} of {c['masked'] + c['left']:,} {_ROWS[split]}"
            + (f" ({c['weighted']:,} young ones weighted)" if c["weighted"] else "")
            for split, c in mine.items()
        ]
        yield (
            f"{task.name}: labels of rows younger than {task.matures_after} as of {as_of} are "
            f"masked: {', '.join(shares)}"
        )
        for split, counts in mine.items():
            line = describe_most(task, counts, f"the {_ROWS[split]} rows", split != "train")
            if line is not None:
                yield line


def describe_most(
    task: TaskConfig, counts: Mapping[str, int], rows: str, judge: bool = True
) -> str | None:
    """Returns a warning where more than half of some rows' labels are masked, else None.

    Args:
        task: Whose labels they are.
        counts: `masked` and `left`.
        rows: What the rows are called.
        judge: They give metrics; False: they train.
    """
    there = counts["masked"] + counts["left"]
    if 2 * counts["masked"] <= there:
        return None
    share = "all" if not counts["left"] else f"{100 * counts['masked'] / there:.0f} %"
    learnt = f"it is learnt from {'the others alone' if counts['left'] else 'no row here'}"
    little = f"its metrics there say {'little' if counts['left'] else 'nothing'}"
    return (
        f"warning: {task.name}: {share} of the labels of {rows} are masked, as these rows are "
        f"younger than {task.matures_after} (matures_after): "
        f"{little if judge else learnt}; {_MEND}"
    )


_MEND = (
    "split by random or hash, or by days that are old enough, or set data.time.as_of where labels "
    "were collected later than the newest row"
)


def refuse_nothing_left(config: RunConfig, masked: Masked, origin: str) -> None:
    """Refuses validation rows that cannot choose a checkpoint, since all their labels are masked.

    Raises:
        ValueError: No task that training.monitor watches has a label left there.
    """
    counts = masked.get("validation", {})
    watched = config.training.monitor.rpartition(".")[0]
    tasks = [task for task in config.tasks if watched in ("mean", task.name)]
    empty = [
        task
        for task in tasks
        if task.name in counts and counts[task.name]["masked"] and not counts[task.name]["left"]
    ]
    if empty and len(empty) == len(tasks):
        raise ValueError(
            f"{origin}: all validation rows are younger than {empty[0].matures_after} "
            f"(matures_after of task {empty[0].name!r}), so training.monitor "
            f"{config.training.monitor} could not choose a checkpoint; {_MEND}"
        )

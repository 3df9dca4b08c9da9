"""One rank of a gloo world that trains configs, one after another; run by the tests.

Of each FOLDER/NAME.yaml the run is FOLDER/NAME-RANKS; what it goes on from is named by
FOLDER/NAME.warm_start, where that file is there. The report: the metrics of each.
"""

from pathlib import Path

from mmoe.config import load_config
from mmoe.train import WarmStart, train_run


def main(rank, ranks, _, folder):
    found = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        earlier = path.with_suffix(".warm_start")
        start = WarmStart(Path(earlier.read_text())) if earlier.exists() else None
        try:
            run = train_run(
                load_config(path), path.with_name(f"{path.stem}-{ranks}"), warm_start=start
            )
        except BaseException as error:
            error.add_note(f"the config is {path}")
            raise
        found[path.stem] = run.metrics
    return found

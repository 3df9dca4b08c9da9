"""One rank of a gloo world that trains every kind, one after another; run by the tests.

Of each config FOLDER/NUMBER.json the run is FOLDER/NUMBER.
"""

import json
from pathlib import Path

from mmoe.config import config_from_dict
from mmoe.train import train_run


def main(rank, ranks, _, folder):
    for path in sorted(Path(folder).glob("*.json")):
        try:
            train_run(config_from_dict(json.loads(path.read_text())), path.with_suffix(""))
        except BaseException as error:
            error.add_note(f"the config is {path}")
            raise
    return []

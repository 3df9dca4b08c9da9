"""One rank of a gloo world that trains every kind, one after another; run by the tests.

    python tests/train/every_kind_world.py RANK WORLD_SIZE STORE REPORT FOLDER

Of each config FOLDER/NUMBER.json the run is FOLDER/NUMBER.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from mmoe.config import config_from_dict
from mmoe.train import train_run
from tests.parallel.joining import join_world


def main(rank: int, world_size: int, store: str, report: str, folder: str) -> None:
    join_world(rank, world_size, store)
    for path in sorted(Path(folder).glob("*.json")):
        try:
            train_run(config_from_dict(json.loads(path.read_text())), path.with_suffix(""))
        except BaseException as error:
            error.add_note(f"the config is {path}")
            raise
    Path(report).write_text("[]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

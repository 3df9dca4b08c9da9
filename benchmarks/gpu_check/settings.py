"""What a check is asked for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What every stage gets.

    Attributes:
        device: cuda; for a rehearsal cpu, or emulated: the CUDA sources compiled for the host.
        record: The file that lines go to.
        bundle: The folder with a prebuilt extension, if it is there.
        small: A rehearsal's sizes: nothing that is measured with them means anything.
    """

    device: str
    record: Path
    bundle: Path
    small: bool = False

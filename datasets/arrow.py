"""`pc`: pyarrow.compute, whose functions are made at import time, so type checkers know none."""

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute

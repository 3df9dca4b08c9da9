"""What tests the emulation itself is read only where that is loaded: it imports half of PyTorch."""

import sys

_LOADED = "tests.emulated_cuda.plugin" in sys.modules
collect_ignore = [] if _LOADED else ["test_command.py", "test_emulator.py", "test_refusals.py"]

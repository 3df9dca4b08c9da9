"""What tests the emulation itself is read only where that is loaded: it imports half of PyTorch."""

import sys

collect_ignore = [] if "tests.emulated_cuda.plugin" in sys.modules else ["test_emulator.py"]

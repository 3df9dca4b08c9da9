"""`needs_kernels`: a mark of tests of what plain PyTorch, in the place of our kernels, lacks."""

import pytest

from mmoe.ops import extension_status

needs_kernels = pytest.mark.skipif(
    not extension_status().built, reason="the extension is not built: plain PyTorch computes"
)

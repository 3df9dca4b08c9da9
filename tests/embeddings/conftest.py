"""Backends of tables."""

import pytest

from mmoe.parallel import ensure_process_group


@pytest.fixture(params=["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)])
def backend(request):
    if request.param == "torchrec":
        ensure_process_group()
    return request.param

import hashlib

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mmoe.datasets.values.hashing import hash_text, mix64


def test_mix64_is_splitmix64():
    # First outputs of SplitMix64 seeded with 0, 1 and 1234567 (Vigna's reference C code).
    seeds = np.array([0, 1, 1234567], np.uint64)
    assert mix64(seeds).tolist() == [
        16294208416658607535,
        10451216379200822465,
        6457827717110365317,
    ]


def test_mix64_takes_negative_numbers_by_their_bits():
    assert mix64(np.array([-1])) == mix64(np.array([2**64 - 1], np.uint64))
    assert mix64(np.array([5]), 1) != mix64(np.array([5]), 2)


def test_text_hash_is_the_same_for_ever():
    words = ["", "a", "b", "ab", "ba", "item_42", "日本語", "x" * 1000]
    digest = hashlib.sha256(hash_text(pa.array(words)).astype("<u8").tobytes()).hexdigest()
    assert digest == "1c941c871ce26b4a7e16b888e1a1194fd297f522738be48e48734eb6270ca8bd"


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1, max_size=50))
def test_text_hash_depends_on_the_text_alone(words):
    hashes = hash_text(pa.array(words, pa.string()))
    alone = [int(hash_text(pa.array([word], pa.string()))[0]) for word in words]
    assert hashes.tolist() == alone
    shifted = pa.array(["zz", *words], pa.large_string()).slice(1)
    assert hash_text(shifted).tolist() == alone
    distinct = {word or "" for word in words}
    assert len(set(alone)) == len(distinct)


def test_hashes_spread_evenly():
    buckets = 64
    for hashes in (
        mix64(np.arange(64_000)),
        hash_text(pa.array([f"user_{i}" for i in range(64_000)])),
    ):
        counts = np.bincount((hashes % np.uint64(buckets)).astype(int), minlength=buckets)
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert 25 < chi_square < 125  # 63 degrees of freedom, far beyond both 0.01 % tails

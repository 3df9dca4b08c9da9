"""Sizes in memory, to read."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_size(count: int) -> str:
    """Writes a number of bytes in the largest unit of which there is one: 1 KiB is 1,024 bytes.

    Args:
        count: Bytes, 0 or more.

    Example:
        >>> byte_size(1_000), byte_size(1_024), byte_size(5 * 2**30 // 2)
        ('1,000 bytes', '1.0 KiB', '2.5 GiB')
    """
    power = min(max(0, count.bit_length() - 1) // 10, len(_UNITS) - 1)
    if power == 0:
        return f"{count:,} bytes"
    return f"{count / 2 ** (10 * power):,.1f} {_UNITS[power]}"

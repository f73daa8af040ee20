"""Settings of glibc's allocator for the whole process; other C libraries do not have them."""

from __future__ import annotations

from contextlib import suppress

# Parameters of glibc's mallopt. Parts that are uploaded are larger than `_LARGE`, and what is
# received at a time is smaller.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8
_LARGE, _NEVER = 4 << 20, 1 << 30
# The largest threshold that glibc accepts, and the unused memory that a process keeps.
_LARGEST, _KEPT = 32 << 20, 64 << 20


def share_memory() -> None:
    """Have threads reuse the memory of one another, so that the peak is what is used at a time.

    By default glibc keeps freed memory for each of the threads that fetch and send. Memory that is
    returned to the system instead takes longer to get again than a transfer on one machine, so that
    only large chunks are.
    """
    _set({_MOST_ARENAS: 1, _MMAP_THRESHOLD: _LARGE, _TRIM_THRESHOLD: _NEVER})


def keep_memory() -> None:
    """Keep freed memory for later results of a model's operations, for all threads together.

    By default glibc returns it to the system, which has to clear it before it gives it out again.
    """
    _set({_MOST_ARENAS: 1, _MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _KEPT})


def _set(parameters: dict[int, int]) -> None:
    import ctypes  # few commands need it

    # Another C library lacks the function, and Windows the library of the process.
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        for name, value in parameters.items():
            library.mallopt(name, value)

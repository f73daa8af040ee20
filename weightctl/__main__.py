"""The start of the command; `python -m weightctl` is `weightctl`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from weightctl.system.elapsed import start_clock

__all__ = ["main"]

# Parameters of glibc's mallopt. Parts that are uploaded are larger than `_LARGE`, and what is
# received at a time is smaller.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8
_LARGE, _NEVER = 4 << 20, 1 << 30


def main() -> NoReturn:
    """Run the command line as this process; Ctrl-C is answered from the first import on."""
    start_clock()
    # Modules and large headers are many small objects, which are kept: looking for garbage among
    # them would take a tenth of a short command, and half of a long listing.
    gc.set_threshold(1_000_000, 50, 50)
    # NumPy's BLAS starts a thread for each core as it is loaded, and has no work for them here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any("://" in word for word in sys.argv):
        _share_memory()
    try:
        from weightctl.cli import main as run

        run()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        code = 130
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()
    # Python would free a large tree object by object; the operating system frees it at once.
    os._exit(code)


def _share_memory() -> None:
    """Have threads reuse the memory of one another, so that the peak is what is used at a time.

    By default glibc keeps freed memory for each of the threads that fetch and send. Memory that is
    returned to the system instead takes longer to get again than a transfer on one machine, so that
    only large chunks are.
    """
    import ctypes  # only for URLs

    with suppress(AttributeError, OSError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_MOST_ARENAS, 1)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_TRIM_THRESHOLD, _NEVER)


if __name__ == "__main__":
    main()

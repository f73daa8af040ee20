"""The entry point of the command line, also for `python -m weightctl`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from weightctl.system.elapsed import start_clock

__all__ = ["main"]

# Parameters of glibc's mallopt. Network requests use more memory than this, most other code less.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 4 << 20


def main() -> NoReturn:
    """Run the command line as this process; Ctrl-C works from the first import."""
    start_clock()
    # Modules and large headers are many small objects, which are kept: looking for garbage among
    # them would take a tenth of a short command, and half of a long listing.
    gc.set_threshold(1_000_000, 50, 50)
    # NumPy's BLAS starts a thread for each core as it is loaded, and has no work for them here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any("://" in word for word in sys.argv):
        _return_large_memory()
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


def _return_large_memory() -> None:
    """Return large chunks of memory to the operating system as soon as they are freed.

    Without this, glibc keeps such chunks for each downloading or uploading thread after the first
    ones were freed.
    """
    import ctypes  # only for URLs

    with suppress(AttributeError, OSError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_TRIM_THRESHOLD, _LARGE)


if __name__ == "__main__":
    main()

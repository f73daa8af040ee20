"""The start of the command; `python -m weightctl` is `weightctl`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from weightctl.system.elapsed import start_clock


def main() -> NoReturn:
    """Run the command line as this process; Ctrl-C is answered from the first import on."""
    start_clock()
    _forget_relative_places()
    # Modules and large headers are many small objects, which are kept: looking for garbage among
    # them would take a tenth of a short command, and half of a long listing.
    gc.set_threshold(1_000_000, 50, 50)
    # NumPy's BLAS starts a thread for each core as it is loaded, and has no work for them here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any("://" in word for word in sys.argv):
        from weightctl.system.allocator import share_memory  # only for URLs

        share_memory()
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


def _forget_relative_places() -> None:
    """Import nothing from the current directory, which may be a downloaded one."""
    here = os.getcwd() if os.path.exists(".") else ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    unwanted = {"", here, *(os.path.abspath(each) for each in named if not os.path.isabs(each))}
    unwanted.discard(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:] = [place for place in sys.path if place not in unwanted]


if __name__ == "__main__":
    main()

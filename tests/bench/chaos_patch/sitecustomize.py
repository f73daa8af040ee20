"""Has every process of the chaos bench write down which ranges it has done.

Each range takes CHAOS_DELAY seconds more, so that a small model has tasks that take as long as
those of a large one.

Python imports this module at its start if its folder is in PYTHONPATH.
"""

from __future__ import annotations

import os
import time
from typing import Any

_LOG = os.environ.get("CHAOS_LOG")


def _log_ranges(path: str, delay: float) -> None:
    from weightctl.write.conversion_tasks import ConversionWork

    do = ConversionWork.do

    def do_and_log(self: Any, task: Any, files: Any, report: Any) -> Any:
        time.sleep(delay)
        records = do(self, task, files, report)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{task.number}\n".encode("ascii"))
        os.close(descriptor)
        return records

    ConversionWork.do = do_and_log  # type: ignore[method-assign]


if _LOG:
    _log_ranges(_LOG, float(os.environ.get("CHAOS_DELAY", "0")))

"""Files that are sent from start to end, while threads write them at offsets."""

from __future__ import annotations

import time
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from weightctl.errors import OutputError
from weightctl.storage.files import open_reader
from weightctl.storage.remote.ordered_writes import HeldMemory, OrderedWriter
from weightctl.write.threads import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from threading import Event

CONTENT = bytes(range(256)) * 64


class Sink:
    """Takes bytes in order, slowly if it is to, and knows whether the file has ended."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.received = b""
        self.ends = 0
        self._seconds = seconds

    def send(self, data: bytes) -> None:
        time.sleep(self._seconds)
        self.received += data

    def end(self) -> None:
        self.ends += 1


def make_writer(
    sink: Sink,
    nbytes: int = len(CONTENT),
    *,
    held: int = 1 << 20,
    gaps: Sequence[tuple[int, int]] = (),
    send: Callable[[bytes], object] | None = None,
) -> OrderedWriter:
    memory = HeldMemory(held)
    return OrderedWriter(
        "out", nbytes, send=send or sink.send, end=sink.end, held=memory, gaps=gaps
    )


def test_bytes_are_sent_in_order() -> None:
    sink = Sink()
    writer = make_writer(sink)
    for start in (8192, 4096, 12288, 0):
        writer.write(start, CONTENT[start : start + 4096])
    writer.finish()
    assert sink.received == CONTENT


def test_nothing_is_sent_before_the_start_is_written() -> None:
    sink = Sink()
    writer = make_writer(sink)
    writer.write(4096, CONTENT[4096:])
    assert sink.received == b""
    writer.write(0, CONTENT[:4096])
    assert sink.received == CONTENT


def test_a_file_ends_once_with_its_last_byte() -> None:
    sink = Sink()
    writer = make_writer(sink)
    writer.write(4096, CONTENT[4096:])
    assert sink.ends == 0
    writer.write(0, CONTENT[:4096])
    assert sink.ends == 1


def test_gaps_are_sent_as_zeros() -> None:
    sink = Sink()
    writer = make_writer(sink, 3 << 20, gaps=[(10, 20), (30, 3 << 20)])
    writer.write(20, b"b" * 10)
    writer.write(0, b"a" * 10)
    writer.finish()
    assert sink.received == b"a" * 10 + bytes(10) + b"b" * 10 + bytes((3 << 20) - 30)


def test_a_write_of_nothing_does_nothing() -> None:
    sink = Sink()
    writer = make_writer(sink, 4)
    writer.write(2, b"")
    writer.write(0, b"abcd")
    writer.finish()
    assert sink.received == b"abcd"


def test_a_range_of_a_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    sink = Sink()
    writer = make_writer(sink, 1000)
    writer.copy(0, open_reader(str(tmp_path / "source")).range(100, 1100))
    writer.finish()
    assert sink.received == CONTENT[100:1100]


def test_what_is_missing_is_an_error_at_the_end() -> None:
    writer = make_writer(Sink())
    writer.write(0, CONTENT[:100])
    with pytest.raises(OutputError, match="100 of 16384 bytes are complete"):
        writer.finish()


@pytest.mark.parametrize("held", [0, 100, 4096])
@pytest.mark.parametrize("threads", [2, 8])
def test_threads_within_any_memory_come_to_an_end(held: int, threads: int) -> None:
    sink = Sink(seconds=0.0005)
    writer = make_writer(sink, held=held)

    def do(start: int, ended: Event) -> None:
        del ended
        # The first thread is the last to write.
        time.sleep(0.002 if start % 4096 == 0 else 0)
        for at in range(start, start + 512, 64):
            writer.write(at, CONTENT[at : at + 64])

    run_all(do, range(0, len(CONTENT), 512), threads=threads, release=writer.stop)
    writer.finish()
    assert sink.received == CONTENT


def test_a_thread_that_is_ahead_waits_until_there_is_room() -> None:
    sink = Sink()
    writer = make_writer(sink, held=4096)
    writer.write(4096, CONTENT[4096:8192])
    ahead = Thread(target=partial(writer.write, 8192, CONTENT[8192:]))
    ahead.start()
    ahead.join(0.05)
    assert ahead.is_alive()
    writer.write(0, CONTENT[:4096])
    ahead.join(5)
    assert not ahead.is_alive()
    writer.finish()
    assert sink.received == CONTENT


def test_files_share_their_memory() -> None:
    memory = HeldMemory(4096)
    sinks = [Sink(), Sink()]
    first, second = (
        OrderedWriter("out", 8192, send=sink.send, end=sink.end, held=memory) for sink in sinks
    )
    first.write(4096, CONTENT[4096:8192])
    assert memory.used == 4096
    ahead = Thread(target=partial(second.write, 4096, CONTENT[4096:8192]))
    ahead.start()
    ahead.join(0.05)
    assert ahead.is_alive()
    first.write(0, CONTENT[:4096])
    ahead.join(5)
    second.write(0, CONTENT[:4096])
    assert [sink.received for sink in sinks] == [CONTENT[:8192]] * 2
    assert memory.used == 0


def test_the_error_of_a_task_ends_the_threads_that_wait_for_its_bytes() -> None:
    writer = make_writer(Sink(), held=0)

    def do(start: int, ended: Event) -> None:
        del ended
        if start == 0:
            time.sleep(0.02)
            raise ValueError("the first task fails")
        writer.write(start, CONTENT[start : start + 4096])

    with pytest.raises(ValueError, match="the first task fails"):
        run_all(do, range(0, len(CONTENT), 4096), threads=4, release=writer.stop)


def test_an_error_of_sending_is_that_of_all_later_writes() -> None:
    def fail(data: bytes) -> None:
        raise OutputError(f"{len(data)} bytes cannot be sent")

    writer = make_writer(Sink(), send=fail)
    for start in (0, 4096):
        with pytest.raises(OutputError, match="4096 bytes cannot be sent"):
            writer.write(start, CONTENT[start : start + 4096])
    with pytest.raises(OutputError, match="4096 bytes cannot be sent"):
        writer.finish()

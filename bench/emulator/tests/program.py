"""Uses memory in typical ways (fork, madvise, mremap, pipes, threads) and checks that it keeps its content.

Exit status 7: no error. 1: an error, which is printed to standard output. With the argument `wait` it checks forever;
with `term` it waits for SIGTERM and exits with 9; with `uneven FILE` it creates that file when its memory is filled,
and then uses an eighth of the memory for 14 s.
"""

import mmap
import os
import random
import signal
import sys
import threading
import time

PAGE = 4096
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Memory:
    """Pages whose content is determined by their number and a version."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.map = mmap.mmap(-1, pages * PAGE, flags=PRIVATE)
        self.versions = [0] * pages
        for page in range(pages):
            self.write(page, 1)

    def content(self, page: int, version: int) -> bytes:
        return (b"%08d %08d " % (page, version)) * 8 if version else bytes(144)

    def write(self, page: int, version: int) -> None:
        self.versions[page] = version
        self.map[page * PAGE : page * PAGE + 144] = self.content(page, version)
        self.map[page * PAGE + PAGE - 144 : page * PAGE + PAGE] = self.content(page, version)

    def check(self, page: int, where: str) -> None:
        expected = self.content(page, self.versions[page])
        for start in (page * PAGE, page * PAGE + PAGE - 144):
            found = self.map[start : start + 144]
            if found != expected:
                print(f"corrupt {where}: page {page} holds {found[:18]!r} in place of {expected[:18]!r}", flush=True)
                os._exit(1)

    def check_all(self, where: str) -> None:
        for page in range(self.pages):
            self.check(page, where)

    def churn(self, chance: random.Random, seconds: float, where: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            page = chance.randrange(self.pages)
            self.check(page, where)
            if chance.random() < 0.3:
                self.write(page, self.versions[page] + 1)


def forked(memory: Memory) -> None:
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        memory.check_all("in a child" if grandchild else "in a grandchild")
        if grandchild == 0:
            os._exit(0)
        memory.churn(random.Random(1), 0.1, "in a child, later")
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    memory.churn(random.Random(2), 0.2, "next to a child")
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        os._exit(1)


def freed(memory: Memory) -> None:
    """Frees a third of the pages; they must read as zeroes, and accept new content."""
    third = memory.pages // 3
    memory.map.madvise(mmap.MADV_DONTNEED, third * PAGE, third * PAGE)
    for page in range(third, 2 * third):
        memory.versions[page] = 0
    memory.check_all("after freeing")
    for page in range(third, 2 * third, 2):
        memory.write(page, 5)


def moved(memory: Memory) -> None:
    """Grows a mapping so that it has to move, and shrinks it again by a size that is no multiple of a block."""
    grown = memory.pages * 2
    try:
        memory.map.resize(grown * PAGE)
    except OSError as error:
        # mremap(2) does not accept a range of several mappings, such as slow and fast blocks.
        print(f"not moved: {error}", flush=True)
        return
    memory.versions += [0] * (grown - memory.pages)
    memory.pages = grown
    memory.check_all("after a move")
    shrunk = grown // 2 - 300
    memory.map.resize(shrunk * PAGE)
    memory.pages = shrunk
    del memory.versions[shrunk:]
    memory.check_all("after shrinking")


def through_the_kernel(memory: Memory) -> None:
    """Checks memory that the kernel itself reads, which faults in the same way."""
    reader, writer = os.pipe()
    view = memoryview(memory.map)
    for page in range(0, memory.pages, 7):
        os.write(writer, view[page * PAGE : page * PAGE + 144])
        if os.read(reader, 144) != memory.content(page, memory.versions[page]):
            print(f"corrupt through a pipe: page {page}", flush=True)
            os._exit(1)
    view.release()
    os.close(reader)
    os.close(writer)


def main() -> None:
    mode = sys.argv[1] if len(sys.argv) > 1 else "all"
    if mode == "term":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
        print("ready", flush=True)
        while True:
            signal.pause()
    memory = Memory(8 * 512)
    if mode == "uneven":
        memory.pages = 512
        open(sys.argv[2], "x").close()
        memory.churn(random.Random(5), 14.0, "in the eighth that is used")
        sys.exit(7)
    if mode == "wait":
        print("ready", os.getpid(), flush=True)
        while True:
            memory.churn(random.Random(3), 1.0, "while waiting")
    other = Memory(4 * 512)
    worker = threading.Thread(target=other.churn, args=(random.Random(4), 10.0, "in a thread"))
    worker.start()
    for round_ in range(3):
        memory.churn(random.Random(round_), 2.0, "at rest")
        through_the_kernel(memory)
        forked(memory)
        freed(memory)
        memory.churn(random.Random(round_), 1.0, "after freeing")
        moved(memory)
        memory.map.close()
        memory = Memory(6 * 512 + 300 * round_)
    worker.join()
    memory.check_all("at the end")
    other.check_all("at the end, in the thread's")
    sys.exit(7)


main()

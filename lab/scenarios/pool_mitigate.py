"""A guest that touches more pool memory than predicted is detected within a period and moved to local memory, once.

Its pool memory is predicted to stay untouched. It behaves as predicted at first; then a program takes more memory than
its local memory has free. The running guest is moved to a second process on the same host with local memory only, and
its slices return. A program in it sends a counter some tens of times per second over its own port, timed outside,
because a clock in the guest stops during the pause.
"""

import time
from itertools import pairwise
from typing import Any

from thermolab import emulator, znuma
from thermolab.errors import GuestTimeout
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Pool, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

LOCAL_MIB, POOL_MIB = 448, 256
SLICES = POOL_MIB // SLICE_MIB
TOLERATED_RATIO = 0.05
PERIOD_SECONDS = 3
QUIET_SAMPLES = 3
SMALL_MIB = 32
"""Memory within the prediction."""
LARGE_MIB = 420
DETECTED_MAX_PERIODS = 2.5
"""The period in which the accesses begin is not over, and the sample itself takes time."""
PAUSE_MAX_SECONDS = 1.0
TICKS_MIN = 50
TICKS_GAP_MAX_SECONDS = 15.0
"""An emulated guest stalls for seconds while its memory is being filled, moved or not."""

_TICKER = """
port=$(grep -l '^ticks$' /sys/class/virtio-ports/*/name); port=/dev/$(basename $(dirname $port))
i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done >$port
"""


def run(lab: Lab) -> dict[str, Any]:
    """Starts a guest, exceeds the prediction, and checks detection and mitigation."""
    watch = Watch(period=f"{PERIOD_SECONDS}s")
    with Pool(lab, SLICES) as pool:
        # Half of the guests that QEMU 7.2 emulates lose writes when they are moved.
        host = pool.host("host-a", watch, hypervisor=emulator.section(pool.directory / "qemu", threads="single"))
        with PoolGuest(host, Vm("wrong", LOCAL_MIB, POOL_MIB, cpus=1)) as guest:
            guest.spawn(["sh", "-c", _TICKER], stdout="/run/ticker.out", stderr="/run/ticker.out")
            small = znuma.hold(guest, 1, SMALL_MIB)
            quiet = znuma.observe(host, guest, QUIET_SAMPLES)
            before = host.explain("wrong")["verdict"]
            begin = time.monotonic()
            large = guest.spawn(
                ["labguest", "marks", "hold", "--mark", "2", "--mib", str(LARGE_MIB), "--every-ms", "100"],
                stdout="/run/marks.2",
            )
            touched = _begin(pool, 90)
            verdict = host.event("wrong", "Mitigate:", 90)
            moved = host.event("wrong", "moved to local memory", 120)
            guest.follow()
            settled = pool.until_free(SLICES)
            guest.expect("/run/marks.2", "damaged_bytes", 120)
            marks = znuma.Marks(guest, large, LARGE_MIB * MIB, "/run/marks.2")
            damaged = small.damaged_bytes() + marks.damaged_bytes()
            alive = small.is_alive() and marks.is_alive()
            record = host.explain("wrong")
            end = time.monotonic()
            ticks = list(guest.ticks.lines)
            lab.say(f"{len(ticks)} ticks; {guest.read('/run/ticker.out')}")
            gap = guest.ticks.gap_seconds(begin, end)
            nodes = [znuma.node_bytes(guest, node) for node in (0, 1)]
            killed = znuma.out_of_memory(guest)
    pause, total, copied = _move(moved["what"])
    numbers = [int(line) for _, line in ticks if line.isdigit()]
    lost = sum(after - ahead - 1 for ahead, after in pairwise(numbers))
    figures = {
        "pool_bytes": POOL_MIB * MIB,
        "pool_accessed_before_ratio": quiet.pool_accessed_ratio,
        "pool_touched_before_bytes": quiet.pool_touched_bytes,
        "detected_seconds": verdict["at"] - touched,
        "period_seconds": PERIOD_SECONDS,
        "pause_seconds": pause,
        "move_seconds": total,
        "copied_bytes": copied,
        "ticks_gap_seconds": gap,
        "ticks": len(numbers),
        "ticks_lost": lost,
        "slices_back_seconds": settled,
        "damaged_bytes": damaged,
        "oom_kills": killed,
    }
    lab.say(f"{moved['what']}; outside, the ticks have a gap of {gap:.3f} s; {figures}")
    lab.holds("quiet", before == "as_predicted", f"the verdict before was {before}")
    lab.holds("programs", alive, "a program in the guest exited")
    lab.holds("once", record["mitigated"] and not record["mapped"], f"it still has slices: {record['mapped']}")
    lab.at_least("pool node", nodes[1], POOL_MIB * MIB)
    _bounds(lab, figures)
    return figures


def _move(text: str) -> tuple[float, float, int]:
    """Parses pause and total time in seconds and the copied bytes from the event of a move."""
    pause = float(text.split("paused for ")[1].split()[0])
    total = float(text.split(" s, ")[1].split()[0])
    return pause, total, int(text.split(" in all, ")[1].split()[0])


def _bounds(lab: Lab, figures: dict[str, Any]) -> None:
    lab.at_most("detected_seconds", figures["detected_seconds"], DETECTED_MAX_PERIODS * PERIOD_SECONDS)
    lab.at_most("pause_seconds", figures["pause_seconds"], PAUSE_MAX_SECONDS)
    lab.at_least("ticks", figures["ticks"], TICKS_MIN)
    lab.at_most("ticks_gap_seconds", figures["ticks_gap_seconds"], TICKS_GAP_MAX_SECONDS)
    for name in ("ticks_lost", "damaged_bytes", "oom_kills"):
        lab.at_most(name, figures[name], 0)


def _begin(pool: Pool, timeout_s: float) -> float:
    """Returns the Unix time at which the guest has touched more of the pool than is tolerated."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if sum(file.stat().st_blocks for file in pool.files()) * 512 > TOLERATED_RATIO * POOL_MIB * MIB:
            return time.time()
        time.sleep(0.01)
    raise GuestTimeout(f"the program did not reach the pool within {timeout_s:g} s")

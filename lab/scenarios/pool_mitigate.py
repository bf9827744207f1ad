"""A guest that touches more than predicted is found out within a period of the monitor and moved to local memory, once, while it runs.

The prediction is a real one: a model, and a customer whose machines have left half of their memory untouched until now. This
one begins as those did, then a program takes what was to stay untouched. The guest is moved to a second process on the same host,
all of whose memory is local; its slices go back. A program in it counts on at 50 per second over a port of its own, timed outside,
because a clock inside stands still while the guest does.
"""

import time
from typing import Any

from thermolab import znuma
from thermolab.lab import Lab
from thermolab.paths import TREE
from thermolab.pool import SLICE_MIB, Pool, PoolGuest, Vm, Watch
from thermolab.qemu import MIB

KERNELS = ("6.12",)

MODEL = TREE / "crates" / "predict" / "testdata" / "untouched.onnx"
MEMORY_MIB = 1024
PERIOD_SECONDS = 3
QUIET_LOOKS = 3
SMALL_MIB = 64
"""Within what was predicted."""
LARGE_MIB = 700
DETECTED_MAX_PERIODS = 2.5
"""The period in which it began is not over, and the look itself takes its time."""
PAUSE_MAX_SECONDS = 1.0

_TICKER = """
port=$(grep -l '^ticks$' /sys/class/virtio-ports/*/name); port=/dev/$(basename $(dirname $port))
i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done >$port
"""


def run(lab: Lab) -> dict[str, Any]:
    """Predict, start, misbehave, detect, mitigate."""
    watch = Watch(period=f"{PERIOD_SECONDS}s")
    with Pool(lab, 4) as pool:
        host = pool.host("host-a", watch, models=MODEL)
        with PoolGuest(host, Vm("wrong", MEMORY_MIB, None, about=ABOUT)) as guest:
            share = host.explain("wrong")["share"]
            pool_mib = share["slices"] * SLICE_MIB
            lab.say(f"{pool_mib} of {MEMORY_MIB} MiB are predicted untouched: {share['why']}")
            guest.spawn(["sh", "-c", _TICKER])
            small = znuma.hold(guest, 1, SMALL_MIB)
            quiet = znuma.see(host, guest, QUIET_LOOKS)
            before = host.explain("wrong")["verdict"]
            begin = time.monotonic()
            begin_unix = time.time()
            large = guest.spawn(
                ["labguest", "marks", "hold", "--mark", "2", "--mib", str(LARGE_MIB), "--every-ms", "100"],
                stdout="/run/marks.2",
            )
            verdict = host.event("wrong", "Repair:", 90)
            touched = _first_touch(pool, begin_unix, verdict)
            moved = host.event("wrong", "moved to local memory", 120)
            guest.follow()
            settled = pool.until_free(4)
            guest.expect("/run/marks.2", "damaged_bytes", 60)
            marks = znuma.Marks(guest, large, LARGE_MIB * MIB, "/run/marks.2")
            damaged = small.damaged_bytes() + marks.damaged_bytes()
            alive = small.is_alive() and marks.is_alive()
            record = host.explain("wrong")
            end = time.monotonic()
            ticks = guest.ticks.lines
            gap = guest.ticks.gap_seconds(begin, end)
            nodes = [znuma.node_bytes(guest, node) for node in (0, 1)]
            killed = znuma.out_of_memory(guest)
    numbers = [int(line) for _, line in ticks if line.isdigit()]
    lost = sum(after - before_ - 1 for before_, after in zip(numbers, numbers[1:], strict=False))
    words = moved["what"]
    pause = float(words.split("paused for ")[1].split()[0])
    total = float(words.split(" s, ")[1].split()[0])
    copied = int(words.split(" in all, ")[1].split()[0])
    figures = {
        "predicted_untouched_bytes": pool_mib * MIB,
        "pool_accessed_before_ratio": quiet.pool_accessed_ratio,
        "pool_touched_before_bytes": quiet.pool_touched_bytes,
        "detected_seconds": verdict["at"] - touched,
        "period_seconds": PERIOD_SECONDS,
        "pause_seconds": pause,
        "move_seconds": total,
        "copied_bytes": copied,
        "ticks_gap_seconds": gap,
        "ticks_lost": lost,
        "slices_back_seconds": settled,
        "damaged_bytes": damaged,
        "oom_kills": killed,
    }
    lab.say(f"{words}; the program outside saw a gap of {gap:.3f} s; {figures}")
    lab.holds("predicted", share["why"] == "untouched" and share["slices"] > 0, f"the model was not asked: {share}")
    lab.holds("quiet", before == "as_predicted", f"before it misbehaved it was {before}")
    lab.at_most("detected_seconds", figures["detected_seconds"], DETECTED_MAX_PERIODS * PERIOD_SECONDS)
    lab.at_most("pause_seconds", pause, PAUSE_MAX_SECONDS)
    lab.at_most("ticks_lost", lost, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    lab.at_most("oom_kills", killed, 0)
    lab.holds("programs", alive, "a program in the guest has ended")
    lab.holds("once", record["repaired"] and not record["mapped"], f"it still has slices: {record['mapped']}")
    lab.at_least("pool node", nodes[1], pool_mib * MIB)
    return figures


def _first_touch(pool: Pool, begin_unix: float, verdict: dict[str, Any]) -> float:
    """When the guest was first beyond what is tolerated: no earlier than the program that takes it began."""
    del pool, verdict
    return begin_unix


ABOUT = {
    "customer": 7,
    "vm_type": "D4",
    "guest_os": "linux-a",
    "location": "region-a",
    "history": [0.5, 0.52, 0.55, 0.5, 0.51],
}

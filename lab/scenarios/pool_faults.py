"""Manager, host and guests are killed while guests come and go: no slice has two owners, and none is lost.

One guest runs all the time, with a mark in its pool memory that it looks at again and again. Beside it others are
started and stopped; in each round the manager, the host's daemon or the other guest's process is killed, at a random
moment of that. Then all is started again. The steady guest must not notice, and once the others are gone all slices but
its own are free and clean. The manager alone is killed more often, under more load, by a test of its own crate.
"""

import contextlib
import random
import threading
import time
from typing import Any

from thermolab import znuma
from thermolab.errors import LabError
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Host, OwnersWatch, Pool, PoolGuest, Refused, Vm, Watch

KERNELS = ("6.12",)

SLICES = 4
STEADY_SLICES = 2
ROUNDS = 12
SEED = 4
MOMENTS_SECONDS = 1.2
"""A start takes about so long on a busy machine, so that a fault falls before, into or after it."""
BACK_SECONDS = 40.0
"""For the others' slices to be free again: the lease of 5 s, and patience with a busy machine."""


def run(lab: Lab) -> dict[str, Any]:
    """Rounds of coming, going and faults."""
    chance = random.Random(SEED)  # noqa: S311 -- to be the same again
    kills = {"manager": 0, "host": 0, "guest": 0}
    back: list[float] = []
    lost = dirty = 0
    with Pool(lab, SLICES) as pool:
        host = pool.host("host-a", Watch(attempts=0))
        vm = Vm("steady", 448, STEADY_SLICES * SLICE_MIB, cmdline="memhp_default_state=online_movable", cpus=1)
        with PoolGuest(host, vm) as guest, OwnersWatch(pool, [host]) as owners:
            marks = znuma.hold(guest, 1, STEADY_SLICES * SLICE_MIB // 2, node=1)
            for number in range(ROUNDS):
                whom = ("manager", "host", "guest")[number % 3]
                lab.say(f"round {number}: the {whom} is killed")
                comes = threading.Thread(target=_come, args=(host, f"other-{number}"), daemon=True)
                comes.start()
                time.sleep(chance.uniform(0, MOMENTS_SECONDS))
                kills[whom] += _kill(pool, host, whom, f"other-{number}")
                comes.join()
                begin = time.monotonic()
                _stop_others(host)
                try:
                    pool.until_free(SLICES - STEADY_SLICES, BACK_SECONDS)
                except LabError as error:
                    lab.say(str(error))
                    lost = max(lost, SLICES - STEADY_SLICES - pool.counts()["free"])
                back.append(time.monotonic() - begin)
            held = {slice_["path"] for slice_ in host.explain("steady")["mapped"]}
            dirty = sum(file.stat().st_blocks > 0 for file in pool.files() if str(file) not in held)
            damaged, alive = marks.damaged_bytes(), marks.is_alive()
    figures = {
        "kills": sum(kills.values()),
        **{f"kills_of_{whom}": count for whom, count in kills.items()},
        "double_owned": max(0, owners.most - 1),
        "owner_looks": owners.looks,
        "lost_slices": lost,
        "free_slices_with_data": dirty,
        "damaged_bytes": damaged,
        "back_max_seconds": max(back),
    }
    lab.say(str(figures))
    lab.at_least("kills", sum(kills.values()), ROUNDS * 2 // 3)
    lab.at_most("double_owned", figures["double_owned"], 0)
    lab.at_most("lost_slices", lost, 0)
    lab.at_most("free_slices_with_data", dirty, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    lab.holds("steady", alive, "the steady guest's program has ended")
    return figures


def _come(host: Host, name: str) -> None:
    """Starts a guest; a fault may keep it from that."""
    with contextlib.suppress(Refused):
        host.start_bare(name, 256, SLICE_MIB * (SLICES - STEADY_SLICES))


def _kill(pool: Pool, host: Host, whom: str, name: str) -> int:
    """Kills, and starts again what does not start again by itself; how many were killed."""
    if whom == "manager":
        pool.kill_manager()
        time.sleep(0.2)
        pool.start_manager()
        return 1
    if whom == "host":
        host.kill()
        host.start()
        return 1
    return int(host.kill_guest(name))


def _stop_others(host: Host) -> None:
    """Ends all guests but the steady one, however busy they are."""
    deadline = time.monotonic() + BACK_SECONDS
    while time.monotonic() < deadline:
        others = [name for name in host.names() if name != "steady"]
        if not others:
            return
        for name in others:
            with contextlib.suppress(Refused):
                host.vm("stop", name, "--now")
        time.sleep(0.1)

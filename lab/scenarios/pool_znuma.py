"""Real programs in guests whose pool memory is what they leave untouched: how much of it they touch and access.

Reproduces Pond's figures 10, 15 and 16. Each program runs first in a guest with local memory only, which measures its
untouched memory; then in a guest of the same size whose pool memory is that amount, in whole slices. One of them also
runs in guests with so little local memory that 10, 25 and 50 % of the memory it touches must be in the pool. Accesses
are determined from accessed bits in periods of two seconds: of all pages accessed in a period, the share in the pool.
The cost of an access cannot be measured here: emulated memory has the same speed everywhere.

Linux distributes dirty page cache over all nodes, so that no node exceeds its share of dirty pages, however much free
memory the first node has. A server's data files are therefore observed as they were written, for the record, and judged
after they were written back and read again from the disk, as after the guest's next start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thermolab import loads, services, znuma
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Host, Pool, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

MEMORY_MIB = 1024
SPARE_MIB = 48
"""Local memory that a kernel keeps free before it uses another node, plus the variation between runs of a program."""
SAMPLES = 6
PERIOD_SECONDS = 2
SPILLS = (0.1, 0.25, 0.5)
SPILLED = ("redis",)
ACCESSED_MAX_RATIO = 0.005

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs in a guest."""

    name: str
    start: Callable[[PoolGuest], None]
    """Returns once it is busy and has touched its memory."""
    on_files: bool = False
    """Whether its data are files that it has just written."""


def run(lab: Lab) -> Figures:
    """Measures each program, runs it in a guest of the right size, then in guests of wrong sizes."""
    programs = (
        Program("redis", _redis),
        Program("postgres", _postgres, on_files=True),
        Program("files", _files, on_files=True),
        Program("analytics", _analytics),
    )
    figures: Figures = {}
    with Pool(lab, MEMORY_MIB // SLICE_MIB) as pool:
        host = pool.host("host-a", Watch(period=f"{PERIOD_SECONDS}s", attempts=0))
        for program in programs:
            touched = _alone(host, program)
            right = max(0, int((MEMORY_MIB * MIB - touched) / MIB - SPARE_MIB) // SLICE_MIB)
            lab.say(f"{program.name} touches {touched // MIB} of {MEMORY_MIB} MiB: {right} slices from the pool")
            row = {"touched_bytes": touched, **_with(host, program, right)}
            lab.say(f"{program.name}, right size: {row}")
            figures[program.name] = row
            lab.at_most(f"{program.name}.pool_accessed_ratio", row["pool_accessed_ratio"], ACCESSED_MAX_RATIO)
            lab.at_least(f"{program.name}.pool_bytes", row["pool_bytes"], SLICE_MIB * MIB)
            for spill in SPILLS if program.name in SPILLED else ():
                local = round(touched / MIB * (1 - spill))
                # The pool has twice the space for what does not fit into local memory.
                slices = -(-2 * round(touched / MIB * spill) // SLICE_MIB)
                wrong = _with(host, program, slices, local)
                lab.say(f"{program.name}, {spill:.0%} of it exceeds local memory: {wrong}")
                row[f"spilled_{round(spill * 100)}"] = wrong
        _check_topology(lab, host, figures)
    return figures


def _alone(host: Host, program: Program) -> int:
    """Returns the bytes that a program touches in a guest with local memory only."""
    with PoolGuest(host, Vm("alone", MEMORY_MIB, 0)) as guest:
        program.start(guest)
        # As long as the observation later: what it touches in that time counts too.
        guest.run(["sleep", str(SAMPLES * PERIOD_SECONDS)])
        if program.on_files:
            _read_again(guest)
            guest.run(["sleep", str(SAMPLES * PERIOD_SECONDS)])
        return znuma.resident_bytes(guest)


def _with(host: Host, program: Program, slices: int, local_mib: int | None = None) -> Figures:
    """Observes a program with `slices` slices from the pool; local memory is the rest of `MEMORY_MIB` by default."""
    pool_mib = slices * SLICE_MIB
    with PoolGuest(host, Vm(program.name, local_mib or MEMORY_MIB - pool_mib, pool_mib)) as guest:
        program.start(guest)
        figures: Figures = {}
        if program.on_files:
            figures["as_written"] = znuma.observe(host, guest, SAMPLES).figures()
            _read_again(guest)
        return {**figures, **znuma.observe(host, guest, SAMPLES).figures(), "oom_kills": znuma.out_of_memory(guest)}


def _check_topology(lab: Lab, host: Host, figures: Figures) -> None:
    """Checks the topology that the guest itself sees (Pond figure 10)."""
    with PoolGuest(host, Vm("shown", 512, 2 * SLICE_MIB)) as guest:
        node = "/sys/devices/system/node"
        cores, distance = guest.read(f"{node}/node1/cpulist").strip(), guest.read(f"{node}/node1/distance").split()
        memory = znuma.node_bytes(guest, 1)
    figures["node"] = {"bytes": memory, "distance": int(distance[0])}
    lab.holds("node", cores == "", f"the pool's node has cores {cores}")
    lab.holds("distance", distance == ["28", "10"], f"the pool's node is at {distance}")
    lab.at_least("node.bytes", memory, 2 * SLICE_MIB * MIB)


_SECONDS = 600.0
"""Longer than any observation."""


def _redis(guest: PoolGuest) -> None:
    load = loads.Requests(services.redis(guest), "redis", keys=60_000, value_factor=3)
    load.fill()
    load.start(_SECONDS, 400)
    _settle(guest)


def _postgres(guest: PoolGuest) -> None:
    load = loads.Pgbench(services.postgres(guest, shared_buffers_mib=32), scale=4)
    load.fill()
    load.start(_SECONDS, 60)
    _settle(guest)


def _files(guest: PoolGuest) -> None:
    load = loads.Requests(services.nginx(guest), "http", keys=3_000)
    load.fill()
    load.start(_SECONDS, 400)
    _settle(guest)


def _analytics(guest: PoolGuest) -> None:
    """Sorts and sums a table repeatedly, in memory only."""
    table, out = "/dev/shm/table", "/run/analytics.out"
    rows = f"seq 1 1000000 | awk '{{ print ($1 * 7919) % 100003, $1 % 97, $1 }}' >{table}"
    guest.run(["sh", "-c", rows], timeout_s=180)
    summed = "awk '{ sum[$2] += $1 } END { for (key in sum) print key, sum[key] }' | wc -l"
    query = f"sort -n -S 100M -T /dev/shm {table} | {summed}"
    guest.spawn(["sh", "-c", f"while :; do {query}; done"], stdout=out, stderr=out)
    guest.expect(out, "97", timeout_s=300)


def _read_again(guest: PoolGuest) -> None:
    """Drops the page cache, so that files are read again from the disk, by the programs that use them."""
    guest.run(["sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches"], timeout_s=120)
    _settle(guest)


def _settle(guest: PoolGuest) -> None:
    """Waits while the server is busy."""
    guest.run(["sleep", "6"], timeout_s=60)

"""Machines with a slow node: their command line, and the kernel's view of them."""

from pathlib import Path

import pytest

from thermolab import binaries, kernels, numa
from thermolab.lab import Lab
from thermolab.qemu import MIB, command
from thermolab.truth import Region, Workload, poisson


@pytest.mark.parametrize(
    ("hmat", "present", "absent"),
    [
        (
            True,
            (
                "-machine hmat=on",
                "node,nodeid=0,cpus=0-1,memdev=m0,initiator=0 ",
                "node,nodeid=1,memdev=m1,initiator=0 ",
                "target=1,hierarchy=memory,data-type=access-latency,latency=500",
            ),
            "node,nodeid=1,cpus",
        ),
        (False, ("-numa node,nodeid=0,cpus=0-1,memdev=m0 ", "-numa node,nodeid=1,memdev=m1"), "initiator"),
    ],
)
def test_two_nodes(hmat: bool, present: tuple[str, ...], absent: str) -> None:
    machine = numa.two_nodes(640, 384, hmat=hmat)
    paths = {"image": Path("/k"), "initrd": Path("/i"), "root": Path("/r"), "console": Path("/c")}
    line = " ".join(command(machine, swap=None, channel_fd=7, **paths))
    # QEMU requires that the nodes' sizes add up to the machine's.
    assert machine.memory_bytes == 1024 * MIB
    for part in ("-m 1024M", "id=m0,size=640M", "id=m1,size=384M", *present):
        assert part in line
    assert absent not in line


@pytest.mark.guest
@pytest.mark.parametrize("name", kernels.NAMES)
def test_the_kernel_has_a_slow_node(name: str, tmp_path: Path) -> None:
    lab = Lab("test", kernels.kernel(name), tmp_path, binaries.build())
    with lab.guest(numa.two_nodes(512, 256)) as guest:
        assert guest.read(f"/sys/devices/system/node/node{numa.SLOW}/cpulist").strip() == ""
        # The idle kernel is built without CONFIG_ACPI_HMAT: all nodes are in one tier.
        tiers = 1 if name == kernels.IDLE else 2
        assert len(numa.tiers(guest)) == tiers
        workload = Workload(guest, [Region("hot", 4, poisson(100, 100), kind="huge")])
        watch = numa.Watch(workload)
        guest.expect(watch.out, "at_ns")
        (first, *_) = watch.stop()
        assert (first.local_bytes, first.slow_bytes, first.slow_accesses) == (4 * MIB, 0, 0)
        assert first.local_accesses > 0
        workload.stop()

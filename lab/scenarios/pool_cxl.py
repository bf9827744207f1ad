"""An unconfigured CXL device becomes pool memory by the commands that `thermocline pool doctor` suggests, in turn.

The guest has QEMU's CXL type 3 device. The doctor's report is compared with the device's configuration at each stage:
before its drivers are loaded, with them, after `cxl create-region`, and when its memory is a NUMA node without CPUs. A
second guest's device also has dynamic capacity, which Linux does not support: the doctor must report that, and continue
with the static memory.
"""

import json
from typing import Any

from thermolab import cxl
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = (cxl.KERNEL,)

LOCAL_MIB = 1024
CXL_MIB = 512
DYNAMIC_MIB = 256
STAGES_MAX = 12
NODE_SECONDS = 20.0
WRITTEN_MIB = 64


def run(lab: Lab) -> dict[str, Any]:
    """Runs both guests one after the other."""
    with lab.guest(cxl.machine(LOCAL_MIB, CXL_MIB)) as guest:
        lab.say(f"up in {guest.boot_seconds:.1f} s: Linux {guest.release}, {CXL_MIB} MiB of CXL memory")
        figures = _configure_device(lab, guest)
        figures |= _check_slices(lab, guest)
        figures |= _remove(lab, guest)
        figures["boot_seconds"] = guest.boot_seconds
    with lab.guest(cxl.machine(LOCAL_MIB, CXL_MIB, dynamic_mib=DYNAMIC_MIB)) as guest:
        lab.say(f"a device with {DYNAMIC_MIB} MiB of dynamic capacity")
        figures |= _dynamic(lab, guest)
    return figures


def _doctor(guest: Guest) -> tuple[int | None, dict[str, Any]]:
    done = guest.run(["thermocline", "pool", "doctor", "--format", "json"], check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return done.status, report


def _keep(lab: Lab, guest: Guest, stage: str) -> None:
    text = guest.run(["thermocline", "pool", "doctor"], check=False).stdout
    (lab.directory / f"doctor-{stage}.txt").write_text(text)


def _configure_device(lab: Lab, guest: Guest) -> dict[str, Any]:
    """Runs the suggested commands until there are none left."""
    cxl.give_programs(guest)
    status, report = _doctor(guest)
    _keep(lab, guest, "bare")
    lab.holds("bare.status", status == 3, f"the doctor exited with {status} on a device without drivers")
    lab.holds(
        "bare.idle_pci", len(report["idle_pci"]) == 1, f"found {report['idle_pci']} idle on the PCI bus, not one device"
    )
    commands: list[str] = []
    regions_before: int | None = None
    for _ in range(STAGES_MAX):
        if not report["next"]:
            break
        for command in report["next"]:
            if "create-region" in command:
                regions_before = len(report["regions"])
                _keep(lab, guest, "driven")
                found = [memory["ram"] for memory in report["expanders"]]
                lab.holds(
                    "expanders", found == [CXL_MIB * MIB], f"expanders of {found} bytes, not one of {CXL_MIB} MiB"
                )
            lab.say(command)
            cxl.shell(guest, command)
            commands.append(command)
        _wait_for_node(guest, report)
        status, report = _doctor(guest)
    _keep(lab, guest, "ready")
    region = [region["size"] for region in report["regions"]]
    dax = [(device["size"], device["mode"], device["online"]) for device in report["dax"]]
    online = {"all": CXL_MIB * MIB, "movable": CXL_MIB * MIB}
    whole = CXL_MIB * MIB
    nodes = report["far_nodes"]
    lab.holds("status", status == 0 and report["able"], f"the doctor exited with {status}: {report['checks']}")
    lab.holds("created", regions_before == 0, f"the doctor reported {regions_before} regions before one was created")
    lab.holds("regions", region == [whole], f"regions of {region} bytes, not one of {CXL_MIB} MiB")
    lab.holds("dax", dax == [(whole, "system-ram", online)], f"DAX devices: {dax}")
    lab.holds("far_nodes", len(nodes) == 1, f"{len(nodes)} nodes without cores: {nodes}")
    total = sum(node["total"] for node in nodes)
    lab.at_least("node_bytes", total, whole * 0.95)
    lab.at_most("node_bytes", total, whole)
    distances = [distance for node in nodes for other, distance in node["distances"] if other == 0]
    return {
        "commands": len(commands),
        "region_bytes": sum(region),
        "node_bytes": total,
        "node_distance": distances[0] if distances else 0,
    }


def _wait_for_node(guest: Guest, before: dict[str, Any]) -> None:
    """Waits for the node, which appears shortly after the region, before the doctor runs again."""
    if before["far_nodes"] or not any("create-region" in command for command in before["next"]):
        return
    tries = int(NODE_SECONDS * 5)
    waits = f"for n in $(seq {tries}); do test -d /sys/devices/system/node/node1 && exit 0; sleep 0.2; done; exit 0"
    guest.run(["sh", "-c", waits], timeout_s=NODE_SECONDS * 3)


def _check_slices(lab: Lab, guest: Guest) -> dict[str, Any]:
    """Checks that a file below the pool directory named by the doctor is allocated on the far node."""
    place = "/run/thermocline-pool"
    before = _node_free(guest)
    guest.run(["dd", "if=/dev/zero", f"of={place}/slice", "bs=1M", f"count={WRITTEN_MIB}"], timeout_s=300)
    taken = before - _node_free(guest)
    lab.at_least("slice_on_node_bytes", taken, WRITTEN_MIB * MIB)
    guest.run(["rm", f"{place}/slice"])
    return {"slice_on_node_bytes": taken}


def _node_free(guest: Guest) -> int:
    text = guest.read("/sys/devices/system/node/node1/meminfo")
    return int(next(line for line in text.splitlines() if "MemFree" in line).split()[3]) * 1024


def _remove(lab: Lab, guest: Guest) -> dict[str, Any]:
    """Removes the region with the tools' own commands; the doctor must then report the initial state."""
    for command in (
        "umount /run/thermocline-pool",
        "daxctl offline-memory dax0.0",
        "cxl disable-region region0",
        "cxl destroy-region -f region0",
    ):
        lab.say(command)
        cxl.shell(guest, command)
    status, report = _doctor(guest)
    lab.holds("back.status", status == 3, f"the doctor exited with {status} after the region was destroyed")
    lab.holds(
        "back.regions",
        not report["regions"] and not report["far_nodes"],
        f"left: {report['regions']}, {report['far_nodes']}",
    )
    return {}


def _dynamic(lab: Lab, guest: Guest) -> dict[str, Any]:
    _, report = _doctor(guest)
    for command in report["next"]:
        guest.run(command.split())
    _, report = _doctor(guest)
    _keep(lab, guest, "dynamic")
    reported = [(expander["dynamic_capacity"], expander["multi_headed"]) for expander in report["expanders"]]
    lab.holds(
        "dynamic",
        reported == [(True, False)],
        f"(dynamic capacity, multi-headed) is reported as {reported}: {report['expanders']}",
    )
    found = [check["found"] for check in report["checks"] if check["name"] == "cxl_special"]
    lab.holds("dynamic.reported", len(found) == 1 and "not supported" in found[0], f"the doctor reports {found}")
    static = [expander["ram"] for expander in report["expanders"]]
    lab.holds("dynamic.static", static == [CXL_MIB * MIB], f"static memory of {static} bytes")
    return {"dynamic_capacity_seen": int(reported == [(True, False)])}

"""Each remedy that `thermocline doctor` prints is carried out on a machine that lacks something, and is true.

Every machine is prepared so that one item blocks or costs. Its commands are run as printed, in the same guest; a change
of the kernel's command line is a second boot with exactly that change. Afterwards the item must be in order, and the
doctor must exit with 0. The container is a process with namespaces of its own. Its remedy, options of a container
engine, is carried out by leaving out the namespaces that the options name: no engine runs in the guest.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thermolab import numa, rootfs, systemd
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import Machine, SwapDisk

KERNELS = ("6.12",)
MORE_IS_BETTER = ("machines", "remedies_true")

_PACKAGES = (*systemd.PACKAGES, "mount", "sudo")
_SWAP = SwapDisk(256 << 20)
_KDAMONDS = "/sys/kernel/mm/damon/admin/kdamonds"
_NAMESPACES = {"--pid": "--pid --fork --mount-proc", "--cgroup": "--cgroup"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A machine that lacks something."""

    check: str
    """The item of the doctor."""
    rank: str = "costs"
    machine: Machine = dataclasses.field(default_factory=lambda: Machine(swap=_SWAP))
    script: str = ""
    """Prepares the machine after each boot."""
    doctor: str = "thermocline doctor --format json"
    rerun: Callable[[str], str] | None = None
    """The doctor's command line after a remedy that is neither commands nor a boot."""


def _hierarchy(*, unified: bool) -> str:
    """Mounts cgroup v1, as an init program does that prefers it; cgroup v2 where the kernel refuses v1.

    A kernel without CONFIG_MEMCG_V1 has no memory controller for v1: another controller stands for it.
    """
    hybrid = "mkdir unified; mount -t cgroup2 none unified;" if unified else ""
    return (
        "for d in $(find /sys/fs/cgroup -mindepth 1 -depth -type d); do rmdir $d; done;"
        "for c in memory io cpu pids; do echo -$c > /sys/fs/cgroup/cgroup.subtree_control; done;"
        "umount /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir memory;"
        "for c in memory pids cpu; do mount -t cgroup -o $c none memory && break; done;"
        f"if [ -e memory/tasks ]; then {hybrid} true; else cd /; umount /sys/fs/cgroup;"
        "mount -t cgroup2 none /sys/fs/cgroup; echo '+memory +io' > /sys/fs/cgroup/cgroup.subtree_control;"
        "mkdir -p /sys/fs/cgroup/work; fi; ls /sys/fs/cgroup"
    )


def _within(remedy: str) -> str:
    """The doctor in a container, without the namespaces that options in the remedy share with the machine."""
    own = [
        flags for name, flags in _NAMESPACES.items() if f"{name}=host" not in remedy and f"{name}ns=host" not in remedy
    ]
    start = f"unshare {' '.join(own)} -- " if own else ""
    return f"{start}thermocline doctor --format json"


_BUSY = (
    f"cd {_KDAMONDS}; echo 1 > nr_kdamonds; cd 0; echo 1 > contexts/nr_contexts; echo vaddr > contexts/0/operations;"
    "echo 1 > contexts/0/targets/nr_targets; echo 1 > contexts/0/targets/0/pid_target; echo on > state"
)
_USER = "setpriv --reuid=65534 --regid=65534 --clear-groups"
_SUDO = "echo '#65534 ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/lab; ln -sf /lab/thermocline /usr/local/bin/thermocline"
_BALANCING = "sysctl -w kernel.numa_balancing=2; echo true > /sys/kernel/mm/numa/demotion_enabled"
_DEMOTION = "sysctl -w kernel.numa_balancing=0; echo true > /sys/kernel/mm/numa/demotion_enabled"
_LOCKDOWN = "mount -t securityfs none /sys/kernel/security"

_MACHINES: dict[str, Prepared] = {
    "no_psi": Prepared("psi", machine=Machine(swap=_SWAP, cmdline="psi=0")),
    "no_swap": Prepared("swap", "blocks", Machine(swap=None)),
    "zswap_off": Prepared("zswap"),
    "readahead": Prepared("page-cluster"),
    "cgroup_v1": Prepared("cgroup2", "blocks", script=_hierarchy(unified=False)),
    "hybrid": Prepared("cgroup2", "blocks", script=_hierarchy(unified=True)),
    "damon_busy": Prepared("sampled", script=_BUSY),
    "no_root": Prepared("privileges", "blocks", script=_SUDO, doctor=f"{_USER} thermocline doctor --format json"),
    "lockdown": Prepared("lockdown", machine=Machine(swap=_SWAP, cmdline="lockdown=integrity"), script=_LOCKDOWN),
    "container": Prepared("container", "blocks", doctor=_within(""), rerun=_within),
    "slow_node_balanced": Prepared("numa_balancing", machine=numa.two_nodes(512, 256, swap=_SWAP), script=_BALANCING),
    "slow_node_demoted": Prepared("demotion", machine=numa.two_nodes(512, 256, swap=_SWAP), script=_DEMOTION),
}


def run(lab: Lab) -> dict[str, Any]:
    """Prepares one machine after the other."""
    found = {name: _remedied(lab, name, prepared) for name, prepared in _MACHINES.items()}
    for name, wrong in found.items():
        lab.holds(name, not wrong, wrong)
    true = sum(not wrong for wrong in found.values())
    lab.at_least("remedies_true", true, len(_MACHINES))
    return {"machines": len(_MACHINES), "remedies_true": true, **{name: not wrong for name, wrong in found.items()}}


def _guest(lab: Lab, name: str, machine: Machine) -> Guest:
    """Returns a guest whose packages include those that the remedies use."""
    console = lab.directory / f"{lab.kernel.name}-{name}-console.log"
    binaries = {program: lab.program(program) for program in ("labguest", "thermocline")}
    return Guest(lab.kernel, machine, root=rootfs.image(_PACKAGES), binaries=binaries, console=console)


def _remedied(lab: Lab, name: str, prepared: Prepared) -> str:
    """Carries out the remedy of one machine; returns what is wrong with it, or nothing."""
    with _guest(lab, name, prepared.machine) as guest:
        check, status, report = _doctor(guest, prepared, prepared.doctor, prepare=True)
        (lab.directory / f"{name}-before.json").write_text(json.dumps(report, indent=1))
        if check is None or check["rank"] != prepared.rank:
            return f"before: {prepared.check} is {check}, expected rank {prepared.rank}"
        if (status == 3) != (prepared.rank == "blocks"):
            return f"before: the doctor exited with {status}"
        lab.say(f"{name}: {check['found']} -> {check.get('commands') or check.get('boot') or check['remedy']}")
        if not check.get("boot"):
            again = prepared.rerun(check["remedy"]) if prepared.rerun else prepared.doctor
            for command in check.get("commands", ()):
                # What an unprivileged user is advised to run, that user runs, and reads its answer.
                if command.startswith("sudo "):
                    again = f"{_USER} {command} --format json"
                    continue
                done = guest.run(["sh", "-c", command], check=False, timeout_s=120)
                if done.status != 0:
                    return f"`{command}` exited with {done.status}: {done.stderr.strip()}"
            return _judged(lab, name, prepared, *_doctor(guest, prepared, again, prepare=False))
    boot = check["boot"]
    words = [word for word in prepared.machine.cmdline.split() if word not in boot["remove"]] + boot["add"]
    with _guest(lab, f"{name}-again", dataclasses.replace(prepared.machine, cmdline=" ".join(words))) as guest:
        return _judged(lab, name, prepared, *_doctor(guest, prepared, prepared.doctor, prepare=True))


def _judged(
    lab: Lab, name: str, prepared: Prepared, check: dict[str, Any] | None, status: int | None, report: dict[str, Any]
) -> str:
    (lab.directory / f"{name}-after.json").write_text(json.dumps(report, indent=1))
    if check is not None and check["rank"] != "fine":
        return f"after: {prepared.check} is {check}"
    return "" if status == 0 else f"after: the doctor exited with {status}"


def _doctor(
    guest: Guest, prepared: Prepared, command: str, *, prepare: bool
) -> tuple[dict[str, Any] | None, int | None, dict[str, Any]]:
    """Returns the result for the prepared item, the doctor's status and its report."""
    if prepare:
        guest.cgroup("work")
        if prepared.script:
            guest.run(["sh", "-c", prepared.script], check=False, timeout_s=120)
    done = guest.run(["sh", "-c", command], check=False, timeout_s=120)
    report: dict[str, Any] = json.loads(done.stdout)
    checks = [*report["checks"], *report["slow_memory"]["checks"]]
    return next((one for one in checks if one["name"] == prepared.check), None), done.status, report

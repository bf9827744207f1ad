"""Every process of every product runs with the least privileges, and a dead thread restarts its service.

A guest with systemd has the shipped units of the agent, the pool manager, the pool host and the scheduler. The host
starts a guest of its own. For each process: user, capabilities, seccomp mode and no_new_privs, as the kernel reports
them. Then one thread of each service exits while its process goes on.
"""

import json
from pathlib import Path
from typing import Any

from thermolab import node, programs, systemd
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.paths import TREE
from thermolab.pool import SLICE_MIB
from thermolab.qemu import MIB

PACKAGES = ("qemu-system-x86",)
UNITS = {
    "agent": "thermocline-agent.service",
    "network": "thermocline-network.service",
    "manager": "thermocline-pool-manager.service",
    "host": "thermocline-pool-host.service",
    "scheduler": "thermocline-pool-scheduler.service",
}
THREADS = {"agent": "scan", "network": "metrics", "manager": "maintenance", "host": "control", "scheduler": "log"}
"""The thread of each product that exits."""
EXPOSURE_MAX = 3.0
CAPABILITIES_MAX = {"agent": 4, "network": 0, "manager": 0, "host": 6, "scheduler": 0, "guest": 0}
FIRST_USER = 1_879_048_192
LOCAL_MIB = 128
JOB = "/system.slice/work.service"
_METRICS = "127.0.0.1:9180"
_SCRAPE = (
    f"exec 3<>/dev/tcp/{_METRICS.replace(':', '/')} && "
    r"printf 'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n' >&3 && timeout 10 cat <&3"
)
_ETC = "/etc/thermocline"
_POOL = "/run/thermocline-pool"
_MANAGER = f"""\
listen = "127.0.0.1:7443"
ledger = "/var/lib/thermocline/pool/ledger.redb"
pool_dir = "{_POOL}/slices"
slice_size = "{SLICE_MIB}MiB"
hosts = ["host-a"]
operators = ["operator"]
[tls]
cert = "{_ETC}/pool/manager.pem"
key = "{_ETC}/pool/manager.key"
client_ca = "{_ETC}/pool/ca.pem"
[[emcs]]
slices = 2
"""
_HOST = f"""\
name = "host-a"
local_memory = "512MiB"
least_local_memory = "128MiB"
[manager]
url = "https://127.0.0.1:7443"
identity = "{_ETC}/pool/host-a"
[qemu]
accelerator = "tcg"
cpu = "max"
overhead = "512MiB"
"""
_SCHEDULER = f"""\
listen = "127.0.0.1:7445"
log = "/var/lib/thermocline/pool/scheduler.log"
operators = ["operator"]
node_cores = 1
node_memory = "512MiB"
slice_size = "{SLICE_MIB}MiB"
[tls]
cert = "{_ETC}/pool/manager.pem"
key = "{_ETC}/pool/manager.key"
client_ca = "{_ETC}/pool/ca.pem"
[[pools]]
name = "pool"
slices = 2
manager = "https://127.0.0.1:7443"
hosts = ["host-a"]
"""
_VM = f'name = "vm"\ncores = 1\nmemory = "{LOCAL_MIB + SLICE_MIB}MiB"\npool = "{SLICE_MIB}MiB"\n'
# Emulated guests translate code.
_DROP_IN = "[Service]\nMemoryDenyWriteExecute=no\n"


def run(lab: Lab) -> dict[str, Any]:
    """Starts the products by their units, reads what their processes may do, and ends threads."""
    files = {
        Path(unit).name: TREE / "deploy" / unit
        for unit in (*UNITS.values(), "thermocline-network.socket", "thermocline.slice")
    }
    figures: dict[str, Any] = {}
    with systemd.guest(
        lab, {**files, "thermocline": lab.program("thermocline")}, packages=PACKAGES, memory_bytes=2048 * MIB
    ) as guest:
        _install(guest, list(files))
        for name, unit in UNITS.items():
            # The agent's socket starts it.
            if name != "network":
                _start(guest, unit)
            figures[f"{name}_exposure"] = systemd.security(guest, unit)
        guest.write("/run/vm.toml", _VM)
        node.until("the guest's memory is there, and it starts", lambda: _vm_starts(guest), timeout_s=120)
        # The socket has started it, for the metrics.
        node.until("the agent's metrics are served", lambda: _metrics(guest), timeout_s=120)
        interfaces = _interfaces(guest, systemd.number(guest, UNITS["agent"], "MainPID"))
        found = {name: _privileges(guest, systemd.number(guest, unit, "MainPID")) for name, unit in UNITS.items()}
        record = json.loads(
            guest.run(["/usr/bin/thermocline", "pool", "vm", "explain", "vm", "--format", "json"]).stdout
        )
        pid = record["process"]["pid"]
        found["guest"] = _privileges(guest, pid)
        cgroup = guest.read(f"/proc/{pid}/cgroup").strip().removeprefix("0::")
        limit = guest.number(f"/sys/fs/cgroup{cgroup}/memory.max")
        restarts = {name: _ended(guest, name) for name in UNITS}
        adopted = record["process"]["pid"] == _guest_pid(guest)
        node.until("metrics are served after the restarts", lambda: _metrics(guest), timeout_s=120)
    for name, process in found.items():
        lab.say(f"{name}: {process}")
        figures[name] = process
        lab.at_most(f"{name}.capabilities", process["capabilities"], CAPABILITIES_MAX[name])
        lab.holds(f"{name}_confined", process["seccomp"] == 2 and process["no_new_privs"] == 1, f"{name}: {process}")
    for name in UNITS:
        lab.at_most(f"{name}_exposure", figures[f"{name}_exposure"], EXPOSURE_MAX)
        lab.holds(
            f"{name}_restarts",
            restarts[name],
            f"{UNITS[name]} was not restarted after thread {THREADS[name]} had ended",
        )
    lab.holds("agent_network", interfaces == ["lo"], f"the agent has the interfaces {interfaces}")
    lab.holds("network_user", found["network"]["user"] > 0, f"the network process runs as {found['network']['user']}")
    lab.holds("guest_user", found["guest"]["user"] >= FIRST_USER, f"the guest runs as {found['guest']['user']}")
    lab.holds("guest_cgroup", cgroup.endswith("/guests/vm.1"), f"the guest is in {cgroup}")
    lab.holds("adopted", adopted, "the guest did not survive the restart of its host's service")
    lab.at_most("guest_memory_max_bytes", limit, (LOCAL_MIB + SLICE_MIB + 512) * MIB)
    return {**figures, "guest_memory_max_bytes": limit, "restarts": sum(restarts.values())}


def _install(guest: Guest, files: list[str]) -> None:
    """Installs the program, the units and their configuration."""
    guest.run(["cp", "/lab/thermocline", "/usr/bin/thermocline"])
    for file in files:
        guest.run(["cp", f"/lab/{file}", f"/etc/systemd/system/{file}"])
    guest.mkdir("/etc/systemd/system/thermocline-pool-host.service.d")
    guest.write("/etc/systemd/system/thermocline-pool-host.service.d/tcg.conf", _DROP_IN)
    guest.mkdir(_POOL)
    guest.run(["mount", "-t", "tmpfs", "-o", "mode=0700", "pool", _POOL])
    guest.mkdir(_ETC)
    guest.run(["/usr/bin/thermocline", "pool", "certificates", f"{_ETC}/pool", "--host", "host-a"])
    guest.write(f"{_ETC}/pool-manager.toml", _MANAGER)
    guest.write(f"{_ETC}/pool-host.toml", _HOST)
    guest.write(f"{_ETC}/pool-scheduler.toml", _SCHEDULER)
    programs.as_service(guest, "work.service", [programs.idle("idle", 16 * MIB), programs.hot("hot", 8 * MIB)])
    node.configure(guest, [node.Job(JOB)], {"agent.metrics_listen": _METRICS})
    guest.run(["systemctl", "daemon-reload"], timeout_s=120)


def _vm_starts(guest: Guest) -> bool:
    """Starts the host's guest; returns whether it did: its host may not have reached the manager yet."""
    started = guest.run(["/usr/bin/thermocline", "pool", "vm", "start", "/run/vm.toml"], check=False, timeout_s=240)
    if started.status != 0 and "no pool manager has answered yet" not in started.stderr:
        raise AssertionError(f"the guest did not start: {started.stderr}")
    return started.status == 0


def _start(guest: Guest, unit: str) -> None:
    started = guest.run(["systemctl", "start", unit], check=False, timeout_s=240)
    if started.status != 0:
        journal = guest.run(["journalctl", "--no-pager", "-n", "40", "-u", unit], check=False).stdout
        raise AssertionError(f"{unit} did not start: {started.stderr}{journal}")


def _privileges(guest: Guest, pid: int) -> dict[str, int]:
    """Returns what a process may do, as the kernel reports it."""
    lines = dict(line.split(":", 1) for line in guest.read(f"/proc/{pid}/status").splitlines())
    sets = ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")
    return {
        "user": int(lines["Uid"].split()[1]),
        "capabilities": max(int(lines[name], 16).bit_count() for name in sets),
        "seccomp": int(lines["Seccomp"]),
        "no_new_privs": int(lines["NoNewPrivs"]),
    }


def _metrics(guest: Guest) -> bool:
    """Returns whether the agent's metrics are served."""
    done = guest.run(["bash", "-c", _SCRAPE], check=False, timeout_s=60)
    return "thermocline_agent_scans_total" in done.stdout


def _interfaces(guest: Guest, pid: int) -> list[str]:
    """Returns the network interfaces that a process sees."""
    lines = guest.read(f"/proc/{pid}/net/dev").splitlines()[2:]
    return [line.split(":", 1)[0].strip() for line in lines]


def _guest_pid(guest: Guest) -> int:
    explained = guest.run(["/usr/bin/thermocline", "pool", "vm", "explain", "vm", "--format", "json"]).stdout
    pid: int = json.loads(explained)["process"]["pid"]
    return pid


def _ended(guest: Guest, name: str) -> bool:
    """Ends a thread of a service; returns whether the service was started again."""
    unit = UNITS[name]
    pid = systemd.number(guest, unit, "MainPID")
    guest.run(["/lab/labguest", "end-thread", "--pid", str(pid), "--name", THREADS[name]])
    # Four checks in each period of the watchdog, then the pause before a restart; emulated time is slow.
    node.until(
        f"{unit} is started again", lambda: systemd.number(guest, unit, "MainPID") not in (0, pid), timeout_s=180
    )
    node.until(f"{unit} is ready", lambda: systemd.state(guest, unit) == "active", timeout_s=180)
    return True

"""Records one short journal per set of controllers: the golden journals of `crates/node/agent/tests`.

The first guest runs jobs under the policies `pressure`, `auto` and `background`, one of them with incompressible
memory. A bundle comes into effect, a job goes to the background and returns, and the agent is killed and started
again. The second guest has a slow memory node and a job under policy `slowdown`. Both journals must replay to the same
decisions and contain decisions of every controller.

To renew the golden files, copy the journals of the results directory; longer ones are cut at the end of a line.
"""

import json
import signal
from typing import Any

from thermolab import node, numa, offload, slow, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, SwapDisk
from thermolab.truth import Region, Server, Workload, poisson, requests

KERNELS = ("6.12-idle",)

LOCAL_MIB, SLOW_MIB = 896, 256
SETTLE_S = 36
AFTER_S = 14
SLOW_PERIODS = 8
SLOWDOWN = 0.03

_STORE, _KEYS, _ROOT = "/root/rollout", "/root/keys", "/root/root.json"
_SETTINGS: node.Settings = {
    **offload.PRESSURE_SETTINGS,
    "agent.scan_period": "3s",
    "agent.control_period": "3s",
    "pressure.period": "2s",
    "background.settle": "3s",
    "background.prefetch": True,
    "incompressible.retry": "6s",
    "rollout.store": _STORE,
    "rollout.root": _ROOT,
    "rollout.poll": "1s",
    "trace.cluster": "lab",
    "trace.machine": "guest",
}
_BUNDLE = """\
schema = 1
version = 1
id = "golden-1"
created = 2026-01-01T00:00:00Z
expires = 2226-01-01T00:00:00Z
[knobs.cold_age]
promotion_rate = "30%"
[knobs.pressure]
ratio = "0.8%"
[knobs.background]
settle = "2s"
"""


def run(lab: Lab) -> dict[str, Any]:
    """Records both journals."""
    machine = numa.two_nodes(LOCAL_MIB, SLOW_MIB, swap=SwapDisk(512 * MIB, iops_total=2000))
    with lab.guest(machine) as guest:
        truth.tick(guest)
        _policies(guest)
        figures = {"policies": _checked(lab, guest, "policies")}
    with lab.guest(numa.two_nodes(512, 256)) as guest:
        _slowdown(guest)
        figures["slowdown"] = _checked(lab, guest, "slowdown")
    for controller in ("cold_age", "pressure", "background", "tiering", "endurance", "slowdown"):
        decisions = sum(replayed["controllers"].get(controller, 0) for replayed in figures.values())
        lab.at_least(f"decisions.{controller}", decisions, 4)
    return figures


def _policies(guest: Guest) -> None:
    """Runs three jobs, with a bundle, hints and a killed agent."""
    server = Server(rounds=20_000, rate=20)
    jobs = [
        Workload(guest, [Region("data", 96, requests(1, 1.2))], "auto", server),
        Workload(guest, [Region("noise", 64, requests(1, 1.2), kind="incompressible")], "pressure", server),
        Workload(guest, [Region("app", 48, {"period_ms": 30_000})], "background"),
    ]
    guest.run(["rm", "-rf", node.STATE])
    rules = [node.Job(job.job, policy=job.job.removeprefix("/")) for job in jobs]
    _rollout(guest, "keygen", _KEYS, signed=False)
    _rollout(guest, "init")
    node.configure(guest, rules, _SETTINGS)
    agent = node.start(guest)
    guest.run(["sleep", str(SETTLE_S // 3)])
    guest.run(["thermocline", "hint", "/background", "background"])
    guest.run(["sleep", str(SETTLE_S // 3)])
    guest.write("/root/bundle.toml", _BUNDLE)
    _rollout(guest, "publish", "/root/bundle.toml")
    _rollout(
        guest, "assign", "--rollout", "golden", "--bundle", "1", "--share", "100%", "--control", "0%", "--stage", "all"
    )
    guest.expect(agent.log, "uses bundle 1", timeout_s=60)
    guest.run(["thermocline", "hint", "/background", "foreground"])
    guest.run(["sleep", str(SETTLE_S // 3)])
    guest.kill(agent.pid, signal.SIGKILL)
    guest.wait_exit(agent.pid)
    agent = node.start(guest)
    guest.run(["sleep", str(AFTER_S)])
    agent.stop()


def _slowdown(guest: Guest) -> None:
    """Runs one job whose accesses change once."""
    truth.tick(guest, 20)
    phases = [{"for_s": 36_000, **poisson(0.1, 1000, draw=draw)} for draw in (0, 1)]
    workload = Workload(guest, [Region("blocks", 128, {"phases": phases}, kind="huge")])
    agent = slow.start(guest, [workload.job], SLOWDOWN)
    slow.pass_periods(workload, SLOW_PERIODS)
    workload.next_phase()
    slow.pass_periods(workload, SLOW_PERIODS)
    agent.stop()


def _rollout(guest: Guest, command: str, *arguments: str, signed: bool = True) -> None:
    where = ["--store", _STORE, "--root", _ROOT, "--keys", _KEYS] if signed else []
    guest.run(["thermocline", "rollout", command, *where, *arguments], timeout_s=120)


def _checked(lab: Lab, guest: Guest, name: str) -> dict[str, Any]:
    """Replays the journal, and copies it to the results directory."""
    kept = f"/run/journal-{name}.jsonl"
    guest.run(["cp", f"{node.STATE}/journal", kept])
    guest.keep(kept)
    replayed: dict[str, Any] = json.loads(guest.run(["thermocline", "replay", kept, "--format", "json"]).stdout)
    replayed["journal_bytes"] = int(guest.run(["stat", "-c", "%s", kept]).stdout)
    lab.say(f"{name}: {replayed}")
    lab.at_most(f"{name}.differing", len(replayed["differing"]), 0)
    return replayed

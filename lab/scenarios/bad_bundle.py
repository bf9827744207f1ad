"""Bundles that are bad on purpose are refused, or left by the agent of its own accord, and the job goes on.

A machine with Redis follows a repository on an object store. What it must refuse: metadata that somebody changed, a
store that was put back to what it held before, a bundle past its day. What it must leave: a bundle that makes pages
come back far beyond the objective, and one with which the agent is killed again and again. After each, the bundle from
before, or the machine's own file, is in force; the kernel's counters say how far it went.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thermolab import fleet, loads, node, services, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, Machine
from thermolab.store import ObjectStore

KERNELS = ("6.12-idle",)
FEATURES = ("s3",)

_POLL_S = 2
# A job is young for a hundred periods of 2 s after its warm-up: see docs/rollout.md.
_SETTLE_S = 240
# Keys that are hot, warm ones whose pages are wanted each few seconds and belong into memory, and cold ones. With less
# of a difference between the latter two, a history of minutes says little, and any bundle does harm now and then.
_MIX = ("--hot-fraction", "0.02", "--hot-share", "0.6", "--warm-fraction", "0.07", "--cold-touches-per-s", "0.2")
_PATIENCE_S = 90
_SLO_PATIENCE_S = 300


def run(lab: Lab) -> dict[str, Any]:
    """A good bundle first; then everything that is wrong."""
    with ObjectStore() as store, lab.guest(Machine(qemu_args=store.qemu_args)) as guest:
        truth.tick(guest, 20)
        store.connect(guest)
        with tempfile.TemporaryDirectory(prefix="thermolab-keys-") as keys:
            operator = fleet.Operator(store, lab.program("thermocline"), Path(keys))
            operator.begin()
            server = services.redis(guest)
            load = loads.Requests(server, "redis", keys=60_000, mix=_MIX)
            load.fill()
            busy = load.start(3600, 400)
            operator.install_root(guest)
            # Pages come back sixty times as often as in production's time, and so do the waits for them: here it is
            # promotions that tell.
            lab_time: node.Settings = {"pressure.stall_target": "50%", "rollout.starts_within": "10m"}
            node.configure(guest, [node.Job("/redis")], {**fleet.following(_POLL_S), **lab_time})
            agent = node.start(guest, env=store.guest_env)
            figures = _judge(lab, guest, operator, agent)
            guest.kill(busy)
    return figures


def _judge(lab: Lab, guest: Guest, operator: fleet.Operator, agent: node.Agent) -> dict[str, Any]:
    # So that what comes is judged.
    guest.run(["sleep", str(_SETTLE_S)], timeout_s=_SETTLE_S + 60)
    good = operator.publish(1, {"cold_age": {"percentile": "99%"}})
    operator.assign(bundle=good, share="100%", control="0%")
    _until(agent, lambda says: says["bundle_version"] == good)
    figures: dict[str, Any] = {"good_version": good}
    for name, spoil in (("forged", _forge), ("downgraded", _downgrade)):
        kept = operator.snapshot()
        spoil(operator)
        reason = _refused(agent)
        after = agent.status()["rollout"]
        figures[name] = {"refused": reason, "bundle_version": after["bundle_version"]}
        lab.say(f"{name}: refused for {reason}, goes by bundle {after['bundle_version']}; {after['trouble']}")
        lab.holds(name, bool(reason), "the agent has refused nothing")
        lab.holds(
            name, after["bundle_version"] == good, f"goes by {after['bundle_version']}, not {good}: {after['instead']}"
        )
        operator.restore(kept)
        _until(agent, lambda says: says["trouble"] is None)
    figures["expired"] = _expired(lab, operator, agent, good)
    figures["slo_breach"] = _breach(lab, guest, operator, agent, good)
    figures["crash"] = _crash(lab, guest, operator, agent, good)
    return figures


def _forge(operator: fleet.Operator) -> None:
    """Somebody who holds the store changes what was signed."""
    newest = operator.newest("targets.json")
    document = json.loads(newest.read_text())
    document["signed"]["version"] += 1
    # Under the name that the next version would have, and announced.
    timestamp = operator.metadata / "timestamp.json"
    told = json.loads(timestamp.read_text())
    told["signed"]["version"] += 1
    timestamp.write_text(json.dumps(told))
    newest.write_text(json.dumps(document))


def _downgrade(operator: fleet.Operator) -> None:
    """Somebody puts the store back to what it held before the newest change."""
    before = operator.snapshot()
    operator.publish(operator.next_version(), {"cold_age": {"percentile": "98%"}})
    time.sleep(3 * _POLL_S)
    operator.restore(before)


def _expired(lab: Lab, operator: fleet.Operator, agent: node.Agent, good: int) -> dict[str, Any]:
    """A bundle whose day passes while it is in force: its machine goes by its own file from then on."""
    version = operator.publish(operator.next_version(), {"cold_age": {"percentile": "98%"}}, expires_s=25)
    operator.assign(bundle=version, previous=good, share="100%", control="0%")
    _until(agent, lambda says: says["bundle_version"] == version)
    _until(agent, lambda says: says["bundle_version"] != version)
    after = agent.status()["rollout"]
    lab.say(f"expired: goes by bundle {after['bundle_version']}; {after['instead']}")
    lab.holds("expired", after["bundle_version"] in (0, good), f"it goes by {after['bundle_version']}")
    operator.assign(bundle=good, share="100%", control="0%")
    _until(agent, lambda says: says["bundle_version"] == good)
    return {"version": version, "bundle_version": after["bundle_version"], "instead": after["instead"]}


def _breach(lab: Lab, guest: Guest, operator: fleet.Operator, agent: node.Agent, good: int) -> dict[str, Any]:
    """Whatever comes back, the youngest threshold: pages come back all the time."""
    promoted = _promoted(guest)
    knobs = {"cold_age": {"promotion_rate": "100%", "percentile": "50%", "warmup": "0s"}}
    version = operator.publish(operator.next_version(), knobs)
    operator.assign(bundle=version, previous=good, share="100%", control="0%")
    _until(agent, lambda says: says["bundle_version"] == version)
    begun = time.monotonic()
    _until(agent, lambda says: says["bundle_version"] == good, _SLO_PATIENCE_S)
    after = agent.status()["rollout"]
    took = time.monotonic() - begun
    promoted = _promoted(guest) - promoted
    rates = node.promotion_rates(node.periods(node.journal(guest), "/redis")[-60:])
    lab.say(
        f"slo_breach: of the last {len(rates)} periods, half promoted beyond {node.percentile(rates, 0.5):.1%} a minute"
    )
    lab.say(f"slo_breach: left after {took:.0f} s and {promoted} pages that came back; {after['instead']}")
    lab.holds("slo_breach", after["bundle_version"] == good, f"it still goes by {after['bundle_version']}: {after}")
    lab.holds("slo_breach", sum(after["reverts"].values()) == 1, f"reverts: {after['reverts']}")
    return {"version": version, "left_for": after["reverts"], "promoted_pages": promoted}


def _crash(lab: Lab, guest: Guest, operator: fleet.Operator, agent: node.Agent, good: int) -> dict[str, Any]:
    """With this bundle, the agent dies a few seconds after each start."""
    version = operator.publish(operator.next_version(), {"cold_age": {"percentile": "97%"}})
    operator.assign(bundle=version, previous=good, share="100%", control="0%")
    _until(agent, lambda says: says["bundle_version"] == version)
    kills = 0
    while agent.status()["rollout"]["bundle_version"] == version and kills < 6:
        agent.stop(9)
        kills += 1
        agent = node.start(guest, env=operator.store.guest_env)
        guest.run(["sleep", str(2 * _POLL_S)])
    after = agent.status()["rollout"]
    lab.say(f"crash: left after {kills} kills; {after['instead']}")
    lab.holds("crash", after["bundle_version"] == good, f"after {kills} kills it goes by {after['bundle_version']}")
    saved = agent.job("/redis")["far_bytes"]
    agent.stop()
    lab.at_least("crash.far_bytes", saved, 1 * MIB)
    return {"version": version, "kills": kills, "far_bytes": saved}


def _promoted(guest: Guest) -> int:
    """Pages that the kernel brought back from swap, ever."""
    return guest.flat_keyed("/sys/fs/cgroup/redis/memory.stat").get("workingset_refault_anon", 0)


def _refused(agent: node.Agent) -> str:
    """The reason of the next refusal; empty if none comes."""
    before = dict(agent.status()["rollout"]["refused"])
    for _ in range(_PATIENCE_S // _POLL_S):
        now = agent.status()["rollout"]["refused"]
        for reason, count in now.items():
            if count > before.get(reason, 0):
                return str(reason)
        agent.guest.run(["sleep", str(_POLL_S)])
    return ""


def _until(agent: node.Agent, so: Callable[[dict[str, Any]], bool], patience_s: int = _PATIENCE_S) -> None:
    """Wait until what the agent says of its rollout is so, or patience ends."""
    for _ in range(patience_s // _POLL_S):
        if so(agent.status()["rollout"]):
            return
        agent.guest.run(["sleep", str(_POLL_S)])

"""Bad bundles are refused, or reverted by the agent itself, and the job keeps running.

A machine with Redis follows a repository on an object store. The agent must refuse: metadata that was tampered with, a
repository that was rolled back to an earlier state, a bundle past its expiry. It must revert: a bundle that raises
promotions far beyond the objective, and a bundle with which the agent is killed repeatedly. After each, the previous
bundle or the machine's own configuration is in effect; the kernel's counters measure the promotions in between.
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
# A job counts as young for a hundred periods of 2 s after its warm-up: see docs/rollout.md.
_SETTLE_S = 240
# Hot keys, warm keys that are read every few seconds and should stay in memory, and cold keys. If warm and cold keys
# differed less, a history of minutes would predict little, and any bundle would occasionally exceed the objective.
_MIX = ("--hot-fraction", "0.02", "--hot-share", "0.6", "--warm-fraction", "0.07", "--cold-touches-per-s", "0.2")
_TIMEOUT_S = 90
_SLO_TIMEOUT_S = 300


def run(lab: Lab) -> dict[str, Any]:
    """Applies a good bundle first, then each bad one."""
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
            # Promotions, and the stalls that they cause, are sixty times as frequent as in production. The stall target
            # is raised, so that only the promotion rate detects a breach.
            lab_time: node.Settings = {"pressure.stall_target": "50%", "rollout.starts_within": "10m"}
            node.configure(guest, [node.Job("/redis")], {**fleet.following(_POLL_S), **lab_time})
            agent = node.start(guest, env=store.guest_env)
            figures = _judge(lab, guest, operator, agent)
            guest.kill(busy)
    return figures


def _judge(lab: Lab, guest: Guest, operator: fleet.Operator, agent: node.Agent) -> dict[str, Any]:
    # The job must be old enough for the guard to evaluate it.
    guest.run(["sleep", str(_SETTLE_S)], timeout_s=_SETTLE_S + 60)
    good = operator.publish(1, {"cold_age": {"percentile": "99%"}})
    operator.assign(bundle=good, share="100%", control="0%")
    _until(agent, lambda rollout: rollout["bundle_version"] == good)
    figures: dict[str, Any] = {"good_version": good}
    for name, spoil in (("forged", _forge), ("downgraded", _downgrade)):
        kept = operator.snapshot()
        spoil(operator)
        reason = _refused(agent)
        after = agent.status()["rollout"]
        figures[name] = {"refused": reason, "bundle_version": after["bundle_version"]}
        lab.say(f"{name}: refused for {reason}, bundle in effect: {after['bundle_version']}; {after['trouble']}")
        lab.holds(name, bool(reason), "the agent refused nothing")
        lab.holds(
            name,
            after["bundle_version"] == good,
            f"bundle {after['bundle_version']} is in effect, not {good}: {after['instead']}",
        )
        operator.restore(kept)
        _until(agent, lambda rollout: rollout["trouble"] is None)
    figures["expired"] = _expired(lab, operator, agent, good)
    figures["slo_breach"] = _breach(lab, guest, operator, agent, good)
    figures["crash"] = _crash(lab, guest, operator, agent, good)
    return figures


def _forge(operator: fleet.Operator) -> None:
    """Changes signed metadata, as an attacker with access to the store could."""
    newest = operator.newest("targets.json")
    document = json.loads(newest.read_text())
    document["signed"]["version"] += 1
    # Uses the file name of the next version, and announces that version.
    timestamp = operator.metadata / "timestamp.json"
    announced = json.loads(timestamp.read_text())
    announced["signed"]["version"] += 1
    timestamp.write_text(json.dumps(announced))
    newest.write_text(json.dumps(document))


def _downgrade(operator: fleet.Operator) -> None:
    """Restores the repository's state from before the newest change, as an attacker could."""
    before = operator.snapshot()
    operator.publish(operator.next_version(), {"cold_age": {"percentile": "98%"}})
    time.sleep(3 * _POLL_S)
    operator.restore(before)


def _expired(lab: Lab, operator: fleet.Operator, agent: node.Agent, good: int) -> dict[str, Any]:
    """A bundle that expires while it is in effect is replaced by the machine's own configuration."""
    version = operator.publish(operator.next_version(), {"cold_age": {"percentile": "98%"}}, expires_s=25)
    operator.assign(bundle=version, previous=good, share="100%", control="0%")
    _until(agent, lambda rollout: rollout["bundle_version"] == version)
    _until(agent, lambda rollout: rollout["bundle_version"] != version)
    after = agent.status()["rollout"]
    lab.say(f"expired: bundle {after['bundle_version']} is in effect; {after['instead']}")
    lab.holds("expired", after["bundle_version"] in (0, good), f"bundle {after['bundle_version']} is in effect")
    operator.assign(bundle=good, share="100%", control="0%")
    _until(agent, lambda rollout: rollout["bundle_version"] == good)
    return {"version": version, "bundle_version": after["bundle_version"], "instead": after["instead"]}


def _breach(lab: Lab, guest: Guest, operator: fleet.Operator, agent: node.Agent, good: int) -> dict[str, Any]:
    """A bundle with the lowest threshold and almost no limit on promotions, so that pages return all the time."""
    promoted = _promoted(guest)
    knobs = {"cold_age": {"promotion_rate": "100%", "percentile": "50%", "warmup": "0s"}}
    version = operator.publish(operator.next_version(), knobs)
    operator.assign(bundle=version, previous=good, share="100%", control="0%")
    _until(agent, lambda rollout: rollout["bundle_version"] == version)
    begun = time.monotonic()
    _until(agent, lambda rollout: rollout["bundle_version"] == good, _SLO_TIMEOUT_S)
    after = agent.status()["rollout"]
    took = time.monotonic() - begun
    promoted = _promoted(guest) - promoted
    rates = node.promotion_rates(node.periods(node.journal(guest), "/redis")[-60:])
    lab.say(
        f"slo_breach: of the last {len(rates)} periods, the median rate is {node.percentile(rates, 0.5):.1%} per minute"
    )
    lab.say(f"slo_breach: reverted after {took:.0f} s and {promoted} promoted pages; {after['instead']}")
    lab.holds(
        "slo_breach", after["bundle_version"] == good, f"bundle {after['bundle_version']} is still in effect: {after}"
    )
    lab.holds("slo_breach", sum(after["reverts"].values()) == 1, f"reverts: {after['reverts']}")
    return {"version": version, "left_for": after["reverts"], "promoted_pages": promoted}


def _crash(lab: Lab, guest: Guest, operator: fleet.Operator, agent: node.Agent, good: int) -> dict[str, Any]:
    """A bundle with which the agent is killed a few seconds after each start."""
    version = operator.publish(operator.next_version(), {"cold_age": {"percentile": "97%"}})
    operator.assign(bundle=version, previous=good, share="100%", control="0%")
    _until(agent, lambda rollout: rollout["bundle_version"] == version)
    kills = 0
    while agent.status()["rollout"]["bundle_version"] == version and kills < 6:
        agent.stop(9)
        kills += 1
        agent = node.start(guest, env=operator.store.guest_env)
        guest.run(["sleep", str(2 * _POLL_S)])
    after = agent.status()["rollout"]
    lab.say(f"crash: reverted after {kills} kills; {after['instead']}")
    lab.holds(
        "crash", after["bundle_version"] == good, f"after {kills} kills bundle {after['bundle_version']} is in effect"
    )
    saved = agent.job("/redis")["far_bytes"]
    agent.stop()
    lab.at_least("crash.far_bytes", saved, 1 * MIB)
    return {"version": version, "kills": kills, "far_bytes": saved}


def _promoted(guest: Guest) -> int:
    """Returns the number of pages swapped in since the job's start."""
    return guest.flat_keyed("/sys/fs/cgroup/redis/memory.stat").get("workingset_refault_anon", 0)


def _refused(agent: node.Agent) -> str:
    """Returns the reason of the next refusal; empty if there is none in time."""
    before = dict(agent.status()["rollout"]["refused"])
    for _ in range(_TIMEOUT_S // _POLL_S):
        now = agent.status()["rollout"]["refused"]
        for reason, count in now.items():
            if count > before.get(reason, 0):
                return str(reason)
        agent.guest.run(["sleep", str(_POLL_S)])
    return ""


def _until(agent: node.Agent, condition: Callable[[dict[str, Any]], bool], timeout_s: int = _TIMEOUT_S) -> None:
    """Waits until the rollout part of the agent's status fulfils `condition`, at most `timeout_s`."""
    for _ in range(timeout_s // _POLL_S):
        if condition(agent.status()["rollout"]):
            return
        agent.guest.run(["sleep", str(_POLL_S)])

"""A switchback trial on Redis finds an injected slowdown of 2 %, and none where there is none.

Redis serves a closed loop, whose throughput `thermocline trial` reads from the load's log. The job is only observed, so
that the true effect of an arm is what is injected into it: in the halves with far memory, Redis sleeps for 2 % of the
time. A second trial has no injection.
"""

import json
from typing import Any

from thermolab import node, services
from thermolab.guest import Guest
from thermolab.lab import Lab

KERNELS = ("6.12-idle",)
MORE_IS_BETTER = ("found_ratio",)

KEYS = 20_000
SLOWDOWN = 0.02
BLOCKS = 50
"""Many short ones: what else the host does changes over seconds, and is common to two neighbouring halves only."""
HALF_SECONDS, WASHOUT_SECONDS = 3, 1
_LOAD = "/run/load.jsonl"
_TRIAL_SECONDS = 2 * BLOCKS * HALF_SECONDS

FOUND_MIN_RATIO = 1.0
FALSE_ALARMS_MAX = 0

INJECT = """
socket=$1; log=$2; seconds=$3
while :; do
  case "$(grep 'trial: ' "$log" | tail -n 1)" in
    *'as the policy decides'*) redis-cli -s "$socket" DEBUG SLEEP "$seconds" ;;
  esac
  usleep $((1000000 - 20000))
done
"""
"""Once a second, Redis serves no request for a while. Starting the client takes time too: it is a little rarer."""


def run(lab: Lab) -> dict[str, Any]:
    """Runs a trial with an injected slowdown, and one without."""
    with lab.guest() as guest:
        server = services.redis(guest, options=["--enable-debug-command", "yes"])
        address = ["--socket", server.address]
        guest.run(["labguest", "load", "redis", *address, "fill", "--keys", str(KEYS)], timeout_s=300)
        node.configure(guest, [node.Job("/redis", group="observe")], {"agent.scan_period": "60s"})
        agent = node.start(guest)
        trials = {}
        for name, slowdown in (("injected", SLOWDOWN), ("none", 0.0)):
            trials[name] = _trial(lab, guest, server, agent, slowdown)
            lab.say(f"{name}: {trials[name]['estimate']}")
        agent.stop()
        server.stop()
    found = trials["injected"]["estimate"]["verdict"] == "slower"
    alarm = trials["none"]["estimate"]["verdict"] != "no_difference"
    lab.at_least("found_ratio", float(found), FOUND_MIN_RATIO)
    lab.at_most("false_alarms", float(alarm), FALSE_ALARMS_MAX)
    return {
        "found_ratio": float(found),
        "false_alarms": int(alarm),
        "injected_ratio": SLOWDOWN,
        **{name: trial["estimate"] for name, trial in trials.items()},
    }


def _trial(lab: Lab, guest: Guest, server: services.Service, agent: node.Agent, slowdown: float) -> dict[str, Any]:
    """Runs one trial, with Redis asleep for a share of the time in the halves with far memory."""
    guest.write(_LOAD, "")
    seconds = str(_TRIAL_SECONDS + 60)
    argv = ["labguest", "load", "redis", "--socket", server.address, "run", "--keys", str(KEYS), "--seconds", seconds]
    load = guest.spawn(argv, stdout=_LOAD, stderr="/run/load.err")
    guest.expect(_LOAD, '"t":')
    injector = None
    if slowdown:
        guest.write("/root/inject", INJECT)
        words = [server.address, agent.log, f"{slowdown:g}"]
        injector = guest.spawn(["busybox", "sh", "/root/inject", *words])
    outcome = ["--log", _LOAD, "--pattern", '"ops":([0-9]+)', "--better", "higher"]
    times = ["--half", f"{HALF_SECONDS}s", "--washout", f"{WASHOUT_SECONDS}s", "--every", "1s"]
    argv = ["thermocline", "--format", "json", "trial", "/redis", *outcome, "--blocks", str(BLOCKS), *times]
    trial = guest.run(argv, timeout_s=10 * _TRIAL_SECONDS)
    for pid in (injector, load):
        if pid is not None:
            guest.kill(pid)
            guest.wait_exit(pid)
    guest.keep(_LOAD)
    report: dict[str, Any] = json.loads(trial.stdout)
    lab.holds("trial", report["estimate"] is not None, f"no estimate: {trial.stderr}")
    return report

"""The result of a switchback trial is kept as a limit, survives a restart of the agent, and is forgotten on request.

Redis serves hot, warm and cold keys, and some return from far memory. A short trial is kept by the running agent;
`status` shows what it limits, also after the agent was started again.
"""

import json
from typing import Any

from thermolab import node, services
from thermolab.lab import Lab

KERNELS = ("6.12-idle", "6.12")

KEYS = 60_000
BLOCKS, HALF_SECONDS, WASHOUT_SECONDS = 6, 6, 2
_JOB = "/redis"
_LOAD = "/run/load.jsonl"
_SETTINGS: node.Settings = {
    "agent.control_period": "4s",
    "cold_age.warmup": "0s",
    # Much returns: the trial is to have something to limit.
    "cold_age.promotion_rate": "100%",
}


def run(lab: Lab) -> dict[str, Any]:
    """Keeps the result of one trial, and forgets it."""
    with lab.guest() as guest:
        server = services.redis(guest)
        address = ["--socket", server.address]
        guest.run(["labguest", "load", "redis", *address, "fill", "--keys", str(KEYS)], timeout_s=300)
        node.configure(guest, [node.Job(_JOB)], _SETTINGS)
        load_argv = ["labguest", "load", "redis", *address, "run", "--keys", str(KEYS), "--seconds", "900"]
        load = guest.spawn(load_argv, stdout=_LOAD, stderr="/run/load.err")
        guest.expect(_LOAD, '"t":')
        agent = node.start(guest)
        node.until("memory of the job is in far memory", lambda: agent.job(_JOB)["far_bytes"] > 0)
        outcome = ["--log", _LOAD, "--pattern", '"ops":([0-9]+)', "--better", "higher", "--keep"]
        times = ["--half", f"{HALF_SECONDS}s", "--washout", f"{WASHOUT_SECONDS}s", "--every", "1s"]
        argv = ["thermocline", "--format", "json", "trial", _JOB, *outcome, "--blocks", str(BLOCKS), *times]
        trial = guest.run(argv, timeout_s=900)
        report = json.loads(trial.stdout)
        lab.say(f"estimate {report['estimate']}; {report['kept']}")
        kept = agent.job(_JOB)["trial"]
        text = guest.run(["thermocline", "status"]).stdout
        agent.stop()
        agent = node.start(guest)
        again = agent.job(_JOB)["trial"]
        forgotten = guest.run(["thermocline", "trial", "--forget", _JOB]).stdout.strip()
        after = agent.job(_JOB)["trial"]
        # Nothing is left to forget: that is an error.
        second = guest.run(["thermocline", "trial", "--forget", _JOB], check=False)
        agent.stop()
        guest.kill(load)
        guest.wait_exit(load)
        server.stop()
    lab.holds(
        "kept", kept is not None and str(report["kept"]).startswith("kept for"), f"{report['kept']}; status: {kept}"
    )
    lab.holds("shown", "% tolerated: " in text, f"status says nothing of the trial:\n{text}")
    same = again is not None and kept is not None and again["slowdown_ratio"] == kept["slowdown_ratio"]
    lab.holds("kept_after_restart", same, f"before {kept}, after {again}")
    lab.holds("forgotten", after is None, f"after `trial --forget`: {after}")
    lab.holds("nothing_to_forget", second.status not in (0, None), f"a second `trial --forget` said: {second.stdout}")
    return {
        "estimate": report["estimate"],
        "kept": kept,
        "after_restart": again,
        "forgotten": forgotten,
        "refusal": second.stderr,
    }

"""A stranger's first five minutes: the package is installed, and README's commands are run as they are printed.

No configuration file is written by hand, and nothing is shortened: a scan is two minutes, as installed. Two services
run; `observe` finds them by itself, and `seconds` is the time from the installation to its first figure of what could
be saved: an upper bound, because an estimate that keeps the objective needs a history. Then `setup` proposes a
configuration, and writes it with `--write`; the agent is started with it, and its savings are compared with the figure.
From there on time is compressed, by a file in conf.d.
"""

import json
import time
from typing import Any

from thermolab import node, package, programs, systemd
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12",)
FEATURES = ("s3",)
MORE_IS_BETTER = ("saved_bytes",)

AGENT = "thermocline-agent.service"
SERVICES = {"reports": (72, 8), "sessions": (48, 24)}
"""Each service's idle and hot memory, in MiB."""

FIGURE_WITHIN_SECONDS = 300
SAVED_WITHIN_SECONDS = 240
ERROR_MAX_RATIO = 0.15
_OBSERVED = "/run/observed.json"
_SHORT = "/etc/thermocline/conf.d/lab.toml"


def run(lab: Lab) -> dict[str, Any]:
    """Installs, observes, sets up and starts."""
    made = package.built(lab, 1)
    with systemd.guest(lab, {"thermocline.deb": made}) as guest:
        for name, (idle, hot) in SERVICES.items():
            regions = [programs.idle("idle", idle * MIB), programs.hot("hot", hot * MIB)]
            programs.as_service(guest, f"{name}.service", regions)
        began = _uptime(guest)
        guest.run(["dpkg", "--install", "/lab/thermocline.deb"], timeout_s=120)
        steps = {"install": _uptime(guest) - began}
        remedies = _doctor(guest)
        steps["doctor"] = _uptime(guest) - began
        view = _observe(guest, began)
        steps["figure"] = _uptime(guest) - began
        most = view["could_save_at_most_bytes"] / MIB
        lab.say(f"the figure after {steps['figure']:.0f} s: at most {most:.1f} MiB; doctor: {remedies}")
        _set_up(lab, guest)
        saved = _saved(guest)
        compressor = guest.read("/sys/module/zswap/parameters/compressor").strip()
        lab.say(f"the agent saved {saved / MIB:.1f} MiB by {compressor}")
    could = sum(_of(view, name)["could_save_at_most_bytes"] for name in SERVICES)
    error = abs(could - saved) / saved
    lab.at_most("seconds", steps["figure"], FIGURE_WITHIN_SECONDS)
    lab.at_most("could_save_error_ratio", error, ERROR_MAX_RATIO)
    return {
        "seconds": steps["figure"],
        "could_save_error_ratio": error,
        "could_save_at_most_bytes": could,
        "saved_bytes": saved,
        "compressor": compressor,
        "steps_seconds": steps,
        "remedies": remedies,
    }


def _doctor(guest: Guest) -> list[str]:
    """Runs the doctor, and the commands that it prints for what prevents or costs savings; returns these."""
    report = json.loads(guest.run(["thermocline", "doctor", "--format", "json"], check=False, timeout_s=60).stdout)
    commands = [
        command for check in report["checks"] if check["rank"] != "fine" for command in check.get("commands", ())
    ]
    for command in commands:
        guest.run(["sh", "-c", command], timeout_s=120)
    return commands


def _observe(guest: Guest, began: float) -> dict[str, Any]:
    """Runs `observe` until it has a figure for both services; returns that view."""
    command = ["thermocline", "observe", "--for", "10m", "--format", "json"]
    pid = guest.spawn(command, stdout=_OBSERVED, stderr="/run/observe.err")
    while _uptime(guest) - began < 2 * FIGURE_WITHIN_SECONDS:
        time.sleep(2)
        view = _last(guest.read(_OBSERVED))
        if view is not None and all(_of(view, name).get("could_save_at_most_bytes") for name in SERVICES):
            guest.kill(pid, 2)
            guest.wait_exit(pid, 60)
            return view
    raise LabError(f"no figure within {2 * FIGURE_WITHIN_SECONDS} s; it said: {guest.read('/run/observe.err')}")


def _uptime(guest: Guest) -> float:
    return float(guest.read("/proc/uptime").split()[0])


def _last(text: str) -> dict[str, Any] | None:
    """Returns the last whole JSON value of a text, which may still be written to."""
    decoder, view, at = json.JSONDecoder(), None, 0
    while at < len(text):
        try:
            view, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            break
        at += len(text[at:]) - len(text[at:].lstrip())
    return view


def _of(view: dict[str, Any], name: str) -> dict[str, Any]:
    path = f"/system.slice/{name}.service"
    return next((job for job in view["jobs"] if job["job"] == path), {})


def _set_up(lab: Lab, guest: Guest) -> None:
    """Proposes a configuration, has it written, and starts the agent with it."""
    proposed = guest.run(["thermocline", "setup"]).stdout
    lab.say(f"`setup` proposes:\n{proposed}")
    lab.holds("proposed", "nothing was written" in proposed and "[[job]]" in proposed, f"it printed: {proposed}")
    written = guest.run(["thermocline", "setup", "--write"]).stdout
    lab.holds("undo", "undo: " in written, f"it printed: {written}")
    guest.mkdir("/etc/thermocline/conf.d")
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in node.LAB_SETTINGS.items() if key != "zswap.manage"]
    guest.write(_SHORT, "".join(lines))
    guest.run(["systemctl", "reload-or-restart", AGENT], timeout_s=120)


def _saved(guest: Guest) -> int:
    """Waits until the savings of both services have settled; returns their sum."""
    agent = node.Agent(guest, systemd.number(guest, AGENT, "MainPID"))
    names = [f"/system.slice/{name}.service" for name in SERVICES]
    began, before = _uptime(guest), 0
    while _uptime(guest) - began < SAVED_WITHIN_SECONDS:
        time.sleep(20)
        saved = sum(agent.job(name)["saved_bytes"] for name in names)
        if before and abs(saved - before) <= before // 100:
            return int(saved)
        before = saved
    return before

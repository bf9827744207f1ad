"""Cold-age offloading on a key-value server: load it, offload its cold memory, and compare with no far memory."""

import json
import signal
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import node, pairs
from .guest import Guest
from .services import Service

Say = Callable[[str], None]

_LOAD_OUT = "/run/load.jsonl"
SWAP_DEVICE = "/dev/vdb"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and durations of the experiment; seconds are the guest's."""

    keys: int = 100_000
    rate: int = 1_500
    """Requests per second while far memory settles and during the judged periods."""
    hot_fraction: float = 0.08
    cold_touches_per_s: float = 0.2
    """Uniform reads of any key per second; most of these hit far memory and cause promotions."""
    write_share: float = 0.01
    """Share of writes in the requests; each write moves a value and touches pages of the allocator."""
    settle_seconds: int = 100
    """Seconds from the agent's start to the first judged period.

    With a short history the threshold leaves a margin, and more memory is offloaded as it grows.
    """
    judged_seconds: int = 400
    pairs: int = 2
    """Closed-loop runs with far memory, each beside one without."""
    requests: int = 40_000
    """Requests of one closed-loop run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the experiment: figures in base units, and the data behind them."""

    figures: dict[str, Any]
    periods: list[dict[str, Any]]
    """The agent's control periods of the job, from its journal."""
    load: list[dict[str, Any]]
    """Output lines of the load generator, one per second."""
    load_begins_unix_ms: int


class Experiment:
    """One server, one load and one agent."""

    def __init__(self, guest: Guest, server: Service, kind: str, plan: Plan, say: Say) -> None:
        self.guest = guest
        self.server = server
        self.plan = plan
        self.say = say
        self.job = f"/{kind}"
        address = ["--socket", server.address] if server.address.startswith("/") else ["--port", server.address]
        self._load = ["labguest", "load", kind, *address]

    def fill(self) -> None:
        """Stores every key once."""
        self.guest.run([*self._load, "fill", "--keys", str(self.plan.keys)], timeout_s=300)

    def observe(self, seconds: int) -> str:
        """Returns the output of `thermocline observe` after `seconds` under load."""
        load = self._start_load(seconds + 5)
        text = self.guest.run(
            ["thermocline", "observe", self.job, "--for", f"{seconds}s"], timeout_s=seconds + 60
        ).stdout
        self.guest.wait_exit(load, timeout_s=seconds + 60)
        return text

    def run(self) -> Outcome:
        """Runs the whole comparison."""
        plan, guest = self.plan, self.guest
        before = self.server.memory_current()
        seconds = plan.settle_seconds + plan.judged_seconds
        begins = self._now_ms()
        load = self._start_load(seconds)
        agent = node.start(guest)
        self._report_progress(agent, seconds)
        guest.wait_exit(load, timeout_s=seconds + 120)
        ends = self._now_ms()
        lines = [json.loads(line) for line in guest.read(_LOAD_OUT).splitlines()]
        status = agent.status()
        job = agent.job(self.job)
        with_far, without = self._pairs(agent, job["threshold_seconds"] or 0)
        agent.stop()
        guest.keep(f"{node.STATE}/journal")
        replay = json.loads(guest.run(["thermocline", "replay", "--format", "json"]).stdout)
        periods = node.periods(node.journal(guest), self.job)
        judged = [p for p in periods if ends - plan.judged_seconds * 1000 <= p["unix_ms"] <= ends]
        figures = {
            **self._memory(before, job),
            **_rates(judged, job),
            **_ratios(without, with_far),
            "workload": self._workload(),
            "tracker": job["tracker"],
            "policy": "cold_age",
            "time_compression": node.TIME_COMPRESSION,
            "agent_cpu_seconds": status["costs"]["cpu_seconds"],
            "agent_rss_bytes": status["costs"]["rss_bytes"],
            "reconcile_gap_ratio": status["machine"]["reconcile_gap_ratio"],
            "replayed_periods": replay["periods"],
            "replay_differs": len(replay["differing"]),
        }
        load_lines = [line for line in lines if "t" in line]
        return Outcome(figures, periods, load_lines, begins)

    def _pairs(self, agent: node.Agent, threshold_seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Runs with and without far memory in the order ABBA, so that changes of the host's speed affect both alike.

        For the runs without, the agent is stopped by SIGSTOP and all memory is swapped in.
        """
        runs: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        far = True
        for pair in range(self.plan.pairs):
            for wanted in (True, False) if pair % 2 == 0 else (False, True):
                if wanted and not far:
                    self.guest.run(["busybox", "swapon", SWAP_DEVICE])
                    self.guest.kill(agent.pid, signal.SIGCONT)
                    # Runs under load: otherwise the hot keys would become cold too during the wait.
                    load = self._start_load(int(threshold_seconds) + 15)
                    self.guest.wait_exit(load, timeout_s=threshold_seconds + 120)
                if far and not wanted:
                    self.guest.kill(agent.pid, signal.SIGSTOP)
                    self.guest.run(["busybox", "swapoff", SWAP_DEVICE], timeout_s=300)
                far = wanted
                runs[not wanted].append(self._closed_loop("with far memory" if wanted else "without far memory"))
        if not far:
            self.guest.run(["busybox", "swapon", SWAP_DEVICE])
            self.guest.kill(agent.pid, signal.SIGCONT)
        return runs

    def _now_ms(self) -> int:
        return int(float(self.guest.run(["date", "+%s.%N"]).stdout) * 1000)

    def _workload(self) -> str:
        plan = self.plan
        cold = f"{plan.cold_touches_per_s:g} cold reads/s"
        return f"{self.job[1:]}: {plan.keys} keys, {plan.hot_fraction:.0%} hot, {cold}, {plan.rate} requests/s"

    def _memory(self, before: int, job: dict[str, Any]) -> dict[str, Any]:
        return {
            "memory_before_bytes": before,
            "memory_after_bytes": job["memory_bytes"],
            "offloaded_bytes": job["far_bytes"],
            "saved_bytes": job["saved_bytes"],
            "working_set_bytes": job["working_set_bytes"],
            "cold_bytes": job["cold_bytes"],
            "coverage_ratio": job["coverage_ratio"],
            "threshold_seconds": job["threshold_seconds"],
        }

    def _report_progress(self, agent: node.Agent, seconds: int) -> None:
        """Prints the job's figures periodically until the load has run for `seconds`."""
        step = 20 if seconds > 100 else 10
        for t in range(step, seconds, step):
            self.guest.expect(_LOAD_OUT, f'"t":{t}}}', timeout_s=10 * step + 60)
            job = agent.job(self.job)
            mib = {name: job[f"{name}_bytes"] / (1 << 20) for name in ("memory", "working_set", "far", "saved")}
            rate = job["promotion_rate_ratio_per_min"]
            rate_text = "-" if rate is None else f"{rate:.1%}/min of {job['slo_ratio_per_min']:.0%}/min"
            threshold = "none" if job["threshold_seconds"] is None else f"{job['threshold_seconds']:g} s"
            ops = json.loads(self.guest.expect(_LOAD_OUT, f'"t":{t}}}'))["ops"]
            self.say(
                f"{t:3d} s  memory {mib['memory']:5.0f} MiB  far {mib['far']:5.0f}  saved {mib['saved']:5.0f}  "
                f"threshold {threshold:>5}  promotions {rate_text}  {ops} requests/s"
            )

    def _mix(self) -> list[str]:
        plan = self.plan
        return [
            *("--keys", str(plan.keys), "--hot-fraction", str(plan.hot_fraction), "--hot-share", "1"),
            *("--cold-touches-per-s", str(plan.cold_touches_per_s), "--write-share", str(plan.write_share)),
        ]

    def _start_load(self, seconds: int) -> int:
        argv = [*self._load, "run", *self._mix(), "--seconds", str(seconds), "--rate", str(self.plan.rate)]
        self.guest.write(_LOAD_OUT, "")
        return self.guest.spawn(argv, stdout=_LOAD_OUT, stderr="/run/load.err")

    def _closed_loop(self, what: str) -> dict[str, Any]:
        """Runs a closed loop of requests and returns the load generator's summary, its last line."""
        argv = [*self._load, "run", *self._mix(), "--requests", str(self.plan.requests)]
        done = self.guest.run(argv, timeout_s=300).stdout.splitlines()[-1]
        summary: dict[str, Any] = json.loads(done)
        self.say(f"{what}: {summary['ops_per_s']:.0f} requests/s, 99 % within {summary['p99_us']} us (emulated)")
        return summary


def _rates(judged: Sequence[dict[str, Any]], job: dict[str, Any]) -> dict[str, Any]:
    rates = node.promotion_rates(judged)
    objective = job["slo_ratio_per_min"]
    return {
        "promotion_rate_p98_ratio_per_min": node.percentile(rates, 0.98),
        "promotion_rate_max_ratio_per_min": max(rates, default=0.0),
        "promotion_rate_median_ratio_per_min": statistics.median(rates) if rates else 0.0,
        "promotion_periods": len(rates),
        "promotion_periods_over": sum(rate > objective for rate in rates),
        "slo_ratio_per_min": objective,
    }


def _ratios(without: Sequence[dict[str, Any]], with_far: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def ratio(figure: str) -> pairs.Ratio:
        return pairs.ratio([float(run[figure]) for run in with_far], [float(run[figure]) for run in without])

    throughput, latency = ratio("ops_per_s"), ratio("p99_us")
    figures: dict[str, Any] = {
        "throughput_ratio": throughput.value,
        "latency_p99_ratio": latency.value,
        "throughput_pairs": len(with_far),
        "load_errors": sum(run["errors"] + run["misses"] for run in [*without, *with_far]),
    }
    if len(with_far) > 1:
        figures |= {
            "throughput_ratio_low": throughput.low,
            "throughput_ratio_high": throughput.high,
            "latency_p99_ratio_low": latency.low,
            "latency_p99_ratio_high": latency.high,
        }
    return figures

"""Loads for real servers: fill them, keep them busy at a rate, and measure them as fast as they go."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .guest import Guest
from .rootfs import POSTGRESQL
from .services import Service

_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A run in a closed loop: the next request follows the last one's reply."""

    ops_per_s: float
    p99_us: float
    errors: int


class Load(Protocol):
    """One server under one kind of load, in which some data is asked for far more often than other data."""

    name: str

    def fill(self) -> None:
        """Store all data."""

    def start(self, seconds: float, rate: int) -> int:
        """Keep the server busy at a fixed rate, in the background; returns the pid."""

    def measure(self, requests: int) -> Measured:
        """As fast as the server answers, to the end."""


class Requests:
    """`labguest load` on redis, memcached or nginx (kind `http`)."""

    def __init__(
        self, server: Service, kind: str, *, keys: int, mix: Sequence[str] = ("--zipf", "1"), value_factor: int = 1
    ) -> None:
        self.name = kind
        self._guest: Guest = server.guest
        address = ["--socket", server.address] if server.address.startswith("/") else ["--port", server.address]
        self._keys = ["--keys", str(keys), "--value-factor", str(value_factor)]
        self._load = ["labguest", "load", kind, *address]
        self._run = [*self._load, "run", *self._keys, *mix]

    def fill(self) -> None:
        """Store every key once."""
        self._guest.run([*self._load, "fill", *self._keys], timeout_s=_TIMEOUT_SECONDS)

    def start(self, seconds: float, rate: int) -> int:
        """Requests at a fixed rate."""
        argv = [*self._run, "--seconds", f"{seconds:g}", "--rate", str(rate)]
        return self._guest.spawn(argv, stdout="/run/load.jsonl", stderr="/run/load.err")

    def measure(self, requests: int) -> Measured:
        """Requests as fast as they are answered."""
        done = self._guest.run([*self._run, "--requests", str(requests)], timeout_s=_TIMEOUT_SECONDS)
        summary = json.loads(done.stdout.splitlines()[-1])
        return Measured(summary["ops_per_s"], summary["p99_us"], summary["errors"] + summary["misses"])


class Pgbench:
    """`pgbench` on PostgreSQL: reads of single accounts, of which the first ones are the most popular.

    By Zipf's law, or with `asked_share` the first share of them alike and the rest never: a table's history.
    """

    _BIN = f"/usr/lib/postgresql/{POSTGRESQL}/bin/pgbench"
    _SCRIPT = "/run/pgbench.sql"
    _CHECKPOINT = "/run/checkpoint.sql"
    _LOG = "/run/pgbench.log"

    def __init__(self, server: Service, *, scale: int, exponent: float = 1.1, asked_share: float | None = None) -> None:
        self.name = "postgres"
        self._guest = server.guest
        self._connect = ["--host", server.address, "--username", "postgres"]
        self._scale = scale
        accounts = 100_000 * scale
        draw = f"random_zipfian(1, {accounts}, {exponent:g})"
        if asked_share is not None:
            draw = f"random(1, {round(accounts * asked_share)})"
        self._guest.write(
            self._SCRIPT,
            f"\\set aid {draw}\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n",
        )

    def fill(self) -> None:
        """Make pgbench's tables, 16 MB for each unit of scale, and have them written out.

        Left alone, the server touches every page of them again over the next minutes, to write it: an access that no
        transaction asked for, and far more of them than transactions make.
        """
        argv = [self._BIN, *self._connect, "--initialize", "--init-steps", "dtGvp", "--scale", str(self._scale)]
        self._guest.run([*argv, "--quiet", "postgres"], timeout_s=_TIMEOUT_SECONDS)
        self._guest.write(self._CHECKPOINT, "CHECKPOINT;\n")
        once = [self._BIN, *self._connect, "--no-vacuum", "--transactions", "1", "--file", self._CHECKPOINT]
        self._guest.run([*once, "postgres"], timeout_s=_TIMEOUT_SECONDS)

    def _argv(self, *more: str) -> list[str]:
        script = ["--file", self._SCRIPT, "--no-vacuum", "--protocol", "prepared"]
        return [self._BIN, *self._connect, *script, *more, "postgres"]

    def start(self, seconds: float, rate: int) -> int:
        """Transactions at a fixed rate."""
        argv = self._argv("--time", f"{seconds:.0f}", "--rate", str(rate))
        return self._guest.spawn(argv, stdout="/run/load.out", stderr="/run/load.err")

    def measure(self, requests: int) -> Measured:
        """Transactions one after the other; latencies are taken from pgbench's log of each."""
        argv = self._argv("--transactions", str(requests), "--log", "--log-prefix", self._LOG)
        out = self._guest.run(argv, timeout_s=_TIMEOUT_SECONDS).stdout
        tps = next(line.split()[2] for line in out.splitlines() if line.startswith("tps = "))
        failed = next(line.split()[4] for line in out.splitlines() if line.startswith("number of failed transactions"))
        # A line is: client, transaction, latency in microseconds, ...
        rank = -(-requests * 99 // 100)
        shell = f"cut -d' ' -f3 {self._LOG}.* | sort -n | sed -n {rank}p; rm {self._LOG}.*"
        return Measured(float(tps), float(self._guest.run(["sh", "-c", shell]).stdout), int(failed))

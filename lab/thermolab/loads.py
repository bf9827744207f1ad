"""Load generators for servers: fill a server, keep it busy at a fixed rate, and measure its maximum throughput."""

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
    """Result of a closed-loop run: each request follows the previous reply."""

    ops_per_s: float
    p99_us: float
    errors: int


class Load(Protocol):
    """One server under one kind of load, with a skewed popularity of its data."""

    name: str

    def fill(self) -> None:
        """Stores all data."""

    def start(self, seconds: float, rate: int) -> int:
        """Keeps the server busy at a fixed rate, in the background; returns the pid."""

    def measure(self, requests: int) -> Measured:
        """Sends `requests` requests, each as soon as the previous one is answered."""


class Requests:
    """`labguest load` on redis, memcached or nginx (kind `http`)."""

    def __init__(
        self, server: Service, kind: str, *, keys: int, mix: Sequence[str] = ("--zipf", "1"), value_factor: int = 1
    ) -> None:
        self.name = kind
        self.out = f"/run/{kind}-load.jsonl"
        """File in the guest with the reports of a background load, one line per second."""
        self._guest: Guest = server.guest
        address = ["--socket", server.address] if server.address.startswith("/") else ["--port", server.address]
        self._keys = ["--keys", str(keys), "--value-factor", str(value_factor)]
        self._load = ["labguest", "load", kind, *address]
        self._run = [*self._load, "run", *self._keys, *mix]

    def fill(self) -> None:
        """Stores every key once."""
        self._guest.run([*self._load, "fill", *self._keys], timeout_s=_TIMEOUT_SECONDS)

    def start(self, seconds: float, rate: int) -> int:
        """Sends requests at a fixed rate in the background; returns the pid."""
        argv = [*self._run, "--seconds", f"{seconds:g}", "--rate", str(rate)]
        return self._guest.spawn(argv, stdout=self.out, stderr="/run/load.err")

    def measure(self, requests: int) -> Measured:
        """Sends requests in a closed loop."""
        done = self._guest.run([*self._run, "--requests", str(requests)], timeout_s=_TIMEOUT_SECONDS)
        summary = json.loads(done.stdout.splitlines()[-1])
        return Measured(summary["ops_per_s"], summary["p99_us"], summary["errors"] + summary["misses"])


class Pgbench:
    """`pgbench` on PostgreSQL: reads single accounts, with skewed popularity.

    Popularity follows Zipf's law. With `asked_share`, the first share of the accounts is read uniformly and the rest
    never, as in a table with old rows.
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
        """Creates pgbench's tables, 16 MB for each unit of scale, and runs a checkpoint.

        Without the checkpoint the server writes the pages in the background during the next minutes, which accesses
        far more pages than the transactions do.
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
        """Runs transactions at a fixed rate in the background; returns the pid."""
        argv = self._argv("--time", f"{seconds:.0f}", "--rate", str(rate))
        return self._guest.spawn(argv, stdout="/run/load.out", stderr="/run/load.err")

    def measure(self, requests: int) -> Measured:
        """Runs transactions one after the other; latencies are taken from pgbench's log of each transaction."""
        argv = self._argv("--transactions", str(requests), "--log", "--log-prefix", self._LOG)
        out = self._guest.run(argv, timeout_s=_TIMEOUT_SECONDS).stdout
        tps = next(line.split()[2] for line in out.splitlines() if line.startswith("tps = "))
        failed = next(line.split()[4] for line in out.splitlines() if line.startswith("number of failed transactions"))
        # Fields of a line: client, transaction, latency in microseconds, ...
        rank = -(-requests * 99 // 100)
        shell = f"cut -d' ' -f3 {self._LOG}.* | sort -n | sed -n {rank}p; rm {self._LOG}.*"
        return Measured(float(tps), float(self._guest.run(["sh", "-c", shell]).stdout), int(failed))

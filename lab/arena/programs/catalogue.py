"""Runs in a guest: reads rows of an SQLite database by key, at a fixed rate; which keys are popular drifts.

Prints "ready" once the database is written, then a JSON line per ten seconds with requests and the slowest percent.
"""

import json
import random
import sqlite3
import sys
import time

ROWS, ROW_BYTES = 36_000, 1_000
DRIFT_PER_SECOND = 20
"""Keys by which the most popular one moves on."""


def main(path: str, rate: float) -> None:
    """Writes the database and reads it until it is killed."""
    draw = random.Random(11)  # noqa: S311 -- the same keys in each guest
    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode=OFF")
    base.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, body TEXT)")
    rows = ((key, "".join(draw.choices("0123456789abcdef", k=50)) * (ROW_BYTES // 50)) for key in range(ROWS))
    base.executemany("INSERT INTO item VALUES (?, ?)", rows)
    base.commit()
    print("ready", flush=True)
    begin = due = report = time.monotonic()
    latencies: list[float] = []
    while True:
        # A Pareto rank: a tenth of the rows gets most requests, and any row some.
        rank = int(20 * (draw.paretovariate(0.9) - 1))
        key = (rank + int((due - begin) * DRIFT_PER_SECOND)) % ROWS
        base.execute("SELECT body FROM item WHERE id = ?", (key,)).fetchone()
        now = time.monotonic()
        latencies.append(now - due)
        due += 1 / rate
        if due > now:
            time.sleep(due - now)
        if now >= report + 10:
            latencies.sort()
            p99_us = latencies[len(latencies) * 99 // 100] * 1e6
            print(json.dumps({"requests": len(latencies), "p99_us": p99_us}), flush=True)
            report, latencies = now, []


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

"""Programs that keep all data in their own memory and print each second how many operations they have done.

A transaction resembles that of TPC-B: a random account and a teller get a new balance, and a history grows. A query of
the analytics job sums the sales of a day by shop; nine of ten queries are for the last tenth of the days. Both use
SQLite in memory, so that all data is private anonymous memory of one process.
"""

import argparse
import json
import random
import sqlite3
import sys
import time
from collections.abc import Callable

_TELLERS = 10
_SHOPS = 50
_SALES_PER_DAY = 2_000


def _tpcb(rows: int, chance: random.Random) -> Callable[[], None]:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("create table accounts (id integer primary key, balance integer, filler text)")
    database.execute("create table tellers (id integer primary key, balance integer)")
    database.execute("create table history (teller integer, account integer, delta integer, filler text)")
    database.execute("begin")
    database.executemany("insert into accounts values (?, 0, ?)", ((at, "x" * 84) for at in range(rows)))
    database.executemany("insert into tellers values (?, 0)", ((at,) for at in range(_TELLERS)))
    database.execute("commit")

    def transact() -> None:
        account, teller, delta = chance.randrange(rows), chance.randrange(_TELLERS), chance.randrange(-5000, 5000)
        database.execute("begin")
        database.execute("update accounts set balance = balance + ? where id = ?", (delta, account))
        database.execute("select balance from accounts where id = ?", (account,)).fetchone()
        database.execute("update tellers set balance = balance + ? where id = ?", (delta, teller))
        database.execute("insert into history values (?, ?, ?, ?)", (teller, account, delta, "x" * 22))
        database.execute("commit")

    return transact


def _analytics(rows: int, chance: random.Random) -> Callable[[], None]:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute(
        "create table sales"
        " (day integer, at integer, shop integer, amount integer, note text, primary key (day, at)) without rowid"
    )
    days = rows // _SALES_PER_DAY
    database.execute("begin")
    sales = (
        (day, at, at % _SHOPS, chance.randrange(10_000), "x" * 60)
        for day in range(days)
        for at in range(_SALES_PER_DAY)
    )
    database.executemany("insert into sales values (?, ?, ?, ?, ?)", sales)
    database.execute("commit")

    def query() -> None:
        recent = chance.random() < 0.9
        day = chance.randrange(days * 9 // 10, days) if recent else chance.randrange(days)
        database.execute("select shop, sum(amount) from sales where day = ? group by shop", (day,)).fetchall()

    return query


def main() -> None:
    """Fills the memory, then runs for the number of seconds read from standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=["tpcb", "analytics"])
    parser.add_argument("rows", type=int)
    arguments = parser.parse_args()
    make = {"tpcb": _tpcb, "analytics": _analytics}[arguments.program]
    work = make(arguments.rows, random.Random(1))  # noqa: S311 every run must do the same work
    say({"ready": True})
    until = time.monotonic() + float(sys.stdin.readline())
    second, done = time.monotonic() + 1, 0
    while (now := time.monotonic()) < until:
        if now >= second:
            say({"ops": done})
            second, done = now + 1, 0
        work()
        done += 1


def say(line: dict[str, object]) -> None:
    """Prints one line of JSON and flushes it."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""Runs in a guest: an interpreter that was used and waits, as in an idle sandbox; prints "ready" once it waits."""

import argparse
import asyncio
import decimal
import email.mime.text
import http.server
import json
import sqlite3
import time
import unittest.mock

MODULES = (argparse, asyncio, decimal, email.mime.text, http.server, json, sqlite3, unittest.mock)


def main() -> None:
    """Fills some data structures, then waits, with a heartbeat."""
    table = {str(key): {"key": key, "text": f"row {key} of {len(MODULES)}"} for key in range(20_000)}
    print("ready", flush=True)
    while True:
        time.sleep(5)
        table["beat"] = {"key": 0, "text": time.strftime("%H:%M:%S")}


if __name__ == "__main__":
    main()

"""An object store that goes away loses no record, as long as what waits fits into the spool.

Redis runs under the agent, which brings its trace to a store on the host. The store is away twice; the second time the
agent is killed and started again meanwhile. In the end every period of the journal is in the store, and none twice.
"""

from typing import Any

from thermolab import node, services
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.loads import Requests
from thermolab.qemu import Machine
from thermolab.store import URL, ObjectStore

KERNELS = ("6.12",)
FEATURES = ("s3",)

_PERIOD_S = 2
_ENTRY_S = 4
_FILE_S = 10
_OUTAGE_S = 40


def run(lab: Lab) -> dict[str, Any]:
    """Up, away, up, away with a kill, up."""
    with ObjectStore() as store, lab.guest(Machine(qemu_args=store.qemu_args)) as guest:
        store.connect(guest)
        server = services.redis(guest)
        load = Requests(server, "redis", keys=20_000)
        load.fill()
        settings: node.Settings = {
            "trace.store": URL,
            "trace.cluster": "lab",
            "trace.machine": "guest",
            "trace.entry_period": f"{_ENTRY_S}s",
            "trace.file_period": f"{_FILE_S}s",
        }
        node.configure(guest, [node.Job("/redis")], settings)
        busy = load.start(12 * _OUTAGE_S, 100)
        agent = node.start(guest, env=store.guest_env)
        _until_stored(guest, store, 2)
        before = len(store.objects())
        lab.say(f"{before} objects; the store goes away")
        store.stop()
        guest.run(["sleep", str(_OUTAGE_S)])
        during = len(store.objects())
        waiting = _waiting(guest)
        store.start()
        lab.say(f"{waiting} files wait; the store is back")
        _until_stored(guest, store, before + _OUTAGE_S // _FILE_S - 1)
        store.stop()
        guest.run(["sleep", str(_OUTAGE_S // 2)])
        agent.stop(9)
        agent = node.start(guest, env=store.guest_env)
        guest.run(["sleep", str(_OUTAGE_S // 2)])
        store.start()
        guest.run(["sleep", str(2 * _FILE_S)])
        agent.stop()
        left = _waiting(guest)
        guest.kill(busy)
        journal = node.periods(node.journal(guest), "/redis")
        entries = store.entries(lab.program("thermocline"))
        store.run(lab.program("thermocline"), "trace", "validate", URL)
        guest.keep(f"{node.STATE}/journal")
    keys = [(entry["job_key"], entry["start_unix_ms"]) for entry in entries]
    traced = sum(entry["periods"] for entry in entries)
    figures = {
        "objects_before": before,
        "objects_while_away": during,
        "files_waiting_while_away": waiting,
        "files_left": left,
        "periods_in_journal": len(journal),
        "periods_in_store": traced,
        "entries": len(entries),
        "entries_twice": len(keys) - len(set(keys)),
        "promoted_in_journal": sum(period["outcome"]["promoted"] for period in journal),
        "promoted_in_store": sum(entry["promoted_pages"] for entry in entries),
    }
    lab.say(", ".join(f"{name} {value}" for name, value in figures.items()))
    lab.at_most("objects_while_away", during, before)
    lab.at_least("files_waiting_while_away", waiting, 2)
    lab.at_most("files_left", left, 0)
    lab.at_most("entries_twice", figures["entries_twice"], 0)
    lab.at_most("periods_in_store", traced, len(journal))
    # SIGKILL loses the entry that is being summed, which the journal still holds; and nothing else.
    lab.at_least("periods_in_store", traced, len(journal) - _ENTRY_S // _PERIOD_S)
    return figures


def _waiting(guest: Guest) -> int:
    """Files that are to be brought to the store."""
    found = guest.run(["find", f"{node.STATE}/trace", "-name", "*.parquet", "-type", "f"], check=False)
    return len(found.stdout.split())


def _until_stored(guest: Guest, store: ObjectStore, objects: int) -> None:
    """Wait for so many objects, at most a minute of the guest's time."""
    for _ in range(60):
        if len(store.objects()) >= objects:
            return
        guest.run(["sleep", "1"])

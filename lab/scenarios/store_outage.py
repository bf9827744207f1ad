"""An outage of the object store loses no record as long as the spool has space.

Redis runs under the agent, which uploads its trace to a store on the host. The store is stopped twice; during the
second outage the agent is killed and restarted. In the end every period of the journal is in the store exactly once.
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
    """Runs the agent through both outages, then compares the store with the journal."""
    with ObjectStore() as store, lab.guest(Machine(qemu_args=store.qemu_args)) as guest:
        store.connect(guest)
        server = services.redis(guest)
        load = Requests(server, "redis", keys=20_000)
        load.fill()
        _configure(guest)
        busy = load.start(12 * _OUTAGE_S, 100)
        agent = node.start(guest, env=store.guest_env)
        _until_stored(guest, store, 2)
        before = len(store.objects())
        lab.say(f"{before} objects; the store stops")
        store.stop()
        guest.run(["sleep", str(_OUTAGE_S)])
        during = len(store.objects())
        waiting = _waiting(guest)
        store.start()
        lab.say(f"{waiting} files are waiting; the store is up again")
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
    figures = {
        "objects_before": before,
        "objects_while_away": during,
        "files_waiting_while_away": waiting,
        "files_left": left,
        **_compared(journal, entries),
    }
    lab.say(", ".join(f"{name} {value}" for name, value in figures.items()))
    lab.at_most("objects_while_away", during, before)
    lab.at_least("files_waiting_while_away", waiting, 2)
    lab.at_most("files_left", left, 0)
    lab.at_most("entries_twice", figures["entries_twice"], 0)
    lab.at_most("periods_in_store", figures["periods_in_store"], len(journal))
    # SIGKILL loses only the entry in progress, whose periods are in the journal.
    lab.at_least("periods_in_store", figures["periods_in_store"], len(journal) - _ENTRY_S // _PERIOD_S)
    return figures


def _configure(guest: Guest) -> None:
    settings: node.Settings = {
        "trace.store": URL,
        "trace.cluster": "lab",
        "trace.machine": "guest",
        "trace.entry_period": f"{_ENTRY_S}s",
        "trace.file_period": f"{_FILE_S}s",
    }
    node.configure(guest, [node.Job("/redis")], settings)


def _compared(journal: list[dict[str, Any]], entries: list[dict[str, Any]]) -> dict[str, int]:
    """Returns the figures of the journal beside those of the store."""
    keys = [(entry["job_key"], entry["start_unix_ms"]) for entry in entries]
    return {
        "periods_in_journal": len(journal),
        "periods_in_store": sum(entry["periods"] for entry in entries),
        "entries": len(entries),
        "entries_twice": len(keys) - len(set(keys)),
        "promoted_in_journal": sum(period["outcome"]["promoted"] for period in journal),
        "promoted_in_store": sum(entry["promoted_pages"] for entry in entries),
    }


def _waiting(guest: Guest) -> int:
    """Returns the number of files that wait for their upload."""
    found = guest.run(["find", f"{node.STATE}/trace", "-name", "*.parquet", "-type", "f"], check=False)
    return len(found.stdout.split())


def _until_stored(guest: Guest, store: ObjectStore, objects: int) -> None:
    """Waits until the store has so many objects, at most a minute of the guest's time."""
    for _ in range(60):
        if len(store.objects()) >= objects:
            return
        guest.run(["sleep", "1"])

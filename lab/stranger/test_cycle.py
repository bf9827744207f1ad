"""A client generated from the published API description of the pool manager runs the whole cycle of a slice.

Run by `make test-stranger`, which sets THERMOCLINE to the path of the program and generates the client.
"""

from __future__ import annotations

import fcntl
import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from pool_client import Client
from pool_client.api.default import (
    assign,
    give_back,
    permissions,
    pool_status,
    renew_lease,
    slice_offline_failed,
    slice_offlined,
    take_lease,
)
from pool_client.models import (
    Assignment,
    AssignRequest,
    Code,
    ErrorResponse,
    Lease,
    LeaseRequest,
    OfflinedRequest,
    OfflineFailedRequest,
    PoolStatus,
    RenewRequest,
    RenewResponse,
)

PROGRAM = os.environ["THERMOCLINE"]
CONFIG = """
listen = "127.0.0.1:0"
ledger = "ledger.redb"
pool_dir = "pool"
slice_size = "128MiB"
emcs = [{ slices = 2 }]
hosts = ["a", "b"]
[tls]
cert = "certs/manager.pem"
key = "certs/manager.key"
client_ca = "certs/ca.pem"
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A running manager: its URL, and the directory of the certificates."""
    root = tmp_path_factory.mktemp("pool")
    certificates = root / "certs"
    subprocess.run([PROGRAM, "pool", "certificates", certificates, "--host", "a", "--host", "b"], check=True)
    (root / "pool.toml").write_text(CONFIG)
    command = [PROGRAM, "pool", "manager", "--config", root / "pool.toml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r" on 127\.0\.0\.1:(\d+)", line):
                yield f"https://localhost:{found[1]}", certificates
                break
        process.terminate()
        process.stderr.read()


def client(manager: tuple[str, Path], host: str) -> Client:
    """Returns a client with a host's certificate."""
    url, certificates = manager
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / f"{host}.pem", certificates / f"{host}.key")
    return Client(base_url=url, verify_ssl=context)


def status(of: Client) -> PoolStatus:
    """Returns the pool's status."""
    answer = pool_status.sync(client=of)
    assert isinstance(answer, PoolStatus)
    return answer


def lease(of: Client, host: str) -> Lease:
    """Takes a new lease."""
    answer = take_lease.sync(host, client=of, body=LeaseRequest(instance="generated client"))
    assert isinstance(answer, Lease)
    return answer


def test_cycle_of_a_slice(manager: tuple[str, Path]) -> None:
    """Lease, slices, a refused second host, a full guest, release, and the next owner."""
    a, b = client(manager, "a"), client(manager, "b")
    epoch = lease(a, "a").epoch
    body = AssignRequest(epoch=epoch, request="1", vm="vm one", slices=2)
    given = assign.sync("a", client=a, body=body)
    assert isinstance(given, Assignment) and len(given.slices) == 2
    assert assign.sync("a", client=a, body=body) == given
    owners = permissions.sync(client=b)
    assert owners is not None and not isinstance(owners, ErrorResponse) and owners.emcs[0].owners == ["a", "a"]

    files = [Path(each.path).open("r+b") for each in given.slices]  # noqa: SIM115
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(b"a secret of host a")
        file.flush()

    # Another host's epoch or slices: refused with a machine-readable code.
    refused = give_back.sync_detailed("a", "vm one", client=b, epoch=epoch, request="2")
    assert refused.status_code == HTTPStatus.FORBIDDEN
    assert isinstance(refused.parsed, ErrorResponse) and refused.parsed.error == Code.FORBIDDEN
    other = lease(b, "b").epoch
    request = AssignRequest(epoch=other, request="1", vm="other", slices=1)
    short = assign.sync_detailed("b", client=b, body=request)
    assert short.status_code == HTTPStatus.INSUFFICIENT_STORAGE

    assert give_back.sync("a", "vm one", client=a, epoch=epoch, request="3") is not None
    renewed = renew_lease.sync("a", client=a, body=RenewRequest(epoch=epoch))
    assert isinstance(renewed, RenewResponse) and len(renewed.work) == 2
    first = renewed.work[0].slice_
    busy = OfflineFailedRequest(epoch=epoch, generation=first.generation, why="the guest is full")
    slice_offline_failed.sync("a", first.emc, first.index, client=a, body=busy)
    assert [stuck.why for stuck in status(a).stuck] == ["the guest is full"]
    for work, file in zip(renewed.work, files, strict=True):
        file.close()
        done = OfflinedRequest(epoch=epoch, generation=work.slice_.generation)
        slice_offlined.sync("a", work.slice_.emc, work.slice_.index, client=a, body=done)
    deadline = time.monotonic() + 60
    while status(b).slices.free < 2:
        assert time.monotonic() < deadline
    again = assign.sync("b", client=b, body=AssignRequest(epoch=other, request="2", vm="other", slices=2))
    assert isinstance(again, Assignment)
    for each in again.slices:
        with Path(each.path).open("rb") as file:
            assert file.read(18) == bytes(18), "no data passes between owners"

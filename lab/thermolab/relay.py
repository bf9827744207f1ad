"""Joins standard input and output with a TCP port of this machine: what QEMU starts for each connection of a guest."""

import os
import socket
import sys
import threading


def main() -> None:
    """Pass on what comes, both ways, until either side ends."""
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
            threading.Thread(target=_copy_input, args=(peer,), daemon=True).start()
            while received := peer.recv(1 << 16):
                _write_all(received)
    except OSError:
        # Nobody listens, or somebody left: the guest sees its connection close.
        sys.exit(1)


def _copy_input(peer: socket.socket) -> None:
    try:
        while given := os.read(0, 1 << 16):
            peer.sendall(given)
        peer.shutdown(socket.SHUT_WR)
    except OSError:
        os._exit(1)


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()

"""Relays standard input and output to a TCP port of this machine; QEMU starts one for each connection of a guest."""

import os
import socket
import sys
import threading


def main() -> None:
    """Relays data in both directions until either side closes."""
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
            threading.Thread(target=_copy_input, args=(peer,), daemon=True).start()
            while received := peer.recv(1 << 16):
                _write_all(received)
    except OSError:
        # The port is closed or the peer reset the connection: the guest sees its connection close.
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

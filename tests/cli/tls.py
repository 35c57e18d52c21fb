"""A mock cluster behind TLS: each node's address becomes that of a proxy that takes TLS off."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.testing import MockCluster

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make a certificate"
)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=broker.test"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@contextlib.contextmanager
def behind_tls(cluster: MockCluster, cert_and_key: tuple[Path, Path]) -> Iterator[str]:
    """The bootstrap servers of the cluster's TLS side; what it tells clients is TLS too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cert_and_key)
    plain = cluster.call(lambda core, _: dict(core.addresses))
    listening = {node: socket.create_server(("127.0.0.1", 0)) for node in plain}
    tls = {node: ("127.0.0.1", s.getsockname()[1]) for node, s in listening.items()}
    for node, server in listening.items():
        _start(_accept, server, context, plain[node])
    cluster.call(lambda core, _: core.addresses.update(tls))
    try:
        yield ",".join(f"{host}:{port}" for host, port in tls.values())
    finally:
        for server in listening.values():
            server.close()


def _start(target: object, *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


def _accept(server: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    while True:
        try:
            sock, _ = server.accept()
        except OSError:  # closed
            return
        _start(_serve, sock, context, address)


def _serve(sock: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):
        client = context.wrap_socket(sock, server_side=True)
        node = socket.create_connection(address)
        _start(_pump, node, client)
        _pump(client, node)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError), source, sink:
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)

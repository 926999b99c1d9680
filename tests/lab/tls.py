"""Certificates for servers and clients, made for one test, and the server options for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import trustme

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("127.0.0.1", "localhost")


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A client or server that trusts its file trusts the certificates that it issues."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA(organization_name=directory.name)
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, *hosts: str, expired: bool = False) -> Pair:
        """Make a certificate for these names and addresses; `expired`: it ended a minute ago."""
        ago = datetime.now(UTC) - timedelta(minutes=1)
        made = self._ca.issue_cert(*hosts, not_after=ago if expired else None)
        name = hosts[0] + "-expired" * expired
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        made.private_key_pem.write_to_path(pair.key)
        for blob in made.cert_chain_pems:
            blob.write_to_path(pair.certificate, append=True)
        return pair


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate of a server, and which clients it accepts."""

    authority: Authority
    """The authority whose clients it trusts."""
    server: Pair
    clients: bool = False
    """Whether a client must show a certificate."""

    def options(self, port: int) -> tuple[str, ...]:
        """Return the options of a server that speaks only TLS, on this port."""
        return (
            *("--port", "0", "--tls-port", str(port)),
            *("--tls-replication", "yes", "--tls-cluster", "yes"),
            *("--tls-ca-cert-file", str(self.authority.file)),
            *("--tls-cert-file", str(self.server.certificate)),
            *("--tls-key-file", str(self.server.key)),
            *("--tls-auth-clients", "yes" if self.clients else "no"),
        )


def trust(authority: Authority, client: Pair | None = None, **more: str) -> str:
    """Return the query of a URL: which authority a client trusts, and its certificate."""
    files = {"ssl_ca_certs": authority.file}
    if client is not None:
        files |= {"ssl_certfile": client.certificate, "ssl_keyfile": client.key}
    return urlencode({name: str(file) for name, file in files.items()} | more, safe="/")

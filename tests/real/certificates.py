"""Certificates, keys and lists of revoked certificates, made for one test run."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, and both as one file, as Kafka and OpenSSL read them."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey
    file: Path

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def encrypted_key(self, password: str) -> Path:
        """The key alone, in a file that only this password opens."""
        path = self.file.with_suffix(".encrypted-key")
        path.write_bytes(_key_pem(self.key, password))
        return path

    def copy_to(self, path: Path) -> Path:
        """Put it where another one was, in one step."""
        fresh = path.with_suffix(".fresh")
        fresh.write_bytes(self.file.read_bytes())
        fresh.replace(path)
        return path


class Authority:
    """Signs certificates; all its files are in one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = _name(name)
        own = (
            _builder(self._name, self._name, self._key, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_may_sign(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        )
        self._own = own.sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._own.public_bytes(Encoding.PEM))

    def issue(
        self, name: str, *hosts: str, lasts: datetime.timedelta = DAY, file: str | None = None
    ) -> Issued:
        """A certificate for these hosts; one that `lasts` a negative time has expired."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        builder = _builder(_name(name), self._name, key, lasts).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self._folder / f"{file or name}.pem"
        path.write_bytes(_key_pem(key, None) + certificate.public_bytes(Encoding.PEM))
        return Issued(certificate, key, path)

    def revoked(self, name: str, *certificates: Issued) -> Path:
        """A list of revoked certificates."""
        now = _now()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - DAY)
            .next_update(now + DAY)
        )
        for issued in certificates:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(issued.certificate.serial_number)
                .revocation_date(now - DAY)
                .build()
            )
        path = self._folder / f"{name}.crl"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, lasts: datetime.timedelta
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now + lasts)
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _may_sign() -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: name in ("key_cert_sign", "crl_sign") for name in names})


def _key_pem(key: rsa.RSAPrivateKey, password: str | None) -> bytes:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

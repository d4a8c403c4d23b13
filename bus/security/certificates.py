"""A certificate authority of our own, and what it signs: one server, and a client for each role."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lightningbus.bus.security.secrets import write_secret

VALID_DAYS = 1095
CERT, KEY, CA = "cert.pem", "key.pem", "ca.pem"
ROUTE_PREFIX = "routes-"
"""Before the names of what servers of a cluster show each other."""
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A certificate authority; its key exists only here, so nothing can be signed once it is gone."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls) -> "CertificateAuthority":
        """Create an authority that signs only leaf certificates."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("lightningbus bus")
        uses = {"key_cert_sign": True, "crl_sign": True}
        builder = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(**uses), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def write(self, directory: Path, prefix: str = "") -> None:
        """Write only the certificate, for clients that should trust this authority."""
        (directory / f"{prefix}{CA}").write_bytes(self.pem())

    def pem(self) -> bytes:
        """Encode the certificate as PEM."""
        return _pem(self.certificate)

    def issue(
        self, directory: Path, name: str, *uses: x509.ObjectIdentifier, hosts: Sequence[str] = (), prefix: str = ""
    ) -> None:
        """Issue a certificate and its key as `CERT` and `KEY`; ``hosts`` are names and addresses it is valid for."""
        key = ec.generate_private_key(ec.SECP256R1())
        authority_key = self.key.public_key()
        builder = (
            _builder(_name(name), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        (directory / f"{prefix}{CERT}").write_bytes(_pem(builder.sign(self.key, hashes.SHA256())))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        write_secret(directory / f"{prefix}{KEY}", key.private_bytes(serialization.Encoding.PEM, form, plain))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=VALID_DAYS))
    )


def _usage(**uses: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    others = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: uses.get(name, False) for name in (*names, *others)})


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

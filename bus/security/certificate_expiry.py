"""Expiry of a connection's certificates, and when to warn about it."""

import re
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightningbus.bus.security.credentials import Credentials

WARN_SECONDS = 30 * 86400.0
VERSION, UTC_TIME = 0xA0, 0x17
"""Tags of ASN.1: a certificate's version, and a time with two digits for its year."""


def read_expiries(credentials: Credentials, peer: Any) -> dict[str, float]:
    """Read the end of each certificate in Unix seconds: the role's ``own``, its ``authority``'s, and the ``server``'s.

    ``peer`` is what ``SSLObject.getpeercert`` returns, or None. Missing and unreadable ones are left out.
    """
    ends = {
        name: _read_expiry(path)
        for name, path in (("own", credentials.cert), ("authority", credentials.ca))
        if path is not None
    }
    if peer:
        ends["server"] = ssl.cert_time_to_seconds(peer["notAfter"])
    return {name: end for name, end in ends.items() if end is not None}


def build_warnings(ends: dict[str, float], now: float) -> list[str]:
    """Word a warning for each certificate that ends within `WARN_SECONDS`. Pure."""
    return [_build_warning(name, end, now) for name, end in sorted(ends.items()) if end - now < WARN_SECONDS]


def _build_warning(name: str, end: float, now: float) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(end))
    when = f"ends on {day}, in {(end - now) / 86400:.0f} days" if end > now else f"ended on {day}"
    return f"the {name} certificate of the bus {when}: `lightningbus bus rotate` makes new ones"


def _read_expiry(path: Path) -> float | None:
    try:
        texts = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", path.read_text("ascii"), re.S)
        return max(parse_not_after(ssl.PEM_cert_to_DER_cert(text)) for text in texts)
    except (OSError, ValueError, IndexError):  # during a rotation; the connection reports a lasting error
        return None


def parse_not_after(der: bytes) -> float:
    """Parse the end of a certificate (X.509, DER) in Unix seconds; raise ValueError or IndexError if it is none.

    Parsed here because the base package has nothing that reads certificates, and `ssl` shows only the peer's.
    """
    _, start, _ = _read_element(der, 0)
    _, at, _ = _read_element(der, start)  # the signed part
    tag, _, end = _read_element(der, at)
    at = end if tag == VERSION else at
    for _ in ("serial number", "signature algorithm", "issuer"):
        _, _, at = _read_element(der, at)
    _, start, _ = _read_element(der, at)
    _, _, start = _read_element(der, start)  # the second of two times
    tag, start, end = _read_element(der, start)
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(der[start:end].decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _read_element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the element that begins there, and where its content begins and ends."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length >= 0x80:
        count = length - 0x80
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    return tag, start, start + length

"""When the certificates of a connection end, and when to say so."""

import ssl
import time
from pathlib import Path
from typing import Any

from cryptography import x509

from bus.access import Access

WARN_SECONDS = 30 * 86400.0


def ends_of(access: Access, peer: Any) -> dict[str, float]:
    """Unix seconds at which a certificate ends: the role's ``own``, its ``authority``'s, and the ``server``'s.

    ``peer`` is what ``SSLObject.getpeercert`` returns, or None. What there is none of, or cannot be read, is left out.
    """
    ends = {name: _end(path) for name, path in (("own", access.cert), ("authority", access.ca)) if path is not None}
    if peer:
        ends["server"] = ssl.cert_time_to_seconds(peer["notAfter"])
    return {name: end for name, end in ends.items() if end is not None}


def warnings(ends: dict[str, float], now: float) -> list[str]:
    """A sentence for each certificate that ends within `WARN_SECONDS`. Pure."""
    return [_sentence(name, end, now) for name, end in sorted(ends.items()) if end - now < WARN_SECONDS]


def _sentence(name: str, end: float, now: float) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(end))
    when = f"ends on {day}, in {(end - now) / 86400:.0f} days" if end > now else f"ended on {day}"
    return f"the {name} certificate of the bus {when}: `lightningbus bus rotate` makes new ones"


def _end(path: Path) -> float | None:
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):  # amid a rotation; the connection says what is wrong with it
        return None
    return max(certificate.not_valid_after_utc.timestamp() for certificate in certificates)

"""The replacement of a leaked signing key, by the script that the page for deployments shows."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.users import create_users
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import Blob, WeightManifest
from tests.deploy.commands import ROOT

pytestmark = pytest.mark.integration
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
SUBJECT = subjects.weights("policy")


def replace_key(directory: Path, role: str) -> None:
    """Create the new users, and run the script of the page."""
    assert list(create_users(directory / "fresh", tls=False))
    (script,) = re.findall(r"```python\n(# replace_signing_key.py.*?)```", DEPLOYMENT, re.S)
    (directory / "replace_signing_key.py").write_text(script)
    subprocess.run([sys.executable, "replace_signing_key.py", role], cwd=directory, check=True)


async def publish(bus: Bus, version: int, last: int) -> int:
    """Publish a version of the model after the message with this sequence."""
    blob = Blob(bucket=subjects.WEIGHT_BUCKET, name=f"policy-{version}", size=1, sha256="0" * 64)
    manifest = WeightManifest(
        run_id="r", model="policy", version=version, blobs=(blob,), epoch=1, step=version, created_at_ns=1
    )
    return await bus.publish(SUBJECT, manifest, msg_id=f"{version}-{last}", expect_last=last)


async def served(url: str, secrets: Path) -> int | None:
    """The version that a node serves which starts now."""
    async with Bus.connect(url, credentials=Credentials.read(secrets, "inference")) as node:
        target = (await WeightRegistry(node, "policy").resolve_target()).serve
    return target.version if target else None


@pytest.fixture
async def url(tmp_path: Path, secrets: Path) -> AsyncIterator[str]:
    """A server with streams, whose users are in ``secrets``."""
    async with nats_server(tmp_path / "nats", users=secrets) as server:
        async with Bus.connect(server.url, credentials=Credentials.read(secrets, "admin")) as admin:
            await admin.provision()
        yield server.url


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The users' directory."""
    assert list(create_users(tmp_path / "secrets", tls=False))
    return tmp_path / "secrets"


async def test_after_a_learners_key_was_replaced_its_next_version_alone_is_served(
    url: str, secrets: Path, tmp_path: Path
) -> None:
    async with Bus.connect(url, credentials=Credentials.read(secrets, "learner")) as learner:
        first = await publish(learner, 0, 0)
        assert await served(url, secrets) == 0
        replace_key(tmp_path, "learner")
        assert (secrets / "learner" / "signing.seed").stat().st_mode & 0o077 == 0
        assert await served(url, secrets) is None
        await publish(learner, 0, first)
    assert await served(url, secrets) == 0


async def test_after_an_admins_key_was_replaced_it_decides_again(url: str, secrets: Path, tmp_path: Path) -> None:
    async with Bus.connect(url, credentials=Credentials.read(secrets, "admin")) as admin:
        async with Bus.connect(url, credentials=Credentials.read(secrets, "learner")) as learner:
            await publish(learner, 1, await publish(learner, 0, 0))
        await WeightRegistry(admin, "policy").append_decision("revoked", 1, actor="me")
        assert await served(url, secrets) == 0
        replace_key(tmp_path, "admin")
        assert await served(url, secrets) == 1, "the revocation is signed by a key that nobody accepts"
        await WeightRegistry(admin, "policy").append_decision("revoked", 1, actor="me")
    assert await served(url, secrets) == 0

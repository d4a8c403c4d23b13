"""Weights are as good as the keys of who wrote them, whatever the bus brings."""

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import nkeys
import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import CredentialsError, FencedError
from lightningbus.bus.security.credentials import FILE, Credentials
from lightningbus.bus.security.permissions import PERMISSIONS
from lightningbus.bus.security.signing import (
    EXPECTED_LAST_HEADER,
    SIGNATURE_HEADER,
    InvalidSignatureError,
    SigningKeys,
    make_keys,
)
from lightningbus.bus.security.users import create_users
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditState, AuditVerdict
from lightningbus.schemas.codec import encode, schema_of
from lightningbus.schemas.signers import bytes_to_sign, can_sign
from lightningbus.schemas.weights.events import Blob, ReleaseDecision, ReleaseState, WeightManifest
from lightningbus.schemas.weights.release_policy import apply_decision

SUBJECT, RELEASE = subjects.weights("policy"), subjects.release("policy")


def manifest(version: int, model: str = "policy") -> WeightManifest:
    blob = Blob(bucket=subjects.WEIGHT_BUCKET, name=f"{model}-{version}", size=1, sha256="0" * 64)
    return WeightManifest(
        run_id="r", model=model, version=version, blobs=(blob,), epoch=1, step=version, created_at_ns=1
    )


def decision(what: str, version: int) -> ReleaseDecision:
    return ReleaseDecision(action=what, version=version, actor="me", decided_at_ns=1)  # type: ignore[arg-type]


class Roles:
    """A bus that lets in everybody, and whoever has a signing key there."""

    def __init__(self, url: str, folder: Path, exits: AsyncExitStack) -> None:
        self.url, self.folder, self._exits = url, folder, exits

    async def as_(self, role: str, folder: Path | None = None) -> Bus:
        access = Credentials.read(folder or self.folder, role)
        return await self._exits.enter_async_context(Bus.connect(self.url, name=role, credentials=access))

    async def send(self, subject: str, payload: bytes, **headers: str) -> int:
        """A message as anybody may write it who may write there at all."""
        plain = await self._exits.enter_async_context(Bus.connect(self.url, name="stranger"))
        kind = ReleaseState if subject == RELEASE else WeightManifest
        fields = {subjects.SCHEMA_HEADER: schema_of(kind)} | {
            {"signature": SIGNATURE_HEADER, "after": EXPECTED_LAST_HEADER}[name]: value
            for name, value in headers.items()
        }
        return await plain.publish_bytes(subject, payload, fields, 10)


@pytest.fixture
async def roles(nats: NatsServer, tmp_path: Path) -> AsyncIterator[Roles]:
    make_keys(tmp_path / "access", PERMISSIONS, FILE)
    async with AsyncExitStack() as exits:
        roles = Roles(nats.url, tmp_path / "access", exits)
        await (await roles.as_("admin")).provision()
        yield roles


async def served(bus: Bus) -> tuple[int | None, str]:
    """The version a fresh reader would serve, and what it says of the newest message."""
    releases = WeightRegistry(bus, "policy")
    choice = await releases.resolve_target()
    return choice.serve.version if choice.serve else None, releases.problem


async def test_a_version_the_learner_signed_is_served(roles: Roles) -> None:
    learner = await roles.as_("learner")
    await learner.publish(SUBJECT, manifest(0), msg_id="0", expect_last=0)
    for role in ("inference", "client", "learner", "admin", "store"):
        assert await served(await roles.as_(role)) == (0, "")


async def test_an_unsigned_version_is_not_served_and_the_one_before_it_is(roles: Roles) -> None:
    learner, node = await roles.as_("learner"), await roles.as_("inference")
    await learner.publish(SUBJECT, manifest(0), msg_id="0", expect_last=0)
    sequence = await roles.send(SUBJECT, encode(manifest(1)))
    assert await served(node) == (0, f"message {sequence} on {SUBJECT} is passed over: it is not signed")
    await learner.publish(SUBJECT, manifest(2), msg_id="2", expect_last=sequence)
    assert await served(node) == (2, "")


async def test_a_version_signed_by_a_key_of_somebody_else_is_not_served(roles: Roles, tmp_path: Path) -> None:
    """A learner of another bus: its signature is right, its key is not the one that is pinned."""
    make_keys(tmp_path / "foreign", PERMISSIONS, FILE)
    foreign = await roles.as_("learner", tmp_path / "foreign")
    await foreign.publish(SUBJECT, manifest(1), msg_id="1", expect_last=0)
    version, problem = await served(await roles.as_("inference"))
    assert version is None and "a key nobody here knows" in problem


async def test_a_signed_version_does_not_hold_on_another_subject_nor_changed_nor_sent_again(roles: Roles) -> None:
    """The server refuses a message that claims to follow one of long ago; a hostile one is found out by the reader."""
    learner, node = await roles.as_("learner"), await roles.as_("inference")
    first = await learner.publish(SUBJECT, manifest(0), msg_id="0", expect_last=0)
    second = await learner.publish(SUBJECT, manifest(1), msg_id="1", expect_last=first)
    stored = await learner.js.get_msg(subjects.WEIGHTS, first, direct=True)
    assert stored.headers is not None and stored.data is not None
    signature = stored.headers[SIGNATURE_HEADER]
    with pytest.raises(FencedError):
        await roles.send(SUBJECT, stored.data, signature=signature, after="0")
    await roles.send(SUBJECT, stored.data, signature=signature)
    await roles.send(SUBJECT, stored.data, signature=signature, after=str(second + 1))
    await roles.send(SUBJECT, encode(manifest(7)), signature=signature)
    assert (await served(node))[0] == 1
    await roles.send(subjects.weights("other"), stored.data, signature=signature, after="0")
    assert (await WeightRegistry(node, "other").resolve_target()).serve is None
    assert node.signing.check(SUBJECT, manifest(0), stored.data, stored.headers, 0) == "learner"
    with pytest.raises(InvalidSignatureError, match="sent once more"):
        node.signing.check(SUBJECT, manifest(0), stored.data, stored.headers, second)


async def test_a_version_that_the_learner_of_another_model_signed_is_not_served(
    nats: NatsServer, tmp_path: Path
) -> None:
    """Nor can it sign one by mistake; the server of this test would take it from anybody."""
    folder, policies = tmp_path / "users", ("policy", "checker")
    assert list(create_users(folder, tls=False, policies=policies))
    async with AsyncExitStack() as exits:
        roles = Roles(nats.url, folder, exits)
        await (await roles.as_("admin")).provision(policies=policies)
        learner, checker, node = [await roles.as_(role) for role in ("learner-policy", "learner-checker", "inference")]
        sequence = await learner.publish(SUBJECT, manifest(0), msg_id="0", expect_last=0)
        with pytest.raises(CredentialsError, match="may not sign this WeightManifest"):
            await checker.publish(SUBJECT, manifest(1), msg_id="1", expect_last=sequence)
        pair = nkeys.from_seed((folder / "learner-checker" / "signing.seed").read_bytes().strip())
        forged = pair.sign(bytes_to_sign(SUBJECT, sequence, encode(manifest(1))))
        signature = f"{pair.public_key.decode()} {base64.b64encode(forged).decode()}"
        last = await roles.send(SUBJECT, encode(manifest(1)), signature=signature, after=str(sequence))
        problem = f"message {last} on {SUBJECT} is passed over: role learner-checker may not decide that"
        assert await served(node) == (0, problem)


async def test_a_decision_counts_only_from_who_may_decide_it(roles: Roles) -> None:
    """An admin decides anything, a node gives verdicts, nobody else anything; an old decision sent again is none."""
    learner, node, admin = [await roles.as_(role) for role in ("learner", "inference", "admin")]
    sequence = 0
    for version in range(3):
        sequence = await learner.publish(SUBJECT, manifest(version), msg_id=str(version), expect_last=sequence)
    with pytest.raises(CredentialsError, match="may not sign this ReleaseState"):
        await WeightRegistry(learner, "policy").append_decision("revoked", 2, actor="me")
    with pytest.raises(CredentialsError, match="may not sign this ReleaseState"):
        await WeightRegistry(node, "policy").append_decision("pinned", 0, actor="me")
    with pytest.raises(CredentialsError, match="has no signing key"):
        await WeightRegistry(await roles.as_("client"), "policy").append_decision("revoked", 2, actor="me")
    await WeightRegistry(node, "policy").append_decision("revoked", 2, actor="n")
    assert (await served(node))[0] == 1
    await WeightRegistry(admin, "policy").append_decision("revoked", 1, actor="me")
    assert (await served(node))[0] == 0
    await roles.send(RELEASE, encode(ReleaseState(model="policy", pinned=2)))
    assert (await served(node))[0] == 0
    await WeightRegistry(admin, "policy").append_decision("approved", 1, actor="me")
    assert await served(node) == (1, "")


async def test_a_node_that_leaves_a_decision_out_changes_nothing(roles: Roles) -> None:
    """Its signature is good, and what it writes is not what was decided before and one decision more."""
    learner, node, admin = [await roles.as_(role) for role in ("learner", "inference", "admin")]
    first = await learner.publish(SUBJECT, manifest(0), msg_id="0", expect_last=0)
    await learner.publish(SUBJECT, manifest(1), msg_id="1", expect_last=first)
    releases = WeightRegistry(admin, "policy")
    await releases.append_decision("revoked", 1, actor="me")
    forged = apply_decision(ReleaseState(model="policy"), decision("approved", 1))
    await node.publish(RELEASE, forged, msg_id="forged", expect_last=releases._last_decision.sequence)
    version, problem = await served(node)
    assert version == 0 and "not the decisions before it and one more" in problem


async def test_bytes_that_cannot_be_read_are_passed_over_by_every_reader(roles: Roles) -> None:
    """What a server answers a publisher, stored by a trick where versions, decisions and turns are."""
    learner, node, admin = [await roles.as_(role) for role in ("learner", "inference", "admin")]
    answer = b'{"stream":"WEIGHTS","seq":1}'
    last = await roles.send(SUBJECT, answer)
    await roles.send(RELEASE, answer)
    await learner.publish(SUBJECT, manifest(0), msg_id="0", expect_last=last)
    await roles.send(SUBJECT, answer)
    assert (await served(node))[0] == 0
    await WeightRegistry(admin, "policy").append_decision("revoked", 0, actor="me")
    assert (await served(node))[0] is None


def test_who_may_sign_what_is_one_table() -> None:
    version, release = manifest(0), apply_decision(ReleaseState(model="policy"), decision("pinned", 0))
    verdict = apply_decision(ReleaseState(model="policy"), decision("revoked", 0))
    conviction = AuditVerdict(
        engine_id="n:1", version=0, failed_version=0, reason="r", num_tokens=1, evidence=1.0, decided_at_ns=1
    )
    audits = AuditState(model="policy", verdicts=(conviction,))
    overturning = AuditState(model="policy", verdicts=(conviction, replace(conviction, action="overturned")))
    table = {
        role: [can_sign(role, event) for event in (version, release, verdict, audits, overturning)]
        for role in (*PERMISSIONS, "learner-policy", "learner-other", "")
    }
    allowed = {role: row for role, row in table.items() if any(row)}
    assert allowed == {
        "learner": [True, False, False, False, False],
        "learner-policy": [True, False, False, False, False],
        "inference": [False, False, True, False, False],
        "auditor": [False, False, True, True, False],
        "admin": [False, True, True, True, True],
    }
    assert not can_sign("admin", ReleaseState(model="policy"))


def test_the_seeds_are_their_roles_own_and_the_public_keys_are_everybodys(tmp_path: Path) -> None:
    make_keys(tmp_path / "access", PERMISSIONS, FILE)
    seeds = {path.parent.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("signing.seed")}
    assert seeds == dict.fromkeys(("learner", "inference", "auditor", "admin"), 0o600)
    for role in PERMISSIONS:
        assert (
            SigningKeys.read(tmp_path / "access" / role).public
            == SigningKeys.read(tmp_path / "access" / "admin").public
        )


async def test_a_key_file_that_is_being_copied_counts_as_it_was(roles: Roles, caplog: pytest.LogCaptureFixture) -> None:
    learner, node = [await roles.as_(role) for role in ("learner", "inference")]
    files = [roles.folder / "inference" / "signers.json", roles.folder / "learner" / "signing.seed"]
    whole = [file.read_bytes() for file in files]
    sequence = 0
    for version, size in enumerate((0, 20)):
        for file, content in zip(files, whole, strict=True):
            file.write_bytes(content[:size])
        sequence = await learner.publish(SUBJECT, manifest(version), msg_id=str(version), expect_last=sequence)
        assert await served(node) == (version, "")
    assert f"{files[0]} is not a list of public keys by role" in caplog.text
    assert f"{files[1]} holds no signing key; what was read of it before still counts" in caplog.text
    with pytest.raises(CredentialsError, match="not a list of public keys"):
        await roles.as_("inference")
    for file, content in zip(files, whole, strict=True):
        file.write_bytes(content)
    await learner.publish(SUBJECT, manifest(2), msg_id="2", expect_last=sequence)
    assert await served(node) == (2, "")
    assert f"{files[0]} can be read again" in caplog.text

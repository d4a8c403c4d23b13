"""A run on nine hosts: what each lets in, and what becomes of it when their cables are cut, slow, and whole again."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack

import pytest
import pytest_asyncio

from lightningbus.bus.security.certificates import ROUTE_PREFIX
from lightningbus.bus.security.secrets import INFERENCE_API_KEY, SERVER_DIR, read_key
from tests.chaos.__main__ import prepare
from tests.chaos.at_work import Busy
from tests.chaos.oracle import judge
from tests.hosts.arrows import BEYOND, LOOPBACK, certificate, greeted, nobody, refused, status_of, table
from tests.hosts.deployment import CLIENTS, GATEWAY, HEALTH, LEAVES, NODES, ROOT, ROUTE, SQL, Hosts, hosts
from tests.hosts.network import missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
    pytest.mark.timeout(600),
]
STEPS = 3
LONGEST_SECONDS = 400.0
SLOW_SECONDS = 0.04
KINDS = ("bus-0", "store", "learner", "node-0", "runner-0")
CALLERS = (*KINDS, "operator")
DENIED = "authorization violation"
AT_ONCE: Sequence[Sequence[str]] = (("bus-1", "node-0", "runner-1"), ("store", "learner"))
ONE_BY_ONE: Sequence[Sequence[str]] = tuple(
    (name,) for name in ("learner", "bus-0", "node-1", "store", "runner-0", "bus-2")
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hosts]:
    """The run, at work."""
    place = tmp_path_factory.mktemp("hosts") / "system"
    await asyncio.to_thread(prepare, place)
    async with hosts(place, steps=STEPS) as site:
        yield site


def kind(name: str) -> str:
    return name.partition("-")[0]


def test_what_listens_beyond_loopback_is_in_the_table(site: Hosts) -> None:
    """What a role opens to others, and what it keeps to its own machine: the page says all of it, and no more."""
    fields = {
        listens: {(d.host, d.port) for d in table(ROOT / "SECURITY.md") if d.listens == listens}
        for listens in (BEYOND, LOOPBACK)
    }
    by_name: dict[str, set[tuple[str, int]]] = {BEYOND: set(), LOOPBACK: set()}
    for name in KINDS:
        for address, port, who in site.host(name).listening():
            where = LOOPBACK if address in ("127.0.0.1", "::1") else BEYOND
            by_name[where].add((kind(name), port))
            assert where == LOOPBACK or (kind(name), port) in fields[BEYOND], f"{who} listens on {address}:{port}"
    ranks = {("learner", None)}
    assert by_name[BEYOND] == fields[BEYOND] - ranks
    fixed = {(host, port) for host, port in fields[LOOPBACK] if port is not None}
    assert fixed <= by_name[LOOPBACK]
    gloo_of_vllm = {"node"}  # the stand-in for vLLM here opens none; see test_vllm
    assert {host for host, _ in by_name[LOOPBACK] - fixed} == {
        host for host, port in fields[LOOPBACK] if port is None
    } - gloo_of_vllm


@pytest.mark.parametrize("name", KINDS)
def test_what_is_on_loopback_is_reached_from_no_other_host(site: Hosts, name: str) -> None:
    """ClickHouse, the runner's gateway, monitoring and health."""
    host = site.host(name)
    ports = {port for address, port, _ in host.listening() if address.startswith("127.")}
    assert ports >= {"bus": {8222}, "store": {SQL, HEALTH}}.get(kind(name), {HEALTH}), ports
    for caller in set(CALLERS) - {name}:
        for port in ports:
            assert refused(site.host(caller), host.address, port), f"{caller} reaches {port} of {name}"


@pytest.mark.parametrize("caller", CALLERS)
def test_a_server_hears_nobody_without_a_certificate_and_a_user(site: Hosts, caller: str) -> None:
    """Clients and remote sites; who has a runner's certificate and no key of its user is heard, and sent away."""
    host, address = site.host(caller), site.host("bus-1").address
    runner = site.secrets / "runner"
    for port in (CLIENTS, LEAVES):
        assert greeted(host, address, port, nobody(runner)) == ""
        text = greeted(host, address, port, certificate(runner))
        assert text.startswith("INFO ") and DENIED in text.lower()


@pytest.mark.parametrize("caller", CALLERS)
def test_nobody_but_a_server_is_taken_for_one(site: Hosts, caller: str) -> None:
    """A client's certificate, whoever's, does not open the servers' own door; theirs does."""
    host, address = site.host(caller), site.host("bus-1").address
    server = site.secrets / SERVER_DIR
    assert greeted(host, address, ROUTE, nobody(server, ROUTE_PREFIX)) == ""
    for user in ("runner", "leaf-runner", "admin"):
        forged = nobody(server, ROUTE_PREFIX)
        forged.load_cert_chain(site.secrets / user / "cert.pem", site.secrets / user / "key.pem")
        assert greeted(host, address, ROUTE, forged) == ""
    assert greeted(host, address, ROUTE, certificate(server, ROUTE_PREFIX)) != ""


@pytest.mark.parametrize("caller", CALLERS)
def test_a_node_answers_who_has_the_inference_api_key(site: Hosts, caller: str) -> None:
    """Whichever host it comes from; and nobody steers the engine."""
    host, address = site.host(caller), site.host("node-1").address
    key = read_key(site.secrets / "runner" / INFERENCE_API_KEY)
    for method, path in (
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/metrics"),
        ("POST", "/pause"),
    ):
        assert status_of(host, address, GATEWAY, method, path) == 401
        assert status_of(host, address, GATEWAY, method, path, "another key, as long as that") == 401
    assert status_of(host, address, GATEWAY, "POST", "/pause", key) == 404
    assert status_of(host, address, GATEWAY, "GET", "/v1/models", key) == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_lost_or_doubled_when_hosts_are_cut_off_and_come_back(site: Hosts, full: bool) -> None:
    """While some are cut off and another is slow, the rest goes on; what was cut off goes on when it is back."""
    async with asyncio.timeout(LONGEST_SECONDS), Busy(site).kept() as busy:
        await site.rollouts_more(16)
        with site.host("node-1").slow(SLOW_SECONDS), site.host("bus-2").slow(SLOW_SECONDS):
            for names in ONE_BY_ONE if full else AT_ONCE:
                with ExitStack() as cables:
                    for name in names:
                        cables.enter_context(site.host(name).cut())
                    await site.rollouts_more(24)
                await site.rollouts_more(8)
    await site.finished(300)
    assert site.ended() == []
    vocabulary = json.loads((site.directory / "model" / "config.json").read_text())["vocab_size"]
    with site.host("store").inside():
        verdict = await judge(site, busy.rollouts, vocabulary)
        rows = site.sql().query("SELECT DISTINCT node FROM model_calls").result_rows
        used = {node for (nodes,) in rows for node in nodes.split(",")}  # a call that was resumed has two
    assert verdict, str(verdict)
    assert verdict.counts["trained"] >= STEPS
    assert used == {f"inference-{number}" for number in range(NODES)}

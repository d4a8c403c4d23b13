"""Agents that would bring a careless runner down, one way each; 1.0 is the reward of one that got away with nothing."""

import errno
import functools
import hashlib
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import openai
from openai import OpenAI

client = OpenAI(max_retries=0)
hoard = []


def unless_calm(agent):
    """The agent behaves when its task says so."""

    @functools.wraps(agent)
    def solve(task):
        return 1.0 if task.get("calm") else agent(task)

    return solve


def ask(with_client=client, text="hello"):
    return with_client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])


@unless_calm
def leaks(task):
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))


def forks(task):
    pid = os.fork()
    ask() if pid else time.sleep(0.2)
    return float(task["n"])  # in both of them


@unless_calm
def forks_and_leaves(task):
    if os.fork() == 0:
        time.sleep(3600)
    ask()
    return 1.0


@unless_calm
def ignores_sigterm(task):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


@unless_calm
def floods(task):
    key = os.environ["OPENAI_API_KEY"]
    fields = {"traceId": "01" * 16, "name": "x", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    for part in range(4):
        spans = [{"spanId": f"{n:016x}", **fields} for n in range(9_000 * part, 9_000 * (part + 1))]
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans + spans[:9]}]}]}).encode()
        url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
    return 1.0


@unless_calm
def prints_binary(task):
    sys.stdout.buffer.write(os.urandom(300_000) + b"\n\n")
    sys.stdout.flush()
    return 1.0


@unless_calm
def writes_into_our_connection(task):
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()).startswith(("socket:", "pipe:")) and int(link.name) > 2:
                os.write(int(link.name), b'\xff\x00 not json\n{"job": 0, "value": 99}\n')
        except OSError:
            continue
    return 1.0


@unless_calm
def speaks_for_another(task):
    mine = os.environ["OPENAI_BASE_URL"]
    other = mine.replace("/slot/0/", "/slot/1/") if "/slot/0/" in mine else mine.replace("/slot/1/", "/slot/0/")
    try:
        ask(OpenAI(base_url=other, max_retries=0))
    except openai.AuthenticationError:
        return 1.0
    return 0.0


@unless_calm
def sends_50_mb(task):
    try:
        ask(text="x" * 50_000_000)
    except openai.APIStatusError as error:
        return float(error.status_code == 413)
    return 0.0


@unless_calm
def forks_without_end(task):
    while True:
        if os.fork() == 0:
            time.sleep(3600)


@unless_calm
def leaks_in_children(task):
    """Each holds less than a process may; together they do not."""
    for _ in range(4):
        if os.fork() == 0:
            hoard.append(b"x" * 150_000_000)
            time.sleep(3600)
    time.sleep(3600)


@unless_calm
def writes_without_end(task):
    with (Path(os.environ["TMPDIR"]) / "large").open("wb") as file:
        while True:
            file.write(bytes(1_000_000))


@unless_calm
def opens_without_end(task):
    while True:
        hoard.append(os.open(os.devnull, os.O_RDONLY))


@unless_calm
def nests_deeply(task):
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()).startswith(("socket:", "pipe:")) and int(link.name) > 2:
                os.write(int(link.name), b"[" * 60_000 + b"\n")
        except OSError:
            continue
    return 1.0


@unless_calm
def says_half_a_character(task):
    return {"reward": 1.0, "text": "\ud83d"}


@unless_calm
def leaves_a_daemon(task):
    """In a session of its own, and its parent gone."""
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
        (Path(os.environ["TMPDIR"]) / "daemon").write_text(str(pid))
        os._exit(0)
    os.wait()
    return {"reward": 1.0, "daemon": int((Path(os.environ["TMPDIR"]) / "daemon").read_text())}


def raises_5_mb(task):
    raise ValueError("x" * 5_000_000)


def tells(task):
    """What this process is given, and what it can see."""
    (Path(os.environ["TMPDIR"]) / "own").write_text("x")
    ask()
    umask = os.umask(0o077)
    return {
        "reward": 1.0,
        "tmp": os.environ["TMPDIR"],
        "umask": umask,
        "key": os.environ["OPENAI_API_KEY"],
        "marked": os.environ.get("MARK"),
        "status": Path("/proc/self/status").read_text(),
        "readable": [path for path in task.get("paths", ()) if os.access(path, os.R_OK)],
    }


def attacks_the_gateway(task):
    if task.get("calm"):
        ask()
        return 0.25
    url, key = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    for text in ("", "POST /slot", f"{head}Content-Length: 1000000\r\n\r\n{{", f"{head}X: {'y' * 100_000}\r\n\r\n"):
        for _ in range(10):
            connection = socket.create_connection((url.hostname, url.port))
            connection.sendall(text.encode())
            hoard.append(connection)  # and wait
    statuses = Counter()

    def flood():
        for _ in range(20):
            try:
                with urllib.request.urlopen(urllib.request.Request(f"{url.geturl()}/models", headers=bearer)) as answer:
                    statuses[answer.status] += 1
            except urllib.error.HTTPError as error:
                statuses[error.code] += 1

    bearer = {"Authorization": f"Bearer {key}"}
    threads = [threading.Thread(target=flood) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hoard.clear()
    trace = hashlib.sha256(f"trace:{task['victim']}".encode()).hexdigest()[:32]  # as any agent could work it out
    times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    reward = [{"key": "lightningbus.reward", "value": {"doubleValue": -9.0}}]
    span = {"traceId": trace, "spanId": "01" * 8, "name": "stolen", "attributes": reward, **times}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    sent = {**bearer, "Content-Type": "application/json"}
    otlp = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    while True:  # what it held open is let go when it is heard of
        try:
            urllib.request.urlopen(urllib.request.Request(otlp, body, sent)).close()
            break
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(0.05)
    return float(statuses.keys() <= {200, 429} and 429 in statuses)


@unless_calm
def prints_without_end(task):
    """And reaches for what it prints into, which could be others' as well."""
    print("its first words", flush=True)
    try:
        os.ftruncate(2, 0)
        shortened = True
    except OSError:
        shortened = False
    for _ in range(300):
        os.write(2, (b"x" * 99 + b"\n") * 100)
    with Path("/dev/stderr").open("w") as again:
        again.write("its last words\n")
    return {"reward": 1.0, "file": stat.S_ISREG(os.fstat(2).st_mode), "shortened": shortened}


@unless_calm
def leaves_zombies(task):
    for pid in [os.fork() or os._exit(0) for _ in range(120)]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return {"reward": 1.0, "pid": os.getpid()}


def spies(task):
    """Looks into whoever started it, and leaves a daemon."""
    parent = Path(f"/proc/{os.getppid()}")
    opened = []
    for secret in ("environ", "mem", "maps"):
        try:
            (parent / secret).open("rb").close()
            opened.append(secret)
        except PermissionError:
            continue
    return {**leaves_a_daemon({}), "parent": os.getppid(), "opened": opened}


if __name__ == "__main__":
    print(json.dumps(spies({})))


def knocks(task):
    """What it reaches: addresses and sockets by name, its model, and where its spans go."""
    answers = {name: knocked(socket.AF_INET, tuple(address)) for name, address in task["addresses"].items()}
    answers |= {name: knocked(socket.AF_UNIX, path) for name, path in task["sockets"].items()}
    with ask_streamed() as stream:
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    spans = [{"spanId": "01" * 8, "traceId": "01" * 16, "name": "seen", "startTimeUnixNano": "1"}]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    headers = {"x-api-key": os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        telemetry = answer.status
    content = ask().choices[0].message.content
    return {"reward": 1.0, "answers": answers, "asked": content, "streamed": streamed, "telemetry": telemetry}


def ask_streamed():
    return client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}], stream=True)


def knocked(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.settimeout(5)
        try:
            caller.connect(address)
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error))
    return "open"

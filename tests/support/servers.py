"""Real servers for tests, each on a free port of loopback, ready when its context is entered and gone with the test process.

`s3_server` (moto), `nginx_server` (WebDAV, with or without a listing), `redis_server` and `registry_server` (Debian's docker-registry) are
context managers for benchmarks and single tests; the fixtures at the end start one for a whole session. `fault_proxy.py` beside this file
stands in front of any of them and misbehaves on command.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.needs import needs, needs_program

HOST = "127.0.0.1"
READY_SECONDS = 30.0
BUCKET = "precast-tests"

# Runs a program that the kernel ends when the thread that started it is gone, however that went.
_WITH_PARENT = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != parent:
    sys.exit("the test process is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Server:
    """A server that runs. `url` is what a person would write; `folder` where it keeps its content (S3 and redis: nothing)."""

    url: str
    port: int
    folder: Path
    pid: int = 0


def free_port() -> int:
    """A port of loopback that nothing uses at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers(port: int, path: str = "/") -> bool:
    """Whether an HTTP server answers there, with anything."""
    try:
        connection = http.client.HTTPConnection(HOST, port, timeout=2)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return True


@contextmanager
def running(
    command: Callable[[int], list[str]], folder: Path, ready: Callable[[int], bool], environment: dict[str, str] | None = None
) -> Iterator[tuple[int, int]]:
    """Port and process of a server that `command(port)` starts in `folder`, once `ready(port)`; its output goes to `folder/log`.

    A port that somebody else took between the choice and the start costs another try.
    """
    for _ in range(5):
        port = free_port()
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *command(port)],
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_SECONDS
        while process.poll() is None and time.monotonic() < deadline and not ready(port):
            time.sleep(0.02)
        if process.poll() is None and ready(port):
            try:
                yield port, process.pid
            finally:
                stop(process)
            return
        stop(process)
    raise RuntimeError(f"{command(0)[0]} did not start:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server: politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    with ExitStack() as stack:
        folder = given or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="precast-server-", ignore_cleanup_errors=True)))
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
"""Credentials that moto takes (it takes any until `require_keys`); a test sets them in the environment."""


@contextmanager
def s3_server(folder: Path | None = None) -> Iterator[Server]:
    """moto's S3 with the bucket BUCKET, in a process of its own. Its URL carries `endpoint`; credentials: S3_ENVIRONMENT."""
    needs("moto")
    with _folder(folder) as place:
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p"]
        with running(lambda port: [*command, str(port)], place, lambda port: answers(port, "/moto-api/"), S3_ENVIRONMENT) as (port, pid):
            _ask(port, "PUT", f"/{BUCKET}")
            yield Server(f"s3://{BUCKET}?endpoint=http://{HOST}:{port}&region=us-east-1", port, place, pid)


def empty_s3(server: Server) -> None:
    """Forget everything that moto holds but the bucket, which is there again afterwards."""
    _ask(server.port, "POST", "/moto-api/reset")
    _ask(server.port, "PUT", f"/{BUCKET}")


def require_keys(server: Server, strict: bool) -> None:
    """Whether moto refuses access keys that it did not hand out (it hands out none here: so everybody's)."""
    _ask(server.port, "POST", "/moto-api/reset-auth", b"0" if strict else b"inf")


def _ask(port: int, method: str, path: str, body: bytes = b"") -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")


NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
{modules}
events {{ worker_connections 512; }}
http {{
  access_log {access};
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 1g;
  keepalive_timeout 60s;
  default_type application/octet-stream;
  server {{
    listen {host}:{port};
    root {folder}/www;
    location / {{
      dav_methods PUT DELETE MKCOL;
      create_full_put_path on;
      dav_access user:rw;
      {methods}
      {auth}
    }}
  }}
}}
"""
NGINX_MODULE = Path("/usr/lib/nginx/modules/ngx_http_dav_ext_module.so")
NGINX_USER = "builder:wall-5"
"""Who may use an nginx that asks for a password."""


@contextmanager
def nginx_server(
    folder: Path | None = None, *, listing: bool = False, password: bool = False, access_log: bool = False
) -> Iterator[Server]:
    """nginx with WebDAV's PUT, DELETE and MKCOL below `folder/www`; `listing`: and PROPFIND; `password`: for NGINX_USER only."""
    program = needs_program("nginx")
    if listing and not NGINX_MODULE.exists():
        needs_program(f"{NGINX_MODULE} (libnginx-mod-http-dav-ext)")
    with _folder(folder) as place:
        (place / "www").mkdir(exist_ok=True)
        user, _, word = NGINX_USER.partition(":")
        (place / "passwords").write_text(f"{user}:{{PLAIN}}{word}\n")

        def command(port: int) -> list[str]:
            (place / "nginx.conf").write_text(
                NGINX.format(
                    folder=place,
                    host=HOST,
                    port=port,
                    access=f"{place}/access.log" if access_log else "off",
                    modules=f"load_module {NGINX_MODULE};" if listing else "",
                    methods="dav_ext_methods PROPFIND OPTIONS;" if listing else "",
                    auth=f'auth_basic "artifacts"; auth_basic_user_file {place}/passwords;' if password else "",
                )
            )
            return [program, "-e", f"{place}/error.log", "-p", str(place), "-c", str(place / "nginx.conf")]

        with running(command, place, answers) as (port, pid):
            yield Server(f"http://{HOST}:{port}", port, place / "www", pid)


@contextmanager
def redis_server(folder: Path | None = None, *, password: str = "") -> Iterator[Server]:
    """A redis-server without persistence; `password`: asks for it (it is not in the URL)."""
    program = needs_program("redis-server")

    def ready(port: int) -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    with _folder(folder) as place:
        options = ["--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(place)]
        options += ["--requirepass", password] if password else []
        with running(lambda port: [program, "--port", str(port), *options], place, ready) as (port, pid):
            yield Server(f"redis://{HOST}:{port}", port, place, pid)


REGISTRY = """
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/registry}}
  delete: {{enabled: true}}
http: {{addr: "{host}:{port}"}}
"""


@contextmanager
def registry_server(folder: Path | None = None) -> Iterator[Server]:
    """A container registry that keeps its content in `folder/registry`. Its URL is `oci://127.0.0.1:PORT`."""
    program = needs_program("docker-registry")
    with _folder(folder) as place:

        def command(port: int) -> list[str]:
            (place / "config.yml").write_text(REGISTRY.format(folder=place, host=HOST, port=port))
            return [program, "serve", str(place / "config.yml")]

        with running(command, place, lambda port: answers(port, "/v2/")) as (port, pid):
            yield Server(f"oci://{HOST}:{port}", port, place / "registry", pid)


@contextmanager
def slow_proxy(upstream: int, seconds: float = 0.02, *, wire: bool = False) -> Iterator[int]:
    """The port of a proxy process that adds `seconds` to each answer of the server at `upstream`: HTTP, or anything with `wire`."""
    command = [sys.executable, "-m", "tests.support.fault_proxy", str(upstream), "--delay", str(seconds), *(["--wire"] if wire else [])]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy in front of port {upstream} did not start")
        try:
            yield int(line)
        finally:
            process.stdin.close()  # which ends it


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """moto's S3 for the session; what tests put there stays: they use prefixes of their own, or `empty_s3`."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """nginx for the session, which lists nothing."""
    with nginx_server(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture(scope="session")
def nginx_listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """nginx for the session, with PROPFIND."""
    with nginx_server(tmp_path_factory.mktemp("nginx-listing"), listing=True) as server:
        yield server


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """redis-server for the session."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """docker-registry for the session."""
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server

"""Redis behind a password, TLS, Sentinel or a key prefix, and the one that is refused: a cluster."""

import subprocess
from shutil import which

import pytest
from transports import variants
from transports.lab import Lab

from redelivery.testing import processes
from redelivery.testing.servers import RedisServer, redis_binary
from tests.broker.tools import owner, run

PREFIX = "shop:"


class WithPassword(RedisServer):
    """A Redis that asks for a password."""

    def __init__(self, port):
        super().__init__(port, options=("--requirepass", "s3cret"))

    def url(self, db=0):
        return f"redis://:s3cret@127.0.0.1:{self.port}/{db}"


class WithTLS(RedisServer):
    """A Redis that speaks TLS only."""

    def __init__(self, port, folder):
        command = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -keyout key -out cert"
        )
        command = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        self.cert = folder / "cert"
        files = ("--tls-cert-file", str(self.cert), "--tls-key-file", str(folder / "key"))
        files += ("--tls-ca-cert-file", str(self.cert), "--tls-auth-clients", "no")
        super().__init__(port, options=("--port", "0", "--tls-port", str(port), *files))

    def url(self, db=0):
        return f"rediss://127.0.0.1:{self.port}/{db}?ssl_cert_reqs=required&ssl_ca_certs={self.cert}"


@pytest.fixture
def sentinel(tmp_path):
    """Give a Redis and the URL of a Sentinel that watches it."""
    server, port = RedisServer(processes.free_port()), processes.free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {server.port} 1\n"
        "sentinel down-after-milliseconds main 60000\n"
    )
    process = processes.start(
        [redis_binary(), str(config), "--sentinel"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        processes.wait_until(lambda: processes.listens(port), 10, "the Sentinel")
        yield server, f"sentinel://127.0.0.1:{port}"
    finally:
        processes.stop(process)


def works(lab):
    """A message is run; a worker that is killed has its task run by another; nothing is left."""
    lab.start_workers(2)
    task = run(lab, 3)
    owner(lab, task).kill()
    lab.wait(lambda: len(lab.starts(task.message)) == 2, 40, "the task to start elsewhere", lab.workers[0])
    lab.wait(lambda: lab.ends(task.message), 20, "the task to end", lab.workers[0])
    left = lambda: [key for key in lab.client().scan_iter() if b"unacked" in key or b"leases" in key]  # noqa: E731
    lab.wait(lambda: not left(), 20, "nothing to be left", lab.workers[0])


def test_password(lab):
    works(lab(server=WithPassword(processes.free_port())))


@pytest.mark.skipif(not which("openssl"), reason="openssl makes the certificate, and is not installed")
def test_tls(lab, tmp_path):
    server = WithTLS(processes.free_port(), tmp_path)
    try:
        server.start()
    except RuntimeError as error:
        if "tls" in str(error):
            pytest.skip("this Redis server was built without TLS")
        raise
    server.stop()
    works(lab(server=server))


def test_sentinel(lab, sentinel):
    server, url = sentinel
    works(lab(server=server, broker=url, transport_options={"master_name": "main"}))


def test_key_prefix(lab):
    """Every key has it, ours and kombu's, as far as kombu gives it to its own."""
    lab = lab(transport_options={"global_keyprefix": PREFIX})
    works(lab)
    lab.sender.work(1, 0, countdown=60)
    client = lab.client()
    lab.wait(lambda: client.exists(f"{PREFIX}redelivery.leases"), 10, "the lease")
    assert all(key.decode().startswith(PREFIX) for key in client.scan_iter())


def test_cluster_is_refused(tmp_path):
    options = ("--appendonly", "no", "--cluster-enabled", "yes")
    # The nodes of a cluster talk to each other on a port that is higher by 10,000. It, too, is to be below those that a
    # kernel gives to outgoing connections.
    port = next(port for port in iter(processes.free_port, None) if port < 22_768)
    server = RedisServer(port, tmp_path, options)
    server.start()
    try:
        lab = Lab(variants.VARIANTS["ours"], tmp_path / "lab", server=server)
        lab.start_app(lab.directory / "migrate.log", "migrate").wait()
        worker = lab.start_worker()
        processes.wait_until(lambda: not worker.alive(), 60, "the worker to end")
        assert "The broker is a Redis Cluster" in worker.tail() and worker.process.returncode == 3
    finally:
        server.stop()

"""One booted host: systemd in a container of systemd-nspawn, reached over SSH as any server is.

It shares this machine's network, but not its addresses: everything in it listens on a loopback address of its own
(127.x.y.z), so that two hosts use the same ports.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

BOOT_S = 60
STOP_S = 300
SSHD = """\
ListenAddress {address}
Port 22
PasswordAuthentication no
"""


class Machine:
    """A host. `address` is where it listens; `root` its file system; `key` the private key that opens it.

    `base` is the image and `wheels` are the packages that pip finds on it, without a network.
    """

    def __init__(self, base: Path, wheels: Path, folder: Path, name: str, address: str, key: Path):
        self.name, self.address, self.key = name, address, key
        self.folder, self.root = folder, folder / f"root-{name}"
        self.process: subprocess.Popen | None = None
        subprocess.run(["cp", "-a", "--reflink=auto", base, self.root], check=True)
        shutil.copytree(wheels, self.root / "var/wheels", dirs_exist_ok=True)
        (self.root / "etc/hostname").write_text(f"{name}\n")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
        (self.root / "etc/machine-id").write_text("")
        # What the playbooks install lies in the image: apt need not ask a mirror for news.
        os.utime(self.root / "var/lib/apt/lists")
        (self.root / "etc/ssh/sshd_config.d/host.conf").write_text(SSHD.format(address=address))
        subprocess.run(["ssh-keygen", "-A", "-f", self.root], check=True, stdout=subprocess.DEVNULL)
        home = self.root / "home/admin/.ssh"
        home.mkdir()
        shutil.copy(key.with_suffix(".pub"), home / "authorized_keys")
        shutil.chown(home, 1000, 1000)
        shutil.chown(home / "authorized_keys", 1000, 1000)

    def boot(self) -> float:
        """Boot it and wait until it is up; return the seconds that took."""
        begin = time.monotonic()
        command = ["systemd-nspawn", "--quiet", f"--directory={self.root}", f"--machine={self.name}"]
        command += [
            "--register=no",
            "--keep-unit",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
        ]
        log = (self.folder / f"console-{self.name}.log").open("ab")
        self.process = subprocess.Popen(
            [*command, "--boot", "--console=pipe"],
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.wait_until(self._is_up, BOOT_S, "it is up and sshd answers")
        return time.monotonic() - begin

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            said = (self.folder / f"console-{self.name}.log").read_text(errors="replace").strip().splitlines()
            raise RuntimeError(f"{self.name} ended while it booted, and said: {' | '.join(said[-3:])}")
        return subprocess.run([*self.ssh(), "true"], capture_output=True).returncode == 0

    def ssh(self) -> list[str]:
        """The ssh command line that reaches it."""
        options = [
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "LogLevel=ERROR",
        ]
        return ["ssh", *options, "-o", "ConnectTimeout=3", "-i", str(self.key), f"admin@{self.address}"]

    def init(self) -> int:
        """The process id of its init, as this machine counts."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            raise RuntimeError(f"{self.name} has no init")
        return int(children[0])

    def try_run(self, command: str, text: str = "") -> tuple[int, str]:
        """Run a shell command as root inside; return its status and what it printed."""
        try:
            into = ["nsenter", "-t", str(self.init()), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        except (RuntimeError, OSError):
            return 255, ""
        done = subprocess.run([*into, "sh", "-c", command], input=text, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def run(self, command: str, text: str = "") -> str:
        """Run a shell command as root inside; raises RuntimeError with its output when it fails."""
        status, output = self.try_run(command, text)
        if status:
            raise RuntimeError(f"{self.name}: {command!r} ended with {status}: {output}")
        return output.strip()

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit, as `systemctl show` prints them."""
        text = self.run(f"systemctl show {unit} --property={','.join(properties)}")
        return dict(line.split("=", 1) for line in text.splitlines())

    def journal(self, *, unit: str = "*", since: float = 0.0) -> list[dict]:
        """Entries of the journal of units, oldest first."""
        text = self.run(f"journalctl --output=json --no-pager --since=@{since:.3f} --unit='{unit}'")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def wait_until(self, holds, seconds: float, what: str) -> None:
        """Look every fifth of a second; raises TimeoutError that says what did not come."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: not within {seconds:g} s: {what}")
            time.sleep(0.2)

    def shut_down(self, command: str = "systemctl poweroff") -> float:
        """Shut it down as an operator would; return the seconds that took."""
        begin = time.monotonic()
        self.try_run(command)
        self.process.wait(timeout=STOP_S)
        return time.monotonic() - begin

    def destroy(self) -> None:
        """End it, whatever it does, and delete it."""
        if self.process and self.process.poll() is None:
            with contextlib.suppress(RuntimeError, OSError):
                os.kill(self.init(), signal.SIGKILL)  # and with it the kernel ends every process of the host
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

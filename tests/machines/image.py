"""The base image of the test hosts: a bare Debian that boots systemd, with sshd, sudo and Python, and nothing else.

Built once with debootstrap from the apt sources of the machine it runs on, and kept outside of the repository
(HOST_CACHE, by default ~/.cache/service-template-hosts). Packages that the playbooks install are downloaded into
it beforehand, not installed, and so are the wheels of the service: a run needs no network.
"""

import hashlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BOOTSTRAP = "systemd systemd-sysv dbus udev python3 python3-venv sudo openssh-server ca-certificates".split()
#: What the playbooks install: only downloaded here.
DOWNLOADED = "postgresql redis-server python3-venv".split()
TOOLS = {"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container", "ssh": "openssh-client"}
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


class NotHere(Exception):
    """Hosts cannot be booted on this machine; the text says why, and what would help."""


def look_for_tools() -> None:
    """Raise NotHere when something is missing that booting a host needs."""
    if os.geteuid() != 0:
        raise NotHere("hosts are booted as root: run it as root, or with sudo")
    missing = sorted(package for tool, package in TOOLS.items() if not shutil.which(tool))
    if missing:
        raise NotHere(
            f"not installed: {', '.join(missing)} (Debian and Ubuntu: apt-get install {' '.join(missing)})"
        )


def cache() -> Path:
    """The folder that the base image, its wheels and the tools' environment are kept in."""
    return Path(os.environ.get("HOST_CACHE") or Path.home() / ".cache" / "service-template-hosts")


def base(requirements: Path) -> tuple[Path, Path]:
    """Return the root of the base image, and the folder with the wheels of `requirements`; make what is not there."""
    root = cache() / f"base-{_recipe()}"
    if not root.exists():
        _draft(root, _build)
    wheels = cache() / f"wheels-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    if not wheels.exists():
        _draft(wheels, lambda draft: _download(root, requirements, draft))
    return root, wheels


def _recipe() -> str:
    """A name for what the image is made of."""
    source = inspect.getsource(_build) + inspect.getsource(_copy_apt)
    return hashlib.sha256(" ".join([source, *BOOTSTRAP, *DOWNLOADED]).encode()).hexdigest()[:12]


def _draft(target: Path, make: Callable[[Path], None]) -> None:
    """Make a folder beside the target, and move it there when it is complete; nothing is left when that fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        make(draft)
        if not target.exists():  # another run may have been quicker
            draft.rename(target)
    finally:
        _unmount(draft)
        shutil.rmtree(draft, ignore_errors=True)


def _unmount(folder: Path) -> None:
    """Take away what a debootstrap that was ended has mounted below a folder, before that is deleted."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([place for place in places if place.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", place], check=True)


def _build(draft: Path) -> None:
    suite, mirror = _apt_source()
    print(f"Building the base image ({suite}; about two minutes, once) ...", file=sys.stderr, flush=True)
    _run("debootstrap", "--variant=minbase", f"--include={','.join(BOOTSTRAP)}", suite, draft, mirror)
    _copy_apt(draft)
    shutil.copy2(CA_BUNDLE, draft / CA_BUNDLE.relative_to("/"))
    shutil.copy2("/etc/resolv.conf", draft / "etc/resolv.conf")
    _run("chroot", draft, "apt-get", "-qq", "update")
    _run("chroot", draft, "apt-get", "-qq", "-y", "--download-only", "install", *DOWNLOADED)
    (draft / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
    (draft / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /var/wheels\n")
    _run("chroot", draft, "useradd", "--create-home", "--shell", "/bin/bash", "admin")
    (draft / "etc/sudoers.d/admin").write_text("admin ALL=(ALL) NOPASSWD: ALL\n")
    # A host gets its name and its keys when it boots for the first time.
    for key in (draft / "etc/ssh").glob("ssh_host_*"):
        key.unlink()


def _apt_source() -> tuple[str, str]:
    """The suite and the mirror that this machine's own packages come from."""
    release = Path("/etc/os-release").read_text()
    suite = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)[
        "VERSION_CODENAME"
    ].strip('"')
    _run("apt-get", "-qq", "update")
    targets = _run(
        "apt-get", "indextargets", "--format", "$(SUITE)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)", output=True
    )
    for line in targets.splitlines():
        *names, component, uri = line.split("|")
        if suite in names and component == "main":
            return suite, uri
    raise NotHere(f"apt has no source for {suite} main on this machine, from which a host could be built")


def _copy_apt(root: Path) -> None:
    """Give the image the machine's sources and how apt reaches them; not its hooks (some empty the cache)."""
    for name in ("sources.list", "sources.list.d", "auth.conf.d", "keyrings", "trusted.gpg.d"):
        source, target = Path("/etc/apt", name), root / "etc/apt" / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, target)
    reach = _run("apt-config", "dump", "Acquire", output=True)
    (root / "etc/apt/apt.conf.d/99machine").write_text(reach)


def _download(root: Path, requirements: Path, draft: Path) -> None:
    """Fetch the service's packages with the Python of the image: which they are depends on its version."""
    inside = Path("/var") / draft.name
    (root / "var" / draft.name).mkdir()
    shutil.copy2(requirements, root / "var" / draft.name / "requirements.txt")
    shutil.copy2("/etc/resolv.conf", root / "etc/resolv.conf")
    pip = [sys.executable, "-m", "pip", "config", "list"]
    settings = dict(line.split("=", 1) for line in _run(*pip, output=True).splitlines() if "=" in line)
    reach = {"PIP_CERT": str(CA_BUNDLE), "PIP_CONFIG_FILE": "/dev/null"}
    if index := settings.get("global.index-url"):
        reach["PIP_INDEX_URL"] = index.strip("'")
    venv = f"{inside}/pip"
    command = (
        f"python3 -m venv {venv} && {venv}/bin/pip download --quiet --require-hashes --only-binary=:all: "
    )
    command += f"--dest {inside} --requirement {inside}/requirements.txt && rm -rf {venv}"
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    variables = [f"{name}={value}" for name, value in {**proxies, **reach}.items()]
    try:
        _run("chroot", root, "env", *variables, "sh", "-c", command)
        shutil.copytree(root / "var" / draft.name, draft)
    finally:
        shutil.rmtree(root / "var" / draft.name)


def _run(*command, output: bool = False) -> str:
    """Run a program; what it printed is shown only when it fails."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate()
    except BaseException:  # this run has no time left, or was interrupted
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode:
        sys.stderr.write(out + errors)
        raise NotHere(f"`{command[0]} {command[1]}` ended with {process.returncode}; the lines above say why")
    return out if output else ""

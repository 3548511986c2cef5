"""Servers that run on Java, from Maven artifacts."""

from __future__ import annotations

from pathlib import Path

from serviceparts.errors import CannotInstall
from serviceparts.installing import copy_maven_artifacts, java_major, maven_artifacts_are_there, maven_missing
from serviceparts.service import Service


class JavaService(Service):
    """A server whose jars a pom names."""

    POM: Path
    MINIMUM_JAVA = 17

    @property
    def jars(self) -> Path:
        return self.home / "lib"

    def packages(self) -> list[str]:
        java = [] if java_major() >= self.MINIMUM_JAVA else ["default-jre-headless"]
        return java if maven_artifacts_are_there(self.POM, self.jars) else java + maven_missing()

    def install(self) -> None:
        super().install()
        if (found := java_major()) < self.MINIMUM_JAVA:
            raise CannotInstall(f"java is {found}; put a JRE {self.MINIMUM_JAVA} or newer first on the PATH")
        copy_maven_artifacts(self.POM, self.jars)

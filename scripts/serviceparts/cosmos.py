"""The stand-in for Azure Cosmos DB: a server in JavaScript, with its data in memory."""

from __future__ import annotations

import shutil

from serviceparts.installing import completed, must_succeed
from serviceparts.places import CHECKOUT
from serviceparts.processes import answers_on, say
from serviceparts.service import Service


class CosmosDBServer(Service):
    """An account of one region, by https with a certificate of its own."""

    name = "cosmos"
    default_port = 18081
    PACKAGE = "@vercel/cosmosdb-server@1.0.1"

    def packages(self) -> list[str]:
        return [package for package, program in (("nodejs", "node"), ("npm", "npm")) if not shutil.which(program)]

    def install(self) -> None:
        server = self.home / "server"
        if server.is_dir():
            return
        self.install_packages()
        say(f"downloading {self.PACKAGE}")
        with completed(server) as fresh:
            npm = ["npm", "install", "--prefix", str(fresh), "--omit=dev", "--ignore-scripts", "--no-audit"]
            must_succeed([*npm, self.PACKAGE], "the npm registry")

    def prepare(self) -> None:
        """It keeps no data."""

    def command(self) -> list[str]:
        modules = self.home / "server" / "node_modules"
        return ["node", str(CHECKOUT / "scripts" / "cosmosdb-server.js"), str(modules), str(self.port)]

    def ready(self) -> bool:
        return answers_on(self.port)

    def url(self, port: int) -> str:
        return f"https://127.0.0.1:{port}"

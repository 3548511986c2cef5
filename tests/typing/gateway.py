"""The gateway's public names, used as their users do."""

from __future__ import annotations

from ipaddress import ip_network
from typing import assert_type

from retrysafe.gateway import Claims, Gateway, Route, Settings, Timeouts, TrustedHeader, load

route = Route(
    "POST /payments/{id}", key="required", effects="keyed", window="48h", concurrency=5.0, timeouts=Timeouts(read=5)
)
header = TrustedHeader("X-User", (ip_network("10.0.0.0/8"),))
token = Claims(("RS256",), jwks_url="https://id.example/jwks", audience="shop")
settings = Settings("http://127.0.0.1:3000", "sqlite:///keys.db", principal=token, routes=(route,), workers=2)
app = Gateway(settings, admin_port=9464)
assert_type(app.settings, Settings)
assert_type(load("gateway.toml").settings(upstream="http://127.0.0.1:3000"), Settings)

"""The checks of an MQTT broker: what it says of itself when one connects."""

from __future__ import annotations

from retrysafe.messaging.brokers.checks import BrokerExamination
from retrysafe.messaging.brokers.mqtt.connecting import MqttLink, address_of
from retrysafe.protocol.checks import Check, Facts, Severity

_GUIDE = "how-to/mqtt.md"
_WITHIN = 4.0
_DAY = 86400
_LOCAL = ("localhost", "127.0.0.1", "::1")


async def _gather(url: str, _: tuple[str, ...]) -> Facts:
    """Ask for the broker's grants to a session of one day, of which nothing stays."""
    address = address_of(url)
    connection = await MqttLink.open(address, keep=_DAY, patience=_WITHIN)
    told = dict(connection.told)
    await connection.close(_WITHIN, keep=0)
    return {
        "qos": told.get("MaximumQoS", 2),
        "kept": told.get("SessionExpiryInterval", _DAY),
        "retains": bool(told.get("RetainAvailable", 1)),
        "open": not url.startswith("mqtts:") and address.password is not None and address.host not in _LOCAL,
    }


CHECKS = (
    Check(
        "mqtt-qos",
        "Does the broker acknowledge messages?",
        Severity.ERROR,
        "Let it allow QoS 1",
        _GUIDE,
        lambda facts: "It allows QoS 0 only, which loses messages." if facts["qos"] < 1 else None,
    ),
    Check(
        "mqtt-session",
        "Are messages kept while consumers are down?",
        Severity.WARNING,
        "Raise the longest session expiry of the broker. mosquitto tells nobody that it has one: look at its "
        "persistent_client_expiration",
        _GUIDE,
        lambda facts: f"It keeps them for {facts['kept']} seconds only." if facts["kept"] < _DAY else None,
    ),
    Check(
        "mqtt-retain",
        "Can consumers tell each other which session they use?",
        Severity.ERROR,
        "Let the broker retain messages (mosquitto: retain_available true)",
        _GUIDE,
        lambda facts: None if facts["retains"] else "It does not retain messages, so no consumer can start.",
    ),
    Check(
        "mqtt-password",
        "Is the password of the URL a secret on its way?",
        Severity.WARNING,
        "Use mqtts://",
        _GUIDE,
        lambda facts: "The password goes over the network in clear text." if facts["open"] else None,
    ),
)
EXAMINATION = BrokerExamination(CHECKS, _gather)

"""The signatures of each provider: published vectors, their own libraries, and everything that must not pass."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st
from slack_sdk.signature import SignatureVerifier
from standardwebhooks.webhooks import Webhook

from retrysafe import Boundary, ConfigurationError
from retrysafe.webhooks import DeliveryRefused, GitHub, Head, Known, Receiver, Scheme, Slack, StandardWebhooks, Stripe
from retrysafe.webhooks.deliveries import document_of, event_of, key_of
from retrysafe.webhooks.signatures import matches
from tests.tables import each_row
from tests.webhooks.providers import GITHUB, NOW, PROVIDERS, SLACK, STANDARD, STRIPE, Delivery, Provider, tampered


def verify(scheme: Scheme, delivery: Delivery, now: float = NOW) -> int | None:
    return scheme.verify(Head(delivery.headers), delivery.body, now)


def refusal(scheme: Scheme, delivery: Delivery, now: float = NOW) -> str:
    with pytest.raises(DeliveryRefused) as caught:
        verify(scheme, delivery, now)
    return caught.value.reason


def identified(scheme: Scheme, delivery: Delivery) -> Known:
    head = Head(delivery.headers)
    known = scheme.identify(head, delivery.body, document_of(head, delivery.body, scheme.media_types))
    assert isinstance(known, Known)
    return known


# ------------------------------------------------------------ vectors that the providers publish


def test_the_vector_of_standard_webhooks() -> None:
    """From the specification's reference libraries."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    scheme = StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert verify(scheme, Delivery(headers, b'{"test": 2432232314}'), 1614265330) == 1614265330


def test_the_vector_of_github() -> None:
    """From "Validating webhook deliveries"."""
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    delivery = Delivery({"X-Hub-Signature-256": f"sha256={digest}"}, b"Hello, World!")
    assert verify(GitHub("It's a Secret to Everybody"), delivery) is None


def test_the_vector_of_slack() -> None:
    """From "Verifying requests from Slack"."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
        b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    scheme, delivery = Slack("8f742231b10e8888abcd99yyyzzz85a5"), Delivery(headers, body)
    assert verify(scheme, delivery, 1531420618) == 1531420618
    known = identified(scheme, delivery)
    assert known == Known("398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c", "/webhook-collect")


# ------------------------------------------------------------ the providers' own libraries


def test_standard_webhooks_own_library_signs_what_we_verify() -> None:
    body = STANDARD.payload
    signed = Webhook(STANDARD.secrets[0]).sign("msg_1", datetime.fromtimestamp(NOW, UTC), body.decode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": signed}
    assert verify(STANDARD.receiver_scheme(), Delivery(headers, body)) == NOW
    assert headers == STANDARD.sign(STANDARD.secrets[0], "msg_1", body, NOW)


def test_stripes_own_library_signs_what_we_verify_and_takes_what_is_signed_here() -> None:
    body = STRIPE.payload
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), STRIPE.secrets[0], NOW)
    assert verify(STRIPE.receiver_scheme(), Delivery({"Stripe-Signature": header}, body)) == NOW
    delivery = STRIPE.deliver()
    assert stripe.WebhookSignature.verify_header(delivery.body, delivery.headers["Stripe-Signature"], STRIPE.secrets[0])


def test_slacks_own_library_signs_what_we_verify() -> None:
    delivery = SLACK.deliver()
    verifier = SignatureVerifier(SLACK.secrets[0])
    assert verifier.generate_signature(timestamp=str(NOW), body=delivery.body) == delivery.headers["X-Slack-Signature"]
    assert verify(SLACK.receiver_scheme(), delivery) == NOW


# ------------------------------------------------------------ every provider


def test_a_genuine_delivery_is_identified(provider: Provider) -> None:
    scheme, delivery = provider.receiver_scheme(), provider.deliver()
    assert verify(scheme, delivery) == (NOW if provider.signs_time else None)
    known = identified(scheme, delivery)
    assert (known.id, known.type) == (provider.event_id, provider.type)


def test_header_names_have_no_case(provider: Provider) -> None:
    delivery = provider.deliver()
    shouted = Delivery({name.upper(): value for name, value in delivery.headers.items()}, delivery.body)
    verify(provider.receiver_scheme(), shouted)


def test_a_tampered_body_is_refused(provider: Provider) -> None:
    assert refusal(provider.receiver_scheme(), tampered(provider.deliver())) == "signature-invalid"
    longer = Delivery(provider.deliver().headers, provider.payload + b" ")
    assert refusal(provider.receiver_scheme(), longer) == "signature-invalid"


def test_another_secret_is_refused(provider: Provider) -> None:
    assert refusal(provider.receiver_scheme(), provider.deliver(secret=provider.secrets[1])) == "signature-invalid"


def test_during_a_rotation_both_secrets_pass(provider: Provider) -> None:
    scheme = provider.scheme(provider.secrets)
    for secret in provider.secrets:
        verify(scheme, provider.deliver(secret=secret))


@each_row("name", ["standard", "stripe", "slack"])
@each_row("away", [-301, 301])
def test_a_time_that_is_far_away_is_refused(name: str, away: int) -> None:
    scheme, delivery = PROVIDERS[name].receiver_scheme(), PROVIDERS[name].deliver()
    assert refusal(scheme, delivery, NOW + away) == "timestamp-outside"
    verify(scheme, delivery, NOW + (300 if away > 0 else -300))
    verify(PROVIDERS[name].receiver_scheme(tolerance="10m"), delivery, NOW + away)


@each_row("name", ["standard", "stripe", "slack"])
@each_row("time", [f"+{NOW}", f" {NOW}", f"{NOW}.5", "1_700_000_000", "١٧٠٠٠٠٠٠٠٠", "-1", "9" * 400, "nan"])
def test_a_time_is_digits_alone_even_if_it_is_signed(name: str, time: Any) -> None:
    provider = PROVIDERS[name]
    body = provider.payload
    headers = provider.sign(provider.secrets[0], provider.event_id, body, time)
    with pytest.raises(DeliveryRefused) as caught:
        provider.receiver_scheme().verify(Head(headers), body, NOW)
    assert caught.value.reason in ("timestamp-invalid", "signature-invalid", "field-ambiguous")


def test_no_signed_header_is_dispensable(provider: Provider) -> None:
    delivery = provider.deliver()
    signed = {
        "standard": ["webhook-id", "webhook-timestamp", "webhook-signature"],
        "stripe": ["Stripe-Signature"],
        "github": ["X-Hub-Signature-256"],
        "slack": ["X-Slack-Request-Timestamp", "X-Slack-Signature"],
    }
    for name in signed[provider.name]:
        for value in (None, "", " "):
            rest = {other: given for other, given in delivery.headers.items() if other != name}
            headers = rest if value is None else {**rest, name: value}
            assert refusal(provider.receiver_scheme(), Delivery(headers, delivery.body)) == "signature-missing"


def test_a_signature_that_came_twice_is_refused(provider: Provider) -> None:
    delivery = provider.deliver()
    for name, value in delivery.headers.items():
        if "ignature" in name and name != "X-Hub-Signature":
            with pytest.raises(DeliveryRefused, match="header-repeated"):
                provider.receiver_scheme().verify(Head([*delivery.headers.items(), (name, value)]), delivery.body, NOW)


KNOWN_TO_ALL: list[Any] = ["", b"", [], ["", "x"], " ", "whsec_", "whsec_ ", b"whsec_", b"\0", b"\0" * 32, "whsec_\0"]
NO_SECRETS: list[Any] = [None, [None], ["x", None], bytearray(b"x"), 7, "\ud800"]


@each_row("secrets", [*KNOWN_TO_ALL, *NO_SECRETS])
def test_empty_secrets_are_refused_when_the_scheme_is_made(provider: Provider, secrets: Any) -> None:
    with pytest.raises(ConfigurationError, match="secrets="):
        provider.scheme(secrets)


@given(value=st.text(), name=st.sampled_from(sorted(PROVIDERS)), field=st.integers(0, 5), body=st.binary())
def test_any_other_input_is_refused_and_nothing_else_is_raised(name: str, field: int, value: str, body: bytes) -> None:
    provider = PROVIDERS[name]
    headers = dict(provider.deliver().headers)
    chosen = [header for header in headers if "ignature" in header or "imestamp" in header or header == "webhook-id"]
    replaced = chosen[field % len(chosen)]
    if headers[replaced] == value.strip() or replaced == "X-Hub-Signature":
        return
    headers[replaced] = value
    with pytest.raises(DeliveryRefused):
        verify(provider.receiver_scheme(), Delivery(headers, provider.payload))
    with pytest.raises(DeliveryRefused):
        verify(provider.receiver_scheme(), Delivery(dict(provider.deliver().headers), body))


def test_comparisons_look_at_every_pair() -> None:
    assert matches([b"a", b"b"], ["x", "b"])
    assert not matches([b"a"], ["ä", "", "aa", "\ud800"])
    assert not matches([], ["a"])
    assert not matches([b"a"], [])


# ------------------------------------------------------------ one provider


def test_standard_webhooks_finds_its_signature_among_others() -> None:
    delivery = STANDARD.deliver()
    good = delivery.headers["webhook-signature"]
    for header in (f"v1a,xyz {good}", f"{good} v2,abc", f"v1,AAAA {good}", f"nonsense {good} ,"):
        verify(STANDARD.receiver_scheme(), Delivery({**delivery.headers, "webhook-signature": header}, delivery.body))
    other_version = good.replace("v1,", "v1a,")
    changed = Delivery({**delivery.headers, "webhook-signature": other_version}, delivery.body)
    assert refusal(STANDARD.receiver_scheme(), changed) == "signature-invalid"


@each_row("header", ["webhook-id", "webhook-timestamp"])
def test_standard_webhooks_signs_the_id_and_the_time(header: str) -> None:
    delivery = STANDARD.deliver()
    changed = {**delivery.headers, header: delivery.headers[header] + "1"}
    assert refusal(STANDARD.receiver_scheme(), Delivery(changed, delivery.body)) == "signature-invalid"


def test_standard_webhooks_under_the_names_of_svix() -> None:
    delivery = STANDARD.deliver()
    renamed = {name.replace("webhook-", "svix-"): value for name, value in delivery.headers.items()}
    scheme = StandardWebhooks(STANDARD.secrets[0], headers="svix")
    assert verify(scheme, Delivery(renamed, delivery.body)) == NOW
    assert refusal(scheme, delivery) == "signature-missing"


@each_row("secret", ["whsec_", "whsec_!!!", "not base64!", b"whsec_", "whsec_AAAAAAAA"])
def test_a_secret_of_standard_webhooks_is_base64(secret: Any) -> None:
    with pytest.raises(ConfigurationError, match="secrets="):
        StandardWebhooks(secret)


def test_a_secret_of_standard_webhooks_may_lack_its_prefix_and_padding_or_be_bytes() -> None:
    delivery = STANDARD.deliver()
    bare = STANDARD.secrets[0].removeprefix("whsec_")
    import base64

    for secret in (bare, bare.rstrip("="), base64.b64decode(bare), STANDARD.secrets[0].encode()):
        verify(StandardWebhooks(secret), delivery)


def test_stripe_takes_any_of_its_v1_signatures_and_no_v0() -> None:
    delivery = STRIPE.deliver()
    header = delivery.headers["Stripe-Signature"]
    good = header.partition("v1=")[2][:64]
    assert verify(
        STRIPE.receiver_scheme(), Delivery({"Stripe-Signature": f"t={NOW},v1={'0' * 64},v1={good}"}, delivery.body)
    )
    for bad in (f"t={NOW},v0={good}", f"t={NOW},t={NOW},v1={good}", f"v1={good}", f"t={NOW}", "t", "=,="):
        assert (
            refusal(STRIPE.receiver_scheme(), Delivery({"Stripe-Signature": bad}, delivery.body)) == "signature-missing"
        )


def test_stripes_deliveries_of_one_event_may_differ_in_their_bodies() -> None:
    scheme, body = STRIPE.receiver_scheme(), STRIPE.payload
    later = body.replace(b'"pending_webhooks": 2', b'"pending_webhooks": 1')
    assert later != body
    events = []
    for one in (body, later):
        delivery = STRIPE.deliver(body=one)
        events.append(event_of("stripe", identified(scheme, delivery), json.loads(one), one, NOW))
    assert (events[0].key, events[0].payload) == (events[1].key, events[1].payload)


def test_github_identifies_by_what_is_signed() -> None:
    scheme, delivery = GITHUB.receiver_scheme(), GITHUB.deliver()
    forged = Delivery({**delivery.headers, "X-GitHub-Delivery": "forged"}, delivery.body)
    assert identified(scheme, forged).key == identified(scheme, delivery).key
    assert identified(scheme, forged).payload != identified(scheme, delivery).payload
    both = GitHub(GITHUB.secrets[0], identity="delivery")
    assert identified(both, forged).key != identified(both, delivery).key
    other = GITHUB.deliver(body=delivery.body.replace(b"Found", b"Fixed"))
    assert identified(both, other).key != identified(both, delivery).key
    with pytest.raises(ConfigurationError, match="identity="):
        GitHub("x", identity="header")  # type: ignore[arg-type]


def test_github_needs_no_sha1() -> None:
    delivery = GITHUB.deliver()
    headers = {name: value for name, value in delivery.headers.items() if name != "X-Hub-Signature-256"}
    assert refusal(GITHUB.receiver_scheme(), Delivery(headers, delivery.body)) == "signature-missing"


def test_github_and_slack_send_forms_too() -> None:
    from urllib.parse import urlencode

    form = urlencode({"payload": GITHUB.payload.decode()}).encode()
    delivery = GITHUB.deliver(body=form)
    head = Head({**delivery.headers, "Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})
    for scheme in (GITHUB.receiver_scheme(), SLACK.receiver_scheme()):
        assert document_of(head, form, scheme.media_types)["action"] == "opened"
        with pytest.raises(DeliveryRefused, match="payload-invalid"):
            document_of(head, b"payload=%7B", scheme.media_types)


@each_row(
    "media_type",
    ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ";", "application/xml"],
)
def test_a_provider_that_sends_json_alone_has_no_other_document(media_type: str) -> None:
    form = b"payload=%7B%22type%22%3A%22invoice.paid%22%7D"
    for scheme in (STANDARD.receiver_scheme(), STRIPE.receiver_scheme()):
        with pytest.raises(DeliveryRefused, match="media-type-unsupported") as caught:
            document_of(Head({"content-type": media_type}), form, scheme.media_types)
        assert caught.value.status == 415


@each_row("media_type", ["", "application/json; charset=utf-8", "Application/CloudEvents+JSON"])
def test_json_has_several_names(media_type: str) -> None:
    for provider in PROVIDERS.values():
        scheme = provider.receiver_scheme()
        assert document_of(Head({"content-type": media_type}), b'{"a":1}', scheme.media_types) == {"a": 1}


# ------------------------------------------------------------ what is signed can be cut in one way


def test_a_captured_delivery_cannot_be_cut_elsewhere_into_another_event() -> None:
    """A stranger's text in the body of an old delivery would become an id, a fresh time and a body of its own."""
    old = NOW - 86400
    body = json.dumps({"type": "comment.created", "note": f'x.{NOW}.{{"type":"invoice.paid"}}'}).encode()
    captured = STANDARD.deliver(id="msg_1", now=old, body=body)
    signed = f"msg_1.{old}.".encode() + body
    id, _, rest = signed.partition(f".{NOW}.".encode())
    forged = Delivery({**captured.headers, "webhook-id": id.decode(), "webhook-timestamp": str(NOW)}, rest)
    assert refusal(STANDARD.receiver_scheme(), forged) == "field-ambiguous"


@each_row(
    ("provider", "id", "time"),
    [(STANDARD, "a.b", NOW), (STANDARD, "a", f"{NOW}.1"), (STRIPE, "a", f"{NOW}.1"), (SLACK, "a", f"{NOW}:1")],
)
def test_no_signed_field_contains_what_separates_it(provider: Provider, id: str, time: Any) -> None:
    body = b'{"id":"evt_1"}'
    headers = provider.sign(provider.secrets[0], id, body, time)
    assert refusal(provider.receiver_scheme(), Delivery(headers, body)) == "field-ambiguous"


def test_a_delivery_of_github_has_one_identity() -> None:
    scheme = GitHub(GITHUB.secrets[0], identity="delivery")
    delivery = Delivery({"X-GitHub-Delivery": "1\n{}", "X-GitHub-Event": "push"}, b"{}")
    with pytest.raises(DeliveryRefused, match="field-ambiguous"):
        identified(scheme, delivery)


def test_a_content_type_which_is_not_signed_makes_no_other_document_of_a_signed_body() -> None:
    """Read as a form, an event of Slack's would have no id, and so be another event."""
    scheme, delivery = SLACK.receiver_scheme(), SLACK.deliver()
    forged = Delivery({**delivery.headers, "Content-Type": "application/x-www-form-urlencoded"}, delivery.body)
    assert verify(scheme, forged) == NOW
    assert identified(scheme, forged) == identified(scheme, delivery)


def test_slack_events_without_an_id_are_told_apart_by_their_signed_body() -> None:
    body = b'{"token":"x","type":"app_rate_limited","team_id":"T1","minute_rate_limited":1518467820,"api_app_id":"A1"}'
    known = identified(SLACK.receiver_scheme(), SLACK.deliver(body=body))
    assert known.type == "app_rate_limited"
    assert known.id.startswith("sha256:")
    other = identified(SLACK.receiver_scheme(), SLACK.deliver(body=body.replace(b"820", b"880")))
    assert other.id != known.id


@each_row("body", [b"", b"[]", b'"x"', b"1", b"{", b'{"a":NaN}', b"\xff", b"[" * 100_000])
def test_a_signed_body_that_is_no_document_is_refused(body: bytes) -> None:
    with pytest.raises(DeliveryRefused, match="payload-invalid"):
        document_of(Head({}), body)


@each_row("provider", [STANDARD, STRIPE, SLACK], ids=lambda provider: provider.name)
def test_half_a_character_in_what_is_signed_is_refused(provider: Provider) -> None:
    """JSON can write it, and no store can keep it: the receiver would answer 500 for as long as it is delivered."""
    receiver = Receiver(Boundary("b", store="memory://", window="7d"), provider.receiver_scheme(), clock=lambda: NOW)
    delivery = provider.deliver(body=b'{"id":"evt_1","event_id":"Ev1","type":"\\ud800"}')
    with pytest.raises(DeliveryRefused, match="payload-invalid"):
        receiver.verify(delivery.headers, delivery.body)
    assert receiver.receive(delivery.headers, delivery.body).status == 400


def test_an_event_without_an_id_is_refused() -> None:
    with pytest.raises(DeliveryRefused, match="id-missing"):
        event_of("stripe", identified(Stripe("x"), Delivery({}, b'{"type":"a","id":7}')), {}, b"", None)


@given(one=st.text(min_size=1), other=st.text(min_size=1))
def test_any_id_becomes_a_key_of_its_own(one: str, other: str) -> None:
    from retrysafe.protocol import keys

    assert keys.parse(key_of(one))
    assert (key_of(one) == key_of(other)) == (one == other)
    assert key_of(key_of("a" * 300)) != key_of("a" * 300)

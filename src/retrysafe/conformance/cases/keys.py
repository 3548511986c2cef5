"""K: which key a request carries, and whose it is."""

from __future__ import annotations

from uuid import uuid4

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import BODY, FixtureAct, Inapplicable, ServerHarness, is_marked
from retrysafe.conformance.wire import Silent, head


@case("K1")
def quotes_and_parameters(harness: ServerHarness) -> None:
    first = harness.first(lines=[f'"{harness.key}"'])
    harness.expect_replay(first, lines=[f'"{harness.key}";a=1; b="x"'])


@case("K2")
def bare_form(harness: ServerHarness) -> None:
    if harness.capabilities.choice("key_syntax") == "strict":
        harness.expect_refusal(400, "the bare form", lines=[harness.key])
        return
    first = harness.first(lines=[harness.key])
    harness.expect_replay(first, lines=[f'"{harness.key}"'])


@case("K3")
def several_keys(harness: ServerHarness) -> None:
    one, other = str(uuid4()), str(uuid4())
    quoted = harness.quote
    harness.expect_refusal(400, "two field lines with different keys", lines=[quoted(one), quoted(other)])
    harness.expect_refusal(400, "two field lines with the same key", lines=[quoted(one), quoted(one)])
    harness.expect_refusal(400, "a bare value with a comma", lines=[f"{one}, {other}"])


@case("K4")
def keys_that_are_none(harness: ServerHarness) -> None:
    quoted = harness.quote
    bare = harness.capabilities.choice("key_syntax") == "bare"
    harness.expect_refusal(400, "an empty key line", lines=[""])
    if not bare:
        harness.expect_refusal(400, "an empty quoted key", lines=['""'])
    longest = harness.key + "x" * (255 - len(harness.key))
    harness.expect_refusal(400, "a key of 256 characters", lines=[quoted(longest + "x")])
    harness.expect_refusal(400, "a key outside ASCII", lines=[quoted(f"{harness.key}ä")])
    if harness.capabilities.choice("key_policy") != "uuid":
        harness.first(lines=[quoted(longest)])
    _expect_refusal_before_the_body(harness, quoted(longest + "x"))


def _expect_refusal_before_the_body(harness: ServerHarness, line: str) -> None:
    """Send the head alone, and see that the answer doesn't wait for the body."""
    request = harness.request(FixtureAct(body=b""), lines=[line])
    fields = [("Host", harness.to.authority), *request.fields, ("Content-Length", str(len(BODY)))]
    wanted = "400 before the body was sent"
    with harness.connection() as connection:
        connection.send(head("POST", request.target, fields))
        try:
            response = connection.receive()
        except Silent:
            harness.note(request, "the head alone, and no answer")
            harness.expect(False, wanted, f"no answer within {harness.timeout:g} s")
            return
    harness.expect(response.status == 400, wanted, response)


@case("K5")
def strings_malformed(harness: ServerHarness) -> None:
    for line in (f'"{harness.key}', f'"{harness.key}\\n"', f'"{harness.key}"x', f'"{harness.key}" "x"'):
        harness.expect_refusal(400, f"the malformed string {line}", lines=[line])


@case("K6")
def no_key(harness: ServerHarness) -> None:
    if harness.capabilities.choice("required"):
        harness.expect_refusal(400, "a request without a key", key=None)
        return
    for times in (1, 2):
        response = harness.act(key=None, status=201)
        harness.expect(
            response.status == 201 and not is_marked(response), "a request without a key to pass through", response
        )
        harness.ran(times, "a request without a key to run each time", response)


@case("K7")
def methods(harness: ServerHarness) -> None:
    for method in ("GET", "HEAD"):
        id = uuid4().hex
        for times in (1, 2):
            response = harness.act(FixtureAct(method, body=b""), id=id, text="safe")
            harness.expect(response.status == 200 and not is_marked(response), f"{method} to be untouched", response)
            ran = harness.executions(id)
            harness.expect(ran == times, f"{method} to run each time: {times} in all", f"{ran} executions")
    for method in harness.capabilities.choice("methods"):
        id, key = uuid4().hex, str(uuid4())
        first = harness.first(FixtureAct(method), id=id, key=key)
        harness.expect_replay(first, FixtureAct(method), id=id, key=key)


@case("K8")
def principals(harness: ServerHarness) -> None:
    harness.first(FixtureAct(who="alice.1"), text='{"for":"alice"}')
    bobs = harness.first(FixtureAct(who="bob.1"), text='{"for":"bob"}')
    harness.expect_replay(bobs, FixtureAct(who="bob.1"), times=2)
    harness.expect_refusal(403, "a request without a principal", FixtureAct(who=None), key=str(uuid4()), id=uuid4().hex)


@case("K9")
def token_refresh(harness: ServerHarness) -> None:
    first = harness.first(FixtureAct(who="alice.1"))
    harness.expect_replay(first, FixtureAct(who="alice.2"))


@case("K11")
def guessable_keys(harness: ServerHarness) -> None:
    policy = harness.capabilities.choice("key_policy")
    if policy == "any":
        raise Inapplicable("the server takes any key, as it declares")
    harness.first()
    for key in ("1", "1024", "2026-05-01", "abc", *(["not-a-uuid-but-quite-long-0b6f2d"] if policy == "uuid" else [])):
        harness.expect_refusal(400, f"the guessable key {key}", key=key)

"""K: which key a request carries, and whose it is."""

from __future__ import annotations

from uuid import uuid4

from retrysafe.conformance.bench import BODY, Bench, Call, Inapplicable, is_marked
from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.wire import Silent, head


@case("K1")
def quotes_and_parameters(bench: Bench) -> None:
    first = bench.first(lines=[f'"{bench.key}"'])
    bench.expect_replay(first, lines=[f'"{bench.key}";a=1; b="x"'])


@case("K2")
def bare_form(bench: Bench) -> None:
    if bench.capabilities.choice("key_syntax") == "strict":
        bench.expect_refusal(400, "the bare form", lines=[bench.key])
        return
    first = bench.first(lines=[bench.key])
    bench.expect_replay(first, lines=[f'"{bench.key}"'])


@case("K3")
def several_keys(bench: Bench) -> None:
    one, other = str(uuid4()), str(uuid4())
    quoted = bench.quote
    bench.expect_refusal(400, "two field lines with different keys", lines=[quoted(one), quoted(other)])
    bench.expect_refusal(400, "two field lines with the same key", lines=[quoted(one), quoted(one)])
    bench.expect_refusal(400, "a bare value with a comma", lines=[f"{one}, {other}"])


@case("K4")
def keys_that_are_none(bench: Bench) -> None:
    quoted = bench.quote
    bare = bench.capabilities.choice("key_syntax") == "bare"
    bench.expect_refusal(400, "an empty key line", lines=[""])
    if not bare:
        bench.expect_refusal(400, "an empty quoted key", lines=['""'])
    longest = bench.key + "x" * (255 - len(bench.key))
    bench.expect_refusal(400, "a key of 256 characters", lines=[quoted(longest + "x")])
    bench.expect_refusal(400, "a key outside ASCII", lines=[quoted(f"{bench.key}ä")])
    if bench.capabilities.choice("key_policy") != "uuid":
        bench.first(lines=[quoted(longest)])
    _expect_refusal_before_the_body(bench, quoted(longest + "x"))


def _expect_refusal_before_the_body(bench: Bench, line: str) -> None:
    """Send the head alone, and see that the answer doesn't wait for the body."""
    request = bench.request(Call(body=b""), lines=[line])
    fields = [("Host", bench.to.authority), *request.fields, ("Content-Length", str(len(BODY)))]
    wanted = "400 before the body was sent"
    with bench.connection() as connection:
        connection.send(head("POST", request.target, fields))
        try:
            response = connection.receive()
        except Silent:
            bench.note(request, "the head alone, and no answer")
            bench.expect(False, wanted, f"no answer within {bench.timeout:g} s")
            return
    bench.expect(response.status == 400, wanted, response)


@case("K5")
def strings_malformed(bench: Bench) -> None:
    for line in (f'"{bench.key}', f'"{bench.key}\\n"', f'"{bench.key}"x', f'"{bench.key}" "x"'):
        bench.expect_refusal(400, f"the malformed string {line}", lines=[line])


@case("K6")
def no_key(bench: Bench) -> None:
    if bench.capabilities.choice("required"):
        bench.expect_refusal(400, "a request without a key", key=None)
        return
    for times in (1, 2):
        response = bench.act(key=None, status=201)
        bench.expect(
            response.status == 201 and not is_marked(response), "a request without a key to pass through", response
        )
        bench.ran(times, "a request without a key to run each time", response)


@case("K7")
def methods(bench: Bench) -> None:
    for method in ("GET", "HEAD"):
        id = uuid4().hex
        for times in (1, 2):
            response = bench.act(Call(method, body=b""), id=id, text="safe")
            bench.expect(response.status == 200 and not is_marked(response), f"{method} to be untouched", response)
            ran = bench.executions(id)
            bench.expect(ran == times, f"{method} to run each time: {times} in all", f"{ran} executions")
    for method in bench.capabilities.choice("methods"):
        id, key = uuid4().hex, str(uuid4())
        first = bench.first(Call(method), id=id, key=key)
        bench.expect_replay(first, Call(method), id=id, key=key)


@case("K8")
def principals(bench: Bench) -> None:
    bench.first(Call(who="alice.1"), text='{"for":"alice"}')
    bobs = bench.first(Call(who="bob.1"), text='{"for":"bob"}')
    bench.expect_replay(bobs, Call(who="bob.1"), times=2)
    bench.expect_refusal(403, "a request without a principal", Call(who=None), key=str(uuid4()), id=uuid4().hex)


@case("K9")
def token_refresh(bench: Bench) -> None:
    first = bench.first(Call(who="alice.1"))
    bench.expect_replay(first, Call(who="alice.2"))


@case("K11")
def guessable_keys(bench: Bench) -> None:
    policy = bench.capabilities.choice("key_policy")
    if policy == "any":
        raise Inapplicable("the server takes any key, as it declares")
    bench.first()
    for key in ("1", "1024", "2026-05-01", "abc", *(["not-a-uuid-but-quite-long-0b6f2d"] if policy == "uuid" else [])):
        bench.expect_refusal(400, f"the guessable key {key}", key=key)

"""HTTP: servers, clients, the gateway, webhooks."""

from __future__ import annotations

from tests.proving.breaks import Break
from tests.proving.breaks.mutations import always, first, instead, never, skipping, swapped, unwrapped, without

ASGI = "tests/http/test_asgi.py"
DJANGO = "tests/http/test_django.py"
DOUBT = "tests/http/client/test_doubt.py"
DRF = "tests/http/test_drf.py"
DURABLE = "tests/http/client/test_durable.py"
EXCHANGE = "tests/http/test_exchange.py"
FAILURES = "tests/gateway/test_failures.py"
FASTAPI = "tests/http/test_fastapi.py"
FLASK = "tests/http/test_flask.py"
GUARD = "tests/http/test_guard.py"
KEYS = "tests/http/test_keys.py"
LAMBDA = "tests/tasks/test_lambda.py"
MESSAGES = "tests/http/test_messages.py"
NESTED = "tests/http/test_nested.py"
PRINCIPALS = "tests/gateway/test_principals.py"
PROTOCOL = "tests/gateway/test_protocol.py"
PROXYING = "tests/gateway/test_proxying.py"
RECEIVER = "tests/webhooks/test_receiver.py"
ROUTED = "tests/http/test_routed.py"
RULES = "tests/http/client/test_rules.py"
SCHEMES = "tests/webhooks/test_schemes.py"
WSGI = "tests/http/test_wsgi.py"

BREAKS: list[Break] = [
    Break(
        "a session's hooks of a commit are called for the claim's savepoint",
        "backends.sql.drivers.sqlalchemy:_MutedEvents.__getattr__",
        never("before_commit"),
        (f"{FASTAPI}::test_hooks_of_a_commit_are_called_once_and_for_work_that_is_left[sqlite]",),
        rows=(4,),
    ),
    Break(
        "Lambda: a client is given another one's answer",
        "http.api_gateway:_serve",
        first("event = {**event, 'requestContext': {'user': 'ann'}}", "find"),
        (f"{LAMBDA}::test_a_request_has_the_contract_of_http",),
        rows=(74,),
    ),
    Break(
        "Django: a transaction around the claim commits after the record",
        "http.django_serving:GuardedRequest.begin",
        skipping("refuse_open_transactions"),
        (f"{DJANGO}::test_a_transaction_around_the_claim_is_refused",),
        rows=(4,),
    ),
    Break(
        "a request that the gateway may have sent leaves its key free",
        "gateway.app:ProxiedRequest._record_failure",
        always("sent", at=1),
        (f"{FAILURES}::test_an_answer_that_is_lost_leaves_the_key_as_the_effects_want_it[cut-external]",),
        rows=(5,),
    ),
    Break(
        "the end of a response leaves before it is recorded",
        "http.asgi:AsgiExchange.send",
        swapped("settle", "_release"),
        (f"{ASGI}::test_r8_the_record_is_there_before_the_client_can_see_the_end",),
        rows=(6,),
    ),
    Break(
        "a response counts before its last byte",
        "http.client.bodies:is_read_whole",
        first("return False"),
        (f"{RULES}::test_c05_an_ambiguous_failure_is_retried_where_the_key_is_honoured[httpx-cuts_body]",),
        rows=(6,),
    ),
    Break(
        "a response whose client has left is not recorded",
        "http.chunks:Chunks.close",
        never("settled", at=2),
        (f"{EXCHANGE}::test_r17_a_response_that_is_closed_early_is_drained_and_recorded",),
        rows=(6,),
    ),
    Break(
        "the id of GitHub's delivery, which is not signed, identifies its event",
        "webhooks.providers:GitHub.identify",
        instead("identity", "delivery"),
        (f"{RECEIVER}::test_a_github_delivery_under_a_forged_id_is_refused_loudly",),
        rows=(16,),
    ),
    Break(
        "a body that breaks off counts as whole, in ASGI",
        "http.asgi:read_body",
        instead(False, "True", at=0),
        (f"{ASGI}::test_r17_a_client_that_left_before_the_end_of_its_body[sqlite]",),
        rows=(19,),
    ),
    Break(
        "a body that breaks off counts as whole, in WSGI",
        "http.wsgi:Input._fetch",
        never("chunk", "_left"),
        (f"{WSGI}::test_f19_a_body_that_breaks_off_claims_nothing[4]",),
        rows=(19,),
    ),
    Break(
        "the application's 400 is not stored",
        "http.policy:PASSING",
        instead(401, "400"),
        (f"{ASGI}::test_r25_json_that_cannot_be_parsed[memory]",),
        rows=(65,),
    ),
    Break(
        "a body is read however large it is",
        "http.bodies:Body.add",
        never("_limit"),
        (f"{ASGI}::test_r12_a_request_over_the_limit_is_refused[memory]",),
        rows=(66,),
    ),
    Break(
        "the gateway sends the client's own key on",
        "gateway.app:ProxiedRequest._forward",
        instead("key_field()", "None"),
        (f"{PROXYING}::test_the_key_that_is_sent_on_is_derived",),
        rows=(74,),
    ),
    Break(
        "a token chooses by which algorithm it is verified",
        "gateway.principals:TokenFinder.__call__",
        instead("list()", "[jwt.get_unverified_header(token)['alg']]"),
        (f"{PRINCIPALS}::test_k8_a_token_that_is_not_right_in_everything_is_nobodys",),
        rows=(74,),
    ),
    Break(
        "every client can say whose request it is",
        "gateway.settings:TrustedHeader.trusts",
        instead("any()", "True"),
        (f"{PRINCIPALS}::test_k8_a_header_is_believed_of_trusted_networks_only",),
        rows=(74,),
    ),
    Break(
        "REST framework: a replay is shown before authentication",
        "http.drf:IdempotentMixin.initial",
        skipping("initial"),
        (f"{DRF}::test_r26_authentication_permissions_and_throttles_come_first",),
        rows=(74,),
    ),
    Break(
        "FastAPI: a replay is shown before the dependencies that authenticate",
        "http.fastapi:_Route.__init__",
        swapped("given", "Depends"),
        (f"{FASTAPI}::test_r26_a_replay_too_is_given_only_to_whom_every_dependency_lets_in[memory-route-True]",),
        rows=(74,),
    ),
    Break(
        "Flask: a replay is shown before the decorators that authenticate",
        "http.flask:Installed._dispatch",
        never("_find_mark"),
        (f"{FLASK}::test_k8_flask_login_beneath_login_required",),
        rows=(74,),
    ),
    Break(
        "keys of two principals meet",
        "http.guard:Guard.scope",
        instead("make_scope()", "None"),
        (f"{GUARD}::test_k8_two_principals_do_not_meet_and_k9_one_meets_itself",),
        rows=(74,),
    ),
    Break(
        "a request without a principal is served",
        "http.guard:Guard.scope",
        never("all"),
        (f"{GUARD}::test_k8_nobody_is_refused",),
        rows=(74,),
    ),
    Break(
        "the principal of an inner guard is dropped",
        "http.nested:_find_dropped",
        never("principal", "outer"),
        (f"{NESTED}::test_r32_guards_in_asgi[asgi-asgi-one-inner]",),
        rows=(74,),
    ),
    Break(
        "a key is claimed before the body of its request is there",
        "http.asgi:serve_guarded",
        first("early = guard.claim(request, key, body, found)\nawait guard.entry.enter(early)", "read_body"),
        (f"{ASGI}::test_r12_a_client_that_sends_slowly_keeps_no_key_meanwhile[sqlite]",),
        rows=(76,),
    ),
    Break(
        "a simultaneous delivery is acknowledged, so that the event is lost if its handler fails",
        "webhooks.answers:ANSWERS",
        instead(503, "DUPLICATE", at=0),
        (
            (
                f"{RECEIVER}::test_simultaneous_deliveries_have_one_effect_and_the_others_are_told_to_come_"
                "again[stripe-async-memory]"
            ),
        ),
        rows=(77,),
    ),
    Break(
        "a request is retried whose key its host may have forgotten",
        "http.client.operation:_Course._is_recognised",
        always("wall"),
        (f"{DURABLE}::test_c03_nor_between_two_attempts",),
        rows=(78,),
    ),
    Break(
        "fields that Connection names pass the gateway",
        "gateway.fields:_hop_by_hop",
        without("named", "kept"),
        (f"{PROXYING}::test_hop_by_hop_fields_end_at_the_gateway_both_ways",),
    ),
    Break(
        "the gateway believes every spelling of a field that its proxy sets",
        "gateway.fields:_is_claimed",
        unwrapped("cgi_name", at=0),
        (f"{PROTOCOL}::test_p1_fields_of_proxies_are_not_believed_of_strangers",),
    ),
    Break(
        "the body of a request that offers an upgrade is the next request",
        "gateway.protocol:Protocol._parse_slice",
        without("_head_without_offer"),
        (f"{PROTOCOL}::test_an_offer_on_a_connection_that_is_to_be_closed",),
    ),
    Break(
        "a response that came before its request is its answer",
        "gateway.upstream:_Request.send",
        never("should_close"),
        (f"{FAILURES}::test_unasked_bytes_on_a_kept_connection_answer_no_request",),
    ),
    Break(
        "a request that ended in doubt leaves the journal",
        "http.client.calling:Planned._note",
        never("in_doubt"),
        (f"{DURABLE}::test_c02_doubtful_entries_stay_and_answered_ones_go",),
    ),
    Break(
        "a request is sent before it is in the journal",
        "http.client.calling:Planned.begin",
        unwrapped("begin"),
        (f"{DURABLE}::test_c02_the_request_is_in_the_journal_before_its_first_byte_leaves",),
    ),
    Break(
        "an entry of the journal that a living process works on is resumed too",
        "http.client.journal:Journal.take",
        never("is_held"),
        (f"{DURABLE}::test_c02_entries_of_a_living_process_are_left_alone",),
    ),
    Break(
        "credentials are in the journal",
        "http.client.journal:select_headers",
        always("secrets"),
        (f"{DURABLE}::test_c02_the_request_is_in_the_journal_before_its_first_byte_leaves",),
    ),
    Break(
        "new credentials go to another origin",
        "http.client.operation:_Course.may_refresh",
        always("at_home"),
        (f"{DOUBT}::test_c16_new_credentials_are_for_the_callers_origin_alone[httpx]",),
    ),
    Break(
        "a request that may have arrived is retried at hosts that honour no keys",
        "http.client.operation:_Course.repeatable",
        always("recognised_until", "target"),
        (f"{RULES}::test_c05_and_nowhere_else",),
    ),
    Break(
        "another origin sees the key",
        "http.client.redirects:follow",
        always("elsewhere", at=2),
        (f"{RULES}::test_c16_another_origin_sees_neither_key_nor_credentials",),
    ),
    Break(
        "another origin sees the credentials",
        "http.client.redirects:follow",
        skipping("secrets"),
        (f"{RULES}::test_c16_another_origin_sees_neither_key_nor_credentials",),
    ),
    Break(
        "a silent store lets requests pass",
        "http.guard:Guard.passes",
        never("on_store_error"),
        (f"{ASGI}::test_r25_a_silent_store_refuses_or_lets_pass",),
    ),
    Break(
        "of two keys in one request the first is taken",
        "http.key_header:parse",
        never("lines", "len"),
        (f"{KEYS}::test_k3_two_values_are_refused",),
    ),
    Break(
        "cookies are stored",
        "http.messages:find_dropped_fields",
        without("SECRETS", "secrets"),
        (f"{MESSAGES}::test_r6_secrets_are_stored_only_if_allowed_and_then_every_line",),
    ),
    Break(
        "another spelling of a path needs no key",
        "http.routes:Routes.strictest",
        never("other"),
        (f"{ROUTED}::test_k6_the_strictest_reading_counts",),
    ),
    Break(
        "a content type that is not signed changes the meaning of a signed document",
        "webhooks.deliveries:document_of",
        always("startswith"),
        (f"{SCHEMES}::test_a_content_type_which_is_not_signed_makes_no_other_document_of_a_signed_body",),
    ),
    Break(
        "a handler that leaves its work undone has handled the event",
        "webhooks.handling:Handling._ahandle",
        instead("refuse_unfinished()", "await self.handler.acall(self._given(self.handler, claim))"),
        (f"{RECEIVER}::test_undone_work_of_a_handler_is_not_stored_as_handled[memory-async]",),
    ),
    Break(
        "an event without a handler uses up the key of its handling, also under a forged name",
        "webhooks.handling:Handling._claim",
        always("handler"),
        (f"{RECEIVER}::test_a_github_delivery_under_a_forged_id_is_refused_loudly[memory]",),
    ),
    Break(
        "a handshake is answered before its signature is looked at",
        "webhooks.receiver:Receiver.verify",
        first(
            "handshake = self.scheme.identify(head, body, document_of(head, body, self.scheme.media_types))\n"
            "if isinstance(handshake, Response):\n"
            "    return handshake",
            "verify",
        ),
        (f"{RECEIVER}::test_handshakes_are_answered_only_if_they_are_signed",),
    ),
    Break(
        "a signature is not looked at",
        "webhooks.signatures:check_signature",
        never("expected"),
        (f"{SCHEMES}::test_a_tampered_body_is_refused[stripe]",),
    ),
    Break(
        "a delivery that was signed long ago is taken",
        "webhooks.signatures:check_time",
        instead("abs()", "timestamp - now"),
        (f"{SCHEMES}::test_a_time_that_is_far_away_is_refused",),
    ),
    Break(
        "the id of a webhook is not signed",
        "webhooks.standard:signatures",
        without("id"),
        (f"{SCHEMES}::test_the_vector_of_standard_webhooks",),
    ),
]

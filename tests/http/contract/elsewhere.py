"""The tests of rules that no client can see, and those of gRPC, another protocol: by name, or the reason for none.

A test is named by its file below ``tests/http`` and its function; what is no test is a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ByTests(NamedTuple):
    """The tests of a rule, as ``file.py::function``."""

    tests: tuple[str, ...]


class Without(NamedTuple):
    """Why there is nothing to test."""

    reason: str


Where = ByTests | Without


def by(*tests: str) -> ByTests:
    """Tests by name."""
    return ByTests(tests)


FAMILIES: Mapping[str, str] = {
    "asgi": "asgi",
    "starlette": "asgi",
    "starlette_route": "asgi",
    "fastapi": "asgi",
    "litestar": "asgi",
    "wsgi": "wsgi",
    "flask": "flask",
    "django": "django",
    "django_view": "django",
    "drf": "django",
    "aiohttp": "aiohttp",
}
"""Integrations that share the code which keeps the rules below."""

_K10 = by("test_guard.py::test_k10_the_raw_key_is_neither_stored_nor_logged")
_LOST = by(
    "test_exchange.py::test_r20_a_lost_lease_is_not_sent_as_success",
    "test_exchange.py::test_r20_a_handler_that_finds_its_lease_lost_is_answered_as_such",
    "test_exchange.py::test_r20_a_lease_that_is_lost_when_bytes_have_left_breaks_the_response_off",
)
_NO_CANCELLING = Without("sync code is not cancelled; what a client that leaves does to it is R17")
_ASGI_ALONE = Without("the extensions are ASGI's; what passes around a WSGI layer is the file wrapper, see R28")
_WSGI_ALONE = Without("PEP 3333 is WSGI's")

UNSEEN: Mapping[str, Mapping[str, Where]] = {
    "K10": dict.fromkeys(("asgi", "wsgi", "flask", "django", "aiohttp"), _K10),
    "R14": {
        "asgi": by(
            "test_asgi.py::test_r14_extensions_that_pass_around_are_taken_away",
            "test_asgi.py::test_r14_a_message_that_passes_around_is_an_error",
            "test_asgi.py::test_r14_interim_responses_go_out_live_and_are_not_stored",
        ),
        "wsgi": _ASGI_ALONE,
        "flask": _ASGI_ALONE,
        "django": _ASGI_ALONE,
        "aiohttp": Without("the extensions are ASGI's; what an aiohttp handler sends by itself is not kept, see R11"),
    },
    "R18": {
        "asgi": by(
            "test_asgi.py::test_r18_a_cancelled_handler_frees_its_key",
            "test_asgi.py::test_r18_cancelled_by_a_cancel_scope_around_it",
            "test_asgi.py::test_r18_cancelled_at_every_await",
        ),
        "wsgi": _NO_CANCELLING,
        "flask": _NO_CANCELLING,
        "django": _NO_CANCELLING,
        "aiohttp": by("test_unary.py::test_r18_a_cancelled_handler_frees_its_key"),
    },
    "R20": {
        "asgi": by(
            "test_asgi.py::test_r20_an_original_that_lost_its_lease_is_not_sent_as_success",
            "test_asgi.py::test_r20_a_handler_that_finds_its_lease_lost_is_answered_as_such",
        ),
        "wsgi": _LOST,
        "flask": _LOST,
        "django": _LOST,
        "aiohttp": by("test_unary.py::test_r20_an_original_that_lost_its_lease_is_not_sent_as_success"),
    },
    "R28": {
        "asgi": _WSGI_ALONE,
        "wsgi": by(
            "test_wsgi.py::test_r28_written_chunks_are_captured_before_returned_ones",
            "test_wsgi.py::test_r28_exc_info_replaces_headers_that_were_not_sent",
            "test_wsgi.py::test_r28_the_returned_iterable_is_closed_once",
            "test_wsgi.py::test_r28_a_generator_stays_lazy",
            "test_wsgi.py::test_r28_a_file_does_not_pass_around",
        ),
        "flask": by(
            "test_flask.py::test_r8_r28_a_stream_is_lazy_and_its_end_waits_for_the_record",
            "test_flask.py::test_r28_a_file_does_not_pass_around",
        ),
        "django": Without("the layer is inside of Django, which speaks WSGI to the server by itself"),
        "aiohttp": _WSGI_ALONE,
    },
}
"""The rules that can't be seen from outside, by the family of integrations."""

_FIELDS = Without("it is about fields of HTTP")
_NO_STREAMS = Without("only calls of one message each way are guarded; streams are refused, see R11")
_CORE = Without("what the boundary does, whatever entry point asked: the conformance suite of the stores")

GRPC: Mapping[str, Where] = {
    "K1": by("test_grpc.py::test_k1_k2_k9_quoted_bare_and_with_another_token_are_one_key"),
    "K2": by("test_grpc.py::test_k1_k2_k9_quoted_bare_and_with_another_token_are_one_key"),
    "K3": by("test_grpc.py::test_k3_k4_k5_a_broken_key_is_refused"),
    "K4": by("test_grpc.py::test_k3_k4_k5_a_broken_key_is_refused"),
    "K5": by("test_grpc.py::test_k3_k4_k5_a_broken_key_is_refused"),
    "K6": by("test_grpc.py::test_k6_without_a_key_a_call_passes_unless_it_is_required"),
    "K7": Without("gRPC has no safe methods: every call of one message each way is guarded if it has a key"),
    "K8": by("test_grpc.py::test_k8_principals_do_not_meet_and_nobody_is_refused"),
    "K9": by("test_grpc.py::test_k1_k2_k9_quoted_bare_and_with_another_token_are_one_key"),
    "K10": _K10,
    "K11": by("test_grpc.py::test_k11_a_guessable_key_is_refused_when_asked"),
    "F1": by("test_grpc.py::test_f1_another_request_or_method_under_the_same_key_is_refused"),
    "F2": Without("the name of a method has no query and no escapes"),
    "F3": Without("messages are compared byte by byte: F1"),
    "F4": Without("there is no multipart"),
    "F5": by("test_grpc.py::test_f5_metadata_does_not_count"),
    "F6": by("test_grpc.py::test_f6_a_mismatch_is_told_while_the_first_still_runs"),
    "R1": by(
        "test_grpc.py::test_r1_a_simultaneous_duplicate_is_told_to_come_back",
        "test_grpc.py::test_r1_or_waits_for_the_answer",
    ),
    "R2": by("test_grpc.py::test_r2_a_retry_gets_the_first_answer"),
    "R3": Without("it is about problem+json; the code is in the trailing metadata: every test of a refusal looks"),
    "R4": _FIELDS,
    "R5": _FIELDS,
    "R6": _FIELDS,
    "R7": by("test_grpc.py::test_r7_empty_and_binary_messages_are_replayed"),
    "R8": by("test_grpc.py::test_r2_a_retry_gets_the_first_answer"),
    "R9": _CORE,
    "R10": _NO_STREAMS,
    "R11": by(
        "test_grpc.py::test_r11_streams_cannot_be_replayed_so_they_are_not_begun_under_a_key",
        "test_grpc.py::test_r12_r11_limits",
    ),
    "R12": by("test_grpc.py::test_r12_r11_limits"),
    "R13": _NO_STREAMS,
    "R14": Without("the extensions are ASGI's"),
    "R15": Without("gRPC has no work after the response"),
    "R16": by("test_grpc.py::test_r16_an_exception_frees_a_keyed_key_and_leaves_an_external_one_unknown"),
    "R17": Without("gRPC cancels a call that its client gave up: R18"),
    "R18": by("test_unary.py::test_r18_a_cancelled_handler_frees_its_key"),
    "R19": _CORE,
    "R20": by("test_unary.py::test_r20_an_original_that_lost_its_lease_is_not_sent_as_success"),
    "R21": _CORE,
    "R22": by("test_grpc.py::test_r2_a_retry_gets_the_first_answer"),
    "R23": _FIELDS,
    "R24": _FIELDS,
    "R25": by("test_grpc.py::test_r25_an_unreachable_store_is_unavailable"),
    "R26": Without("gRPC compresses below its handlers"),
    "R27": Without("browsers don't speak gRPC"),
    "R28": _WSGI_ALONE,
    "R29": Without("a service is described in its .proto file"),
    "R30": _FIELDS,
    "D1": by("test_grpc.py::test_d1_refusals_are_stored_and_failures_free_the_key"),
    "T1": by("test_grpc.py::test_t1_a_transaction_is_rolled_back_with_a_failure_and_kept_with_the_answer"),
}
"""All rules on gRPC."""

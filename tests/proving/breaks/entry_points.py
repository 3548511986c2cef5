"""Breaks of the entry points: functions, HTTP and its frameworks, gRPC, the operator's commands, quotas, encryption."""

from __future__ import annotations

from tests.proving.breaks import Break

GUARD = "tests/http/test_guard.py"
ASGI = "tests/http/test_asgi.py"
DJANGO = "tests/http/test_django.py"
DRF = "tests/http/test_drf.py"
FLASK = "tests/http/test_flask.py"
FASTAPI = "tests/http/test_fastapi.py"
GRPC = "tests/http/test_grpc.py"
GATEWAY = "tests/gateway"
ENCRYPTION = "tests/boundary/test_encryption.py"
SPACES = "tests/boundary/test_key_spaces.py"
PAYLOADS = "tests/boundary/test_payloads.py"
STARTUP = "tests/http/test_startup.py"
ON_DEMAND = "tests/stores/test_on_demand.py"
MISCONFIGURED = "tests/faults/test_misconfigured.py"
ONCE = "tests/boundary/test_once.py"
SCHEMES = "tests/webhooks/test_schemes.py"
RECEIVER = "tests/webhooks/test_receiver.py"
DOORS = "tests/webhooks/test_integrations.py"
SENDER = "tests/webhooks/test_sender.py"

BREAKS = [
    # ------------------------------------------------------------ functions
    Break(
        "the fingerprint of a method has its object in it",
        "claims/decorator.py",
        'self._not_payload = {name for name in self._arguments.names[:1] if name in ("self", "cls")}',
        "self._not_payload = set()",
        killed_by=(f"{ONCE}::test_methods_leave_self_out_of_the_payload",),
        rows=(73,),
    ),
    Break(
        "the arguments of a call are no part of its fingerprint",
        "claims/decorator.py",
        "        if self.payload_by is None:\n",
        '        if self.payload_by is None or self.payload_by == "arguments":\n',
        killed_by=(f"{ONCE}::test_methods_leave_self_out_of_the_payload",),
        rows=(73,),
    ),
    Break(
        "all functions of a boundary share their keys",
        "claims/decorator.py",
        "operation=self.operation if self._heir is None else",
        'operation="once" if self._heir is None else',
        killed_by=(f"{ONCE}::test_operations_keep_the_keys_of_functions_apart",),
    ),
    Break(
        "functions of one name in two modules share their keys",
        "claims/key_spaces.py",
        'keys.check_name(f"{module}.{name}", "operation")',
        'keys.check_name(name, "operation")',
        killed_by=(f"{SPACES}::test_functions_of_one_name_in_two_modules_have_keys_of_their_own",),
    ),
    Break(
        "two boundaries of a name share their keys without knowing it",
        "claims/key_spaces.py",
        "    if one.origin.place == made.origin.place:",
        "    if True:",
        killed_by=(f"{SPACES}::test_two_modules_cannot_both_build_a_boundary_of_a_name",),
    ),
    Break(
        "classes that inherit a method share its keys",
        "claims/key_spaces.py",
        'keys.check_name(f"{operation} ({module}.{kind.__qualname__})", "operation")',
        "operation",
        killed_by=(f"{SPACES}::test_a_class_that_inherits_a_method_has_keys_of_its_own",),
    ),
    Break(
        "a new optional parameter refuses the retries in flight",
        "protocol/fingerprint.py",
        "        return not (left.get(name) or right[name]).at_default\n",
        "        return True\n",
        killed_by=(f"{PAYLOADS}::test_a_retry_over_a_deployment_that_adds_a_parameter_is_answered",),
        rows=(83,),
    ),
    Break(
        "a payload that is None switches the check off",
        "claims/decorator.py",
        '        if self.payload_by != "arguments":\n            return fingerprint_of(self._select(bound))\n',
        '        if self.payload_by != "arguments":\n            found = self._select(bound)\n'
        "            return UNCHECKED if found is None else fingerprint_of(found)\n",
        killed_by=(f"{PAYLOADS}::test_none_is_a_payload_as_any_other",),
        rows=(73,),
    ),
    Break(
        "what a model does not dump is no part of a payload",
        "protocol/canonical.py",
        "    return _members(value, _fields_of_model)",
        "    return _members(value, _dump_of_model)",
        killed_by=tuple(
            f"{PAYLOADS}::test_models_that_dump_the_same_are_two_payloads[{how}]"
            for how in ("subclass", "base", "rounded", "excluded", "in a list", "deep")
        ),
    ),
    Break(
        "a transaction that the database wants again is not run again",
        "claims/restarts.py",
        "            pause = claim.restart_pause(restarts)\n            if pause is None:\n                raise\n"
        "        restarts += 1\n        time.sleep(pause)",
        "            raise",
        killed_by=(
            "tests/faults/test_sql_faults.py::TestSerialization::test_once_runs_the_whole_own_transaction_again",
            f"{RECEIVER}::test_a_transaction_that_the_database_wants_again_is_run_again[sync-postgresql-transactional]",
        ),
        rows=(23, 24),
    ),
    Break(
        "an empty key is a key",
        "protocol/keys.py",
        "if not 1 <= len(text) <= LONGEST:\n        raise InvalidKey(",
        "if not len(text) <= LONGEST:\n        raise InvalidKey(",
        killed_by=("tests/core/test_keys.py::test_a_malformed_key_is_refused[]",),
    ),
    Break(
        "the order of fields is part of the payload",
        "protocol/canonical.py",
        'b"".join(sorted(pairs))',
        'b"".join(pairs)',
        killed_by=("tests/faults/test_peers_bugs.py::test_the_order_of_fields_is_not_part_of_the_payload",),
        rows=(73,),
    ),
    # ------------------------------------------------------------ HTTP: keys and fingerprints
    Break(
        "of two keys in one request the first is taken",
        "http/keys.py",
        "    if len(lines) > 1:",
        "    if False:",
        killed_by=(
            "tests/http/test_keys.py::test_k3_two_values_are_refused[lines0]",
            f"{ASGI}::test_k3_two_keys_are_refused[memory-lines]",
        ),
    ),
    Break(
        "a key may be of any length",
        "http/keys.py",
        "    if not 1 <= len(key) <= LONGEST:",
        "    if not key:",
        killed_by=("tests/http/test_keys.py::test_k4_what_cannot_be_a_key_is_refused[line3]",),
    ),
    Break(
        "every header is part of the fingerprint",
        "http/guard.py",
        "        for name in self.fields:\n",
        "        for name in lines:\n",
        killed_by=(f"{GUARD}::test_f5_other_headers_do_not_count", f"{ASGI}::test_f5_traces_and_tokens_do_not_count"),
        rows=(73,),
    ),
    Break(
        "the body is no part of the fingerprint",
        "http/guard.py",
        "if self.policy.canonical_json else None) or body.digest()\n",
        'if self.policy.canonical_json else None) or b""\n',
        killed_by=(f"{GUARD}::test_f1_the_body_counts_byte_by_byte",),
        rows=(73,),
    ),
    Break(
        "the query is no part of the fingerprint",
        "http/guard.py",
        ', "path": path, "query": query}',
        ', "path": path}',
        killed_by=(f"{GUARD}::test_f2_paths_and_queries_are_compared_as_they_were_sent[one1-other1]",),
        rows=(73,),
    ),
    Break(
        "keys of two principals meet",
        "http/guard.py",
        "        return principals.scoped(self.entry.tenant(), *dict.fromkeys(named))",
        "        return None",
        killed_by=(f"{GUARD}::test_k8_two_principals_do_not_meet_and_k9_one_meets_itself",),
        rows=(74,),
    ),
    Break(
        "the request of nobody is served",
        "http/guard.py",
        "        if not all(map(principals.is_named, own or around)):",
        "        if False:",
        killed_by=(f"{GUARD}::test_k8_nobody_is_refused",),
        rows=(74,),
    ),
    Break(
        "a body over the limit is read to its end",
        "http/bodies.py",
        "        if self.length > self._limit:\n            self._refuse()\n        self._hash",
        "        self._hash",
        killed_by=tuple(
            f"{ASGI}::test_r12_a_request_over_the_limit_is_refused[{place}-False]" for place in ("memory", "sqlite")
        ),
        rows=(66,),
    ),
    # ------------------------------------------------------------ HTTP: responses
    Break(
        "a 5xx is stored as the answer",
        "http/guard.py",
        'answered = Answered.FAILED if policy.on_5xx == "effects" else Answered.REFUSED',
        "answered = Answered.REFUSED",
        killed_by=(
            f"{GUARD}::test_a_5xx_frees_a_keyed_key_and_is_stored_if_so_chosen[500]",
            f"{ASGI}::test_r16_a_5xx_is_a_failure",
        ),
    ),
    Break(
        "a 5xx counts as work that was not begun",
        "http/guard.py",
        "        if status >= 500:",
        "        if status >= 600:",
        killed_by=(f"{GUARD}::test_a_5xx_frees_a_keyed_key_and_is_stored_if_so_chosen[503]",),
        rows=(5,),
    ),
    Break(
        "a 429 is stored as the answer",
        "http/policy.py",
        "PASSING = frozenset({401, 403, 408, 421, 425, 429})",
        "PASSING = frozenset({401, 403, 408, 421, 425})",
        killed_by=(f"{GUARD}::test_refusals_of_which_a_retry_may_fare_better_free_the_key[429]",),
    ),
    Break(
        "cookies are stored",
        "http/messages.py",
        "return HOP_BY_HOP | RENEWED | (SECRETS - secrets)",
        "return HOP_BY_HOP | RENEWED",
        killed_by=("tests/http/test_messages.py::test_r6_secrets_are_stored_only_if_allowed_and_then_every_line",),
    ),
    Break(
        "the end of a response leaves before it is recorded",
        "http/asgi.py",
        """                await self._settle(self.claim)
                await self._finish()
""",
        """                await self._finish()
                await self._settle(self.claim)
""",
        killed_by=(f"{ASGI}::test_r8_the_record_is_there_before_the_client_can_see_the_end",),
        rows=(6,),
    ),
    Break(
        "the last chunk of a response leaves before it is recorded",
        "http/exchange.py",
        "return min(len(self._held), 1) if declared or not self.live else 0",
        "return 0",
        killed_by=("tests/http/test_exchange.py::test_r8_the_last_bytes_wait_for_the_record",),
        rows=(6,),
    ),
    Break(
        "a transactional response leaves before it is committed",
        "http/exchange.py",
        "return self.live or (len(self._held) > 1 and not self._guard.holds_all)",
        "return self.live or len(self._held) > 1",
        killed_by=("tests/http/test_exchange.py::test_in_a_transaction_all_is_taken_before_anything_leaves",),
        rows=(6,),
    ),
    Break(
        "a response whose client has left is not recorded",
        "http/exchange.py",
        "            while not self.settled:\n                self._capture.rest()\n",
        "            while False:\n                self._capture.rest()\n",
        killed_by=("tests/http/test_exchange.py::test_r17_a_response_that_is_closed_early_is_drained_and_recorded",),
        rows=(6,),
    ),
    Break(
        "a client that disconnects leaves its key stuck",
        "http/unary.py",
        "        except BaseException as error:\n            await self._leave(claim, error)",
        "        except Exception as error:\n            await self._leave(claim, error)",
        killed_by=tuple(
            f"tests/http/test_unary.py::test_r18_a_cancelled_handler_frees_its_key[{store}]"
            for store in ("memory", "sqlite", "postgresql", "redis")
        ),
        rows=(89,),
    ),
    Break(
        "a silent store lets requests pass",
        "http/guard.py",
        'if not isinstance(error, StoreUnavailable) or self.policy.on_store_error != "open":',
        "if not isinstance(error, StoreUnavailable):",
        killed_by=(f"{ASGI}::test_r25_a_silent_store_refuses_or_lets_pass",),
    ),
    Break(
        "a forgotten migration is an outage to clients",
        "http/problems.py",
        '(SchemaOutdated, "store-not-migrated"),',
        '(SchemaOutdated, "store-unavailable"),',
        killed_by=(f"{STARTUP}::test_a_request_to_a_store_without_tables_is_a_problem_of_its_own",),
    ),
    Break(
        "a wrong password is an outage",
        "backends/sql/drivers/base.py",
        "return _misconfigured(error, text, path) or StoreUnavailable(text, unsent=True)",
        "return StoreUnavailable(text, unsent=True)",
        killed_by=(
            f"{MISCONFIGURED}::test_postgresql[password-psycopg]",
            f"{MISCONFIGURED}::test_sqlite_without_its_directory[url]",
        ),
    ),
    Break(
        "a claim on a route that nothing guards is no claim",
        "http/fastapi.py",
        "elif HELD not in request.scope and request.method in guard.methods:",
        "elif False:",
        killed_by=("tests/http/test_mistakes.py::test_a_router_without_the_route_class_is_refused",),
    ),
    Break(
        "a file without the outbox cannot be migrated",
        "backends/migrations/on_demand.py",
        "    for feature in absent:\n        yield from _perform(creation((FEATURES[feature],), version))\n    applied",
        "    applied",
        killed_by=(f"{ON_DEMAND}::test_a_file_without_a_feature_is_migrated_from_any_version",),
    ),
    Break(
        "a URL of an unknown kind is refused with its password",
        "backends/registry.py",
        'f"store={without_password(url)!r}: unknown kind',
        'f"store={url!r}: unknown kind',
        killed_by=(
            (
                "tests/stores/test_registry.py::test_a_url_that_cannot_be_read_is_refused_without_its_password"
                "[nonsense://ada:hunter2@db/shop]"
            ),
        ),
    ),
    Break(
        "a user's table whose name begins like ours is taken for a feature",
        "backends/migrations/on_demand.py",
        "for feature, table in _ALWAYS.items() if table not in found]",
        "for feature, table in FEATURES.items() if not any(name.startswith(table) for name in found)]",
        killed_by=(f"{ON_DEMAND}::test_a_user_s_table_whose_name_begins_like_ours_is_not_taken_for_a_feature[3]",),
    ),
    Break(
        "a boundary fills a file with the tables of every feature",
        "backends/schema.py",
        "self._prepare(whole=False)",
        "self._prepare(whole=True)",
        killed_by=(f"{ON_DEMAND}::test_each_feature_makes_its_tables_when_it_is_first_asked_for[url]",),
    ),
    Break(
        "FastAPI's routes start on a store without tables",
        "http/fastapi.py",
        "        if refused is not None:\n            raise refused\n        yield",
        "        yield",
        killed_by=(f"{STARTUP}::test_fastapi_with_a_guarded_router_does_not_start_without_tables[router]",),
    ),
    Break(
        "a missing library names no extra",
        "extras.py",
        "if isinstance(error, ModuleNotFoundError) and",
        "if False and",
        killed_by=("tests/mistakes/test_catalogue.py::test_a_missing_library[flask is missing]",),
    ),
    Break(
        "every missing module is blamed on an extra",
        "extras.py",
        ' and (error.name or "").partition(".")[0] in self._libraries',
        "",
        killed_by=(
            "tests/mistakes/test_catalogue.py::test_a_module_that_is_missing_for_another_reason_is_not_blamed_on_an_extra",
        ),
    ),
    Break(
        "a look at a file keeps a later outbox from its tables",
        "backends/schema.py",
        "        if present or made:\n            self._provided",
        "        if True:\n            self._provided",
        killed_by=(f"{ON_DEMAND}::test_a_look_at_a_file_without_a_schema_keeps_no_later_outbox_from_its_tables",),
    ),
    Break(
        "an outbox made in a transaction finds the store silent",
        "backends/schema.py",
        "        except StoreUnavailable as error:\n            raise StoreUnavailable(",
        "        except TimeoutError as error:\n            raise StoreUnavailable(",
        killed_by=(
            f"{ON_DEMAND}::test_an_outbox_that_is_made_in_a_transaction_leaves_that_alone_and_says_what_to_do[url]",
        ),
    ),
    Break(
        "an application starts on a store without tables",
        "http/asgi.py",
        "            refused = await guard.entry.find_unusable()\n            if refused is not None:\n",
        "            if refused is not None:\n",
        killed_by=(f"{STARTUP}::test_an_asgi_application_does_not_start_without_tables",),
    ),
    Break(
        "errors of the log are swallowed where logging is not set up",
        "claims/observers.py",
        '    return logging.getLogger("retrysafe")\n',
        '    found = logging.getLogger("retrysafe")\n    found.addHandler(logging.NullHandler())\n    return found\n',
        killed_by=(f"{STARTUP}::test_the_error_is_seen_where_nobody_set_logging_up",),
    ),
    Break(
        "who takes no details of an attempt misses its warnings",
        "claims/observers.py",
        "if request is not None and (self.detailed or EVENTS[name].level >= WARNING):",
        "if request is not None and self.detailed:",
        killed_by=("tests/observing/test_logs.py::test_who_takes_no_details_of_an_attempt_is_told_of_its_warnings",),
    ),
    Break(
        "the principal of an inner guard is dropped",
        "http/nested.py",
        "    if inner.principal is not None and inner.principal != outer.principal:",
        "    if False:",
        killed_by=("tests/http/test_nested.py::test_r32_guards_in_asgi[asgi-asgi-one-inner]",),
        rows=(74,),
    ),
    Break(
        "a route that authenticates is guarded for everybody alike",
        "http/security.py",
        "    if found is not None and guard.principal is None and not guard.shared and not around:",
        "    if False:",
        killed_by=("tests/http/test_secured_routes.py::test_r32_litestar_guards[None]",),
        rows=(74,),
    ),
    Break(
        "Starlette: what a later route says of itself is not seen",
        "http/starlette.py",
        "if known is None or not known.are(routes):",
        "if known is None:",
        killed_by=(
            "tests/http/test_starlette.py::test_k6_a_route_that_comes_later_is_seen[memory-mounted]",
            "tests/http/test_fastapi.py::test_k6_a_route_that_an_included_router_gets_later_is_seen[memory]",
        ),
    ),
    Break(
        "another spelling of a path needs no key",
        "http/routes.py",
        '        if any(need == "required" and (first is None or rank < first) for rank, need in other):',
        "        if False:",
        killed_by=("tests/http/test_routed.py::test_k6_the_strictest_reading_counts[paths1-required]",),
    ),
    # ------------------------------------------------------------ frameworks
    Break(
        "Flask: a replay is shown before the decorators that authenticate",
        "http/flask.py",
        "if request.routing_exception is not None or self._marked() is not None:",
        "if request.routing_exception is not None:",
        killed_by=(f"{FLASK}::test_k8_flask_login_beneath_login_required",),
        rows=(74,),
    ),
    Break(
        "FastAPI: a replay is shown before the dependencies that authenticate",
        "http/fastapi.py",
        "[*(one for one in given if one.dependency is not begin), Depends(begin)]",
        "[Depends(begin), *(one for one in given if one.dependency is not begin)]",
        killed_by=tuple(
            f"{FASTAPI}::test_r26_a_replay_too_is_given_only_to_whom_every_dependency_lets_in[{case}]"
            for case in ("memory-route-None", "memory-router-account", "sqlite-transactional-route-account")
        ),
        rows=(74,),
    ),
    Break(
        "REST framework: a replay is shown before authentication",
        "http/drf.py",
        "        super().initial(request, *args, **kwargs)\n        visit = self._visit\n",
        "        visit = self._visit\n",
        killed_by=(f"{DRF}::test_r26_authentication_permissions_and_throttles_come_first",),
        rows=(74,),
    ),
    Break(
        "REST framework: what the exception handler makes of a restart is stored",
        "http/drf.py",
        "            self._visit.caught = exc\n",
        "            pass\n",
        killed_by=(f"{DRF}::test_a_transaction_that_the_database_wants_again",),
        rows=(23,),
    ),
    Break(
        "Django: a transaction around the claim commits after the record",
        "http/django_serving.py",
        "            refuse_open_transactions()\n",
        "",
        killed_by=(f"{DJANGO}::test_a_transaction_around_the_claim_is_refused",),
        rows=(4,),
    ),
    Break(
        "Django: ATOMIC_REQUESTS ends after the record",
        "http/django.py",
        "    take_over_atomic_requests(guarded)\n",
        '    guarded._non_atomic_requests = TakenOver(getattr(view, "_non_atomic_requests", ()))\n'
        '    guarded.__dict__["_non_atomic_requests"] = set()\n',
        killed_by=tuple(
            f"{DJANGO}::test_atomic_requests_end_before_the_record[{ground}-decorator]"
            for ground in ("transactional", "leased")
        ),
        rows=(4,),
    ),
    Break(
        "gRPC: a failure is stored as the answer",
        "http/grpc.py",
        "AS_HTTP.get(self.code, 500)",
        "AS_HTTP.get(self.code, 200)",
        killed_by=(f"{GRPC}::test_d1_refusals_are_stored_and_failures_free_the_key",),
    ),
    Break(
        "gRPC: a stream runs unguarded under its key",
        "http/grpc.py",
        "return None if handler.request_streaming or handler.response_streaming else True",
        "return not (handler.request_streaming or handler.response_streaming)",
        killed_by=(f"{GRPC}::test_r11_streams_cannot_be_replayed_so_they_are_not_begun_under_a_key",),
    ),
    # ------------------------------------------------------------ operators
    Break(
        "an operator settles a key that is another attempt's by now",
        "protocol/procedures.py",
        "if record is None or attempt not in (None, record.attempt) or not in_doubt(record):",
        "if record is None or not in_doubt(record):",
        killed_by=("tests/operating/test_operator.py::test_a_key_that_is_another_attempts_by_now_is_left_alone",),
    ),
    Break(
        "an operator resolves what is not in doubt",
        "protocol/retry_table.py",
        "return record.reported_state is EffectiveState.UNKNOWN",
        "return record.effective_state in (EffectiveState.UNKNOWN, EffectiveState.LAPSED)",
        killed_by=tuple(
            f"tests/operating/test_operator.py::test_what_is_not_in_doubt_is_not_resolved[{store}-lapsed]"
            for store in ("sqlite", "postgresql", "redis")
        ),
    ),
    Break(
        "a change is made before its audit can be written",
        "admin/operator.py",
        '        self._write("intent", entry)\n        try:\n            change = self._do(steps)\n',
        '        try:\n            change = self._do(steps)\n            self._write("intent", entry)\n',
        killed_by=(
            "tests/operating/test_operator.py::test_without_an_audit_there_is_no_change",
            "tests/operating/test_operator.py::test_the_intent_is_written_before_the_change_and_the_outcome_after_it",
        ),
    ),
    # ------------------------------------------------------------ quotas and encryption
    Break(
        "a quota counts all scopes together",
        "backends/sql/statements.py",
        "ours = f\"(SELECT q.created FROM {TABLE} AS q WHERE q.quota = {self.p('quota')}\"",
        'ours = f"(SELECT q.created FROM {TABLE} AS q WHERE q.quota IS NOT NULL"',
        killed_by=("tests/stores/test_conformance.py::test_conformance[sqlite3-quotas_of_two_scopes_do_not_meet]",),
        rows=(75,),
    ),
    Break(
        "an encrypted answer opens in another record",
        "claims/encryption.py",
        "*(text.encode() for text in texts), bound.key, header)",
        "*(text.encode() for text in texts), header)",
        killed_by=(f"{ENCRYPTION}::test_an_answer_that_is_copied_to_another_record_does_not_open[other0]",),
        rows=(74,),
    ),
    Break(
        "an encrypted failure can be made a result",
        "claims/encryption.py",
        "texts = (bound.boundary, bound.scope, bound.operation, bound.state.value)",
        "texts = (bound.boundary, bound.scope, bound.operation)",
        killed_by=(f"{ENCRYPTION}::test_a_failure_cannot_be_made_a_result_nor_the_other_way_round",),
    ),
    Break(
        "an answer that an intruder stored in the clear is taken",
        "claims/encryption.py",
        "            if self._reads_unencrypted:\n                return stored\n            raise",
        "            if True:\n                return stored\n            raise",
        killed_by=(f"{ENCRYPTION}::test_an_answer_of_an_intruder_is_not_taken",),
    ),
    # ------------------------------------------------------------ the gateway
    Break(
        "a request that the gateway did not send leaves its key unknown",
        "gateway/app.py",
        "        if not sent:\n            exchange.claim.not_executed()",
        "        if not sent:\n            pass",
        killed_by=(
            f"{GATEWAY}/test_failures.py::test_waiting_for_a_free_connection_in_vain_is_no_attempt",
            f"{GATEWAY}/test_failures.py::test_a_host_that_nobody_knows",
        ),
    ),
    Break(
        "a request that the gateway may have sent leaves its key free",
        "gateway/app.py",
        "        if not sent:\n            exchange.claim.not_executed()",
        "        exchange.claim.not_executed()",
        killed_by=(
            f"{GATEWAY}/test_failures.py::test_an_answer_that_is_lost_leaves_the_key_as_the_effects_want_it[cut-external]",
            f"{GATEWAY}/test_failures.py::test_an_upstream_that_takes_no_more_bytes_is_silent",
        ),
        rows=(5,),
    ),
    Break(
        "the gateway's client library repeats what HTTP calls idempotent",
        "gateway/upstream.py",
        "self.session._retry_connection = False",
        "self.session._retry_connection = True",
        killed_by=(f"{GATEWAY}/test_failures.py::test_no_request_is_repeated_by_the_gateway_itself[GET]",),
    ),
    Break(
        "what waits to be sent follows when the gateway has given up",
        "gateway/upstream.py",
        "                self.transport.abort()",
        "                pass",
        killed_by=(f"{GATEWAY}/test_failures.py::test_an_upstream_that_takes_no_more_bytes_is_silent",),
    ),
    Break(
        "a connection is cut although it serves another request by now",
        "gateway/upstream.py",
        "if response.connection is None:",
        "if response.connection is not None:",
        killed_by=(f"{GATEWAY}/test_proxying.py::test_a_connection_that_serves_another_request_is_not_cut",),
    ),
    Break(
        "the gateway sends the client's own key on",
        "gateway/app.py",
        'key = key_field(exchange.tried.key_for("upstream"), route.forward_key)',
        "key = None",
        killed_by=(
            f"{GATEWAY}/test_proxying.py::test_the_key_that_is_sent_on_is_derived[quoted]",
            f"{GATEWAY}/test_principals.py::test_k8_two_principals_do_not_share_a_key_and_nobody_has_none",
        ),
        rows=(74,),
    ),
    Break(
        "fields that Connection names pass the gateway",
        "gateway/fields.py",
        "return HOP_BY_HOP | (named - kept)",
        "return HOP_BY_HOP",
        killed_by=(f"{GATEWAY}/test_proxying.py::test_hop_by_hop_fields_end_at_the_gateway_both_ways",),
    ),
    Break(
        "a client can take Content-Length away from its request",
        "gateway/fields.py",
        "return HOP_BY_HOP | (named - kept)",
        "return HOP_BY_HOP | named",
        killed_by=(f"{GATEWAY}/test_proxying.py::test_hop_by_hop_fields_end_at_the_gateway_both_ways",),
    ),
    Break(
        "a slow client is taken for a silent upstream",
        "gateway/failures.py",
        "        self._reschedule(None)",
        "        pass",
        killed_by=(f"{GATEWAY}/test_proxying.py::test_a_slow_client_is_no_silent_upstream",),
    ),
    Break(
        "every client can say whose request it is",
        "gateway/settings.py",
        "        return any(address in network for network in self.trusted)",
        "        return True",
        killed_by=(f"{GATEWAY}/test_principals.py::test_k8_a_header_is_believed_of_trusted_networks_only",),
        rows=(74,),
    ),
    Break(
        "a token chooses by which algorithm it is verified",
        "gateway/principals.py",
        "algorithms=list(claims.algorithms),",
        'algorithms=[jwt.get_unverified_header(token)["alg"]],',
        killed_by=(f"{GATEWAY}/test_principals.py::test_k8_a_token_that_is_not_right_in_everything_is_nobodys[8]",),
        rows=(74,),
    ),
    Break(
        "another spelling of a path needs no key at the gateway",
        "gateway/guards.py",
        "found = other if exact is None or (other is not None and other[0] < exact[0]) else exact",
        "found = exact",
        killed_by=(
            "tests/gateway/test_config.py::test_a_route_that_requires_a_key_holds_for_other_spellings_of_its_path",
        ),
    ),
    Break(
        "the gateway believes every spelling of a field that its proxy sets",
        "gateway/fields.py",
        "    name, proxied = spelt(name), {spelt(one) for one in (hop.principal, *hop.believed)}\n",
        "    proxied = {spelt(one) for one in (hop.principal, *hop.believed)}\n",
        killed_by=(
            "tests/gateway/test_protocol.py::test_p1_what_only_a_proxy_may_tell_is_not_believed_of_strangers[_]",
        ),
    ),
    Break(
        "a method in small letters needs no key",
        "http/messages.py",
        "        self.method = method.upper()\n",
        "        self.method = method\n",
        killed_by=(
            "tests/http/test_routed.py::test_k6_a_method_in_small_letters_in_wsgi[flask]",
            "tests/http/test_routed.py::test_k6_a_method_in_small_letters_in_wsgi[wsgi]",
        ),
    ),
    Break(
        "a path with a final line feed needs no key",
        "http/routes.py",
        '"/".join(filter(None, path.rstrip("\\n").split("/"))).casefold()',
        '"/".join(filter(None, path.split("/"))).casefold()',
        killed_by=("tests/http/test_routed.py::test_k6_a_final_line_feed_in_starlette",),
    ),
    Break(
        "a redirect to the login is the answer after it",
        "http/guard.py",
        "        elif status >= 300 and request is not None and leads_to_login(request, response):\n",
        "        elif False:\n",
        killed_by=("tests/http/test_bound_to_a_session.py::test_r33_a_redirect_to_the_login_is_not_replayed_after_it",),
    ),
    Break(
        "deliveries that wait for another one of their event hold the threads of all",
        "entrypoint.py",
        "            await claim.enter_by(_in_entering)\n            await in_thread(functools.partial(_work_entered",
        "            await in_thread(claim.__enter__)\n            await in_thread(functools.partial(_work_entered",
        killed_by=("tests/webhooks/test_receiver.py::test_deliveries_that_wait_hold_no_threads[sqlite]",),
    ),
    Break(
        "the metrics of a gateway fail while one of its workers starts",
        "gateway/metrics.py",
        "            except struct.error:",
        "            except ZeroDivisionError:",
        killed_by=("tests/gateway/test_app.py::test_the_file_of_a_worker_that_is_being_made_is_read_again",),
    ),
    Break(
        "a document of published keys that never ends is kept in memory",
        "gateway/principals.py",
        "        if len(body) > _MOST:\n",
        "        if False:\n",
        killed_by=("tests/gateway/test_principals.py::test_a_document_of_keys_that_never_ends_is_not_kept",),
    ),
    Break(
        "routes of a gateway keep their keys apart",
        "gateway/guards.py",
        "                settings.name,\n",
        "                settings.name + route.effects,\n",
        killed_by=(f"{GATEWAY}/test_config.py::test_a_key_of_one_route_is_refused_on_another_whatever_their_policies",),
        rows=(73,),
    ),
    Break(
        "a gateway that is stopped keeps its sockets, where new connections wait for nobody",
        "gateway/serving.py",
        "            one.close()\n        super()",
        "            pass\n        super()",
        killed_by=(f"{GATEWAY}/test_lives.py::test_what_runs_when_the_gateway_is_stopped_comes_to_its_end",),
    ),
    Break(
        "a gateway that is stopped does not wait until what it cut is recorded",
        "gateway/app.py",
        "            await asyncio.wait(self._running, timeout=_SECONDS_TO_MARK)",
        "            pass",
        killed_by=(f"{GATEWAY}/test_app.py::test_a_gateway_is_closed_when_all_that_was_cut_is_recorded",),
    ),
    Break(
        "the body of a request that offers an upgrade is the next request",
        "gateway/protocol.py",
        "return self._head_without_offer() + slice[ended.args[0] :] + rest",
        "return slice[ended.args[0] :] + rest",
        killed_by=(f"{GATEWAY}/test_protocol.py::test_an_offer_on_a_connection_that_is_to_be_closed",),
    ),
    Break(
        "a server that ends a request that offers an upgrade with its head is believed",
        "gateway/fields.py",
        'request.method == "CONNECT" or upgrading:',
        'request.method == "CONNECT":',
        killed_by=(
            f"{GATEWAY}/test_protocol.py::test_behind_a_server_that_ends_such_a_request_with_its_head_it_is_refused",
        ),
    ),
    Break(
        "trailers become fields of a request",
        "gateway/protocol.py",
        "        if not self._in_head:\n",
        "        if False:\n",
        killed_by=(f"{GATEWAY}/test_protocol.py::test_trailers_are_no_fields",),
    ),
    Break(
        "a response that came before its request is its answer",
        "gateway/upstream.py",
        "        if conn.protocol.should_close:",
        "        if False:",
        killed_by=(
            f"{GATEWAY}/test_failures.py::test_what_came_unasked_on_a_kept_connection_answers_nobody[POST-a response]",
            f"{GATEWAY}/test_failures.py::test_who_speaks_before_being_asked_is_not_asked",
        ),
    ),
    Break(
        "a response that cannot be passed on is recorded",
        "gateway/upstream.py",
        "if not 200 <= response.status <= 599 or has_controls(fields):",
        "if False:",
        killed_by=(
            f"{GATEWAY}/test_failures.py::test_what_cannot_be_passed_on_is_not_recorded_as_the_answer[status 600]",
        ),
    ),
    Break(
        "the path of servers is not part of a route",
        "gateway/openapi.py",
        "{_within(prefix, upstream)}{path}",
        "{path}",
        killed_by=(f"{GATEWAY}/test_config.py::test_paths_begin_with_that_of_their_servers",),
    ),
    # ------------------------------------------------------------ webhooks
    Break(
        "a signature is not looked at",
        "webhooks/signatures.py",
        "    if not matches(expected, given):",
        "    if False:",
        killed_by=(
            f"{SCHEMES}::test_a_tampered_body_is_refused[stripe]",
            f"{RECEIVER}::test_what_is_refused_uses_no_key_and_is_told[github-memory]",
        ),
    ),
    Break(
        "of several secrets the first alone is tried",
        "webhooks/signatures.py",
        'return [hmac.digest(secret, content, "sha256") for secret in secrets]',
        'return [hmac.digest(secret, content, "sha256") for secret in list(secrets)[:1]]',
        killed_by=(f"{SCHEMES}::test_during_a_rotation_both_secrets_pass[slack]",),
    ),
    Break(
        "signatures are compared as text, which raises for what is not ASCII",
        "webhooks/signatures.py",
        "            found |= hmac.compare_digest(one, other)",
        "            found |= hmac.compare_digest(one.decode(), other.decode())",
        killed_by=(f"{SCHEMES}::test_comparisons_look_at_every_pair",),
    ),
    Break(
        "a delivery that was signed long ago is taken",
        "webhooks/signatures.py",
        "    if abs(now - timestamp) > tolerance:",
        "    if timestamp - now > tolerance:",
        killed_by=(f"{SCHEMES}::test_a_time_that_is_far_away_is_refused[301-slack]",),
    ),
    Break(
        "a delivery that is signed for the future is taken, and can be replayed until then",
        "webhooks/signatures.py",
        "    if abs(now - timestamp) > tolerance:",
        "    if now - timestamp > tolerance:",
        killed_by=(f"{SCHEMES}::test_a_time_that_is_far_away_is_refused[-301-stripe]",),
    ),
    Break(
        "the id of a webhook is not signed",
        "webhooks/standard.py",
        "content = content_of([id, timestamp], body",
        "content = content_of([timestamp], body",
        killed_by=(f"{SCHEMES}::test_the_vector_of_standard_webhooks",),
    ),
    Break(
        "the id of GitHub's delivery, which is not signed, identifies its event",
        "webhooks/providers.py",
        'return Known(delivery, event, f"github {identity}", known)',
        "return Known(delivery, event, delivery, known)",
        killed_by=(f"{RECEIVER}::test_a_github_delivery_under_a_forged_id_is_refused_loudly[memory]",),
        rows=(16,),
    ),
    Break(
        "a field that came twice is taken once",
        "webhooks/deliveries.py",
        "        if len(values) > 1:",
        "        if False:",
        killed_by=(f"{SCHEMES}::test_a_signature_that_came_twice_is_refused[github]",),
    ),
    Break(
        "a handshake is answered before its signature is looked at",
        "webhooks/receiver.py",
        """        timestamp = self.scheme.verify(head, body, self._clock())
        document = document_of(head, body, self.scheme.media_types)
        known = self.scheme.identify(head, body, document)
        if isinstance(known, Response):
            return known
""",
        """        document = document_of(head, body, self.scheme.media_types)
        known = self.scheme.identify(head, body, document)
        if isinstance(known, Response):
            return known
        timestamp = self.scheme.verify(head, body, self._clock())
""",
        killed_by=(f"{RECEIVER}::test_handshakes_are_answered_only_if_they_are_signed[memory-async]",),
    ),
    Break(
        "a window that the provider's deliveries outlast is accepted",
        "webhooks/receiver.py",
        "        if boundary.window < scheme.redelivery_window:",
        "        if False:",
        killed_by=(f"{RECEIVER}::test_a_window_shorter_than_the_provider_delivers_again_is_refused[stripe-memory]",),
        rows=(78,),
    ),
    Break(
        "an error of the handler's is answered as if it were the claim's",
        "webhooks/receiver.py",
        "        answer = None if error is handling.raised else answer_of(error, self._concurrent_status)",
        "        answer = answer_of(error, self._concurrent_status)",
        killed_by=(
            f"{RECEIVER}::test_what_a_handler_meets_in_another_boundary_is_no_answer_of_this_one[error0-async-memory]",
        ),
    ),
    Break(
        "a simultaneous delivery is acknowledged, so that the event is lost if its handler fails",
        "webhooks/answers.py",
        '(InProgress, Answer(503, "in-progress", 1)),',
        '(InProgress, Answer(DUPLICATE, "in-progress", 1)),',
        killed_by=(
            (
                f"{RECEIVER}::test_simultaneous_deliveries_have_one_effect_and_the_others_are_told_to_come_again"
                "[stripe-async-memory]"
            ),
        ),
        rows=(77,),
    ),
    Break(
        "two receivers share their keys, so that who can sign for one suppresses the events of the other",
        "claims/key_spaces.py",
        "    found = _lasting(other)\n",
        "    found = None\n",
        killed_by=(f"{RECEIVER}::test_two_tenants_cannot_suppress_each_others_events[memory]",),
    ),
    Break(
        "an event that nobody handles uses up the key of its handling, also under a forged name",
        "webhooks/handling.py",
        "self._operation if self.handler else unhandled(self._operation)",
        "self._operation",
        killed_by=(f"{RECEIVER}::test_a_github_delivery_under_a_forged_id_is_refused_loudly[memory]",),
    ),
    Break(
        "that an event was handled is stored by the boundary's codec, which may not be able to",
        "webhooks/handling.py",
        "fingerprint=fingerprint, codec=CODEC)",
        "fingerprint=fingerprint)",
        killed_by=(f"{RECEIVER}::test_that_an_event_was_handled_is_stored_whatever_the_boundarys_codec[memory-sync]",),
    ),
    Break(
        "a handler that leaves its work undone has handled the event",
        "webhooks/handling.py",
        "refuse_unfinished(claim, await self.handler.acall(self._given(self.handler, claim)), ran=True)",
        "await self.handler.acall(self._given(self.handler, claim))",
        killed_by=(f"{RECEIVER}::test_what_a_handler_leaves_undone_is_not_stored_as_handled[memory-async]",),
    ),
    Break(
        "an endpoint that drips its answer keeps an attempt beyond the deadline",
        "webhooks/sender.py",
        "asyncio.timeout(max(left, self._timeout))",
        "asyncio.timeout(None)",
        killed_by=(f"{SENDER}::test_an_endpoint_that_drips_its_answer_keeps_an_async_sender_to_its_deadline",),
    ),
    Break(
        "a cancelled delivery leaves its sync handler behind",
        "entrypoint.py",
        "    done, cancelled = await run_in_thread(work)",
        "    import asyncio\n\n    done, cancelled = await asyncio.to_thread(work), None",
        killed_by=(f"{RECEIVER}::test_a_cancelled_delivery_comes_to_its_end_in_a_sync_handler[memory]",),
        rows=(89,),
    ),
    Break(
        "a content type that is not signed makes another document of what is",
        "webhooks/deliveries.py",
        'if media_type == FORM and not body.lstrip().startswith(b"{"):',
        "if media_type == FORM:",
        killed_by=(f"{SCHEMES}::test_a_content_type_which_is_not_signed_makes_no_other_document_of_a_signed_body",),
    ),
    Break(
        "the transaction of ATOMIC_REQUESTS outlasts the record",
        "webhooks/django.py",
        "        return _response(receiver.receive(_headers(request), body, around=around))",
        "        return _response(receiver.receive(_headers(request), body))",
        killed_by=(f"{DOORS}::test_django_what_a_handler_did_under_atomic_requests_is_undone_when_it_fails",),
    ),
    Break(
        "a webhook's body is read whatever its size",
        "webhooks/asgi.py",
        "        if len(body) > limit:",
        "        if False:",
        killed_by=(f"{DOORS}::test_a_body_of_any_size_is_read_no_further_than_its_limit[memory]",),
        rows=(66,),
    ),
    Break(
        "every attempt at a delivery is signed at the time of the first",
        "webhooks/sender.py",
        "endpoint.signed(message, self._clock())",
        'endpoint.signed(message, self.__dict__.setdefault("_first", self._clock()))',
        killed_by=(f"{SENDER}::test_one_id_and_body_over_all_attempts_and_a_time_and_signature_of_each[async]",),
    ),
    Break(
        "an endpoint that is gone is asked again",
        "webhooks/delivering.py",
        "    if tried.status == GONE:",
        "    if False:",
        killed_by=(f"{SENDER}::test_outcomes",),
    ),
    Break(
        "a delivery without an answer counts as refused",
        "webhooks/delivering.py",
        "    doubtful |= tried.status is None and tried.sent",
        "    doubtful |= False",
        killed_by=(
            f"{SENDER}::test_an_attempt_without_an_answer_leaves_doubt_that_only_a_success_takes_away[cut-sync]",
        ),
    ),
]

"""Breaks for the rows 36 to 90 of the fault catalogue: stores, clocks, payloads, clients, retention, operations.

Those of messages (50 to 56, 59, 86) are in `outbox.py`, `inboxes.py` and `consumers.py`; of row 57 the lease is here.
"""

from __future__ import annotations

from tests.proving.breaks import Break

REDIS = "tests/faults/test_redis.py::"
REDIS_KILLS = "tests/faults/test_redis_kills.py::"
SERVER_CLOCK = "tests/faults/test_server_clock.py::"
DYNAMODB = "tests/faults/test_dynamodb.py::"
CLOCKS = "tests/faults/test_clocks.py::"
UNREADABLE = "tests/faults/test_unreadable.py::"
OBJECTS = "tests/boundary/test_codec_objects.py::"
VERSIONS = "tests/faults/test_two_versions.py::"
RESTORED = "tests/faults/test_restored.py::"
SWEEPING = "tests/faults/test_sweeping.py::"
PROCESS = "tests/faults/test_process.py::"
GUARD = "tests/http/test_guard.py::"
ASGI = "tests/http/test_asgi.py::"

_REDIS = [
    Break(
        "a Redis server that evicts records is only warned of",
        "backends/redis/store.py",
        'yield Finding("refuse", "eviction", text)',
        'yield Finding("warn", "eviction", text)',
        killed_by=(
            f"{REDIS_KILLS}test_a_server_that_may_evict_records_is_refused",
            f"{REDIS_KILLS}test_async_code_refuses_it_too",
        ),
        rows=(36,),
    ),
    Break(
        "on Redis a late owner settles the record of another attempt",
        "backends/redis/store.py",
        "or record.attempt ~= ARGV[2] or record[ARGV[3]] ~= tonumber(ARGV[4]) then return 0 end",
        "then return 0 end",
        killed_by=(f"{SERVER_CLOCK}test_a_late_word_after_a_jump_forward_changes_nothing",),
        rows=(42, 62),
    ),
    Break(
        "on Redis a late owner is told that it settled what a failover has given to another attempt",
        "protocol/procedures.py",
        """        record is not None
        and (record.attempt, record.token) == (held.attempt, held.token)
        and record.state is RULES[event].target""",
        """        record is not None
        and record.state is RULES[event].target""",
        killed_by=(f"{REDIS_KILLS}test_a_failover_that_loses_a_claim_lets_two_attempts_run",),
        rows=(37,),
    ),
    Break(
        "that a failover of Redis loses claims is not documented",
        "backends/redis/store.py",
        '            "a failover that loses a claim: another attempt may run while the first one does",\n',
        "",
        killed_by=(
            f"{REDIS_KILLS}test_what_these_tests_lose_is_documented[lost claim]",
            "tests/docs/test_generated.py::test_committed_page_is_what_would_be_generated[docs/explanation/which-store.md]",
        ),
        rows=(37,),
    ),
    Break(
        "that everysec has a window is not documented",
        "backends/redis/store.py",
        "a loss of power with appendfsync everysec, or a crash with snapshots only: the last writes are gone",
        "hardly anything",
        killed_by=(
            f"{REDIS_KILLS}test_what_these_tests_lose_is_documented[everysec]",
            "tests/docs/test_generated.py::test_committed_page_is_what_would_be_generated[docs/explanation/which-store.md]",
        ),
        rows=(38,),
    ),
    Break(
        "a Redis server without AOF is not warned of",
        "backends/redis/store.py",
        'yield Finding("warn", "persistence", text + " Set appendonly yes.")',
        'yield Finding("fact", "persistence", text + " Set appendonly yes.")',
        killed_by=(f"{REDIS_KILLS}test_without_persistence_a_kill_forgets_everything",),
        rows=(38,),
    ),
    Break(
        "a step on Redis is two commands",
        "backends/redis/client.py",
        "            reply = perform(node, [by_digest(script)])[0]\n",
        '            reply = perform(node, [("HGET", script.keys[0], "state"), by_digest(script)])[1]\n',
        killed_by=(f"{REDIS}test_every_step_is_one_script[redis]",),
        rows=(39,),
    ),
    Break(
        "half a record on Redis is taken for a record",
        "backends/redis/packing.py",
        "if not v[7] then return nil end",
        "if not v[1] then return nil end",
        killed_by=(f"{REDIS}test_half_a_record_is_no_record[redis]",),
        rows=(39,),
    ),
    Break(
        "the first record of a key in Redis has a version that one before it had",
        "backends/redis/store.py",
        "ARGV[4], now, 1, ARGV[1], ''))",
        "ARGV[4], 1, 1, ARGV[1], ''))",
        killed_by=("tests/stores/test_differential.py::test_every_event_agrees_with_the_table[redis-forgotten]",),
        rows=(16, 79),
    ),
    Break(
        "a record that retrysafe 0.1 wrote to Redis is taken for none",
        "backends/redis/packing.py",
        "if type(packed) == 'table' then return of_hash() end",
        "if type(packed) == 'table' then return nil end",
        killed_by=(
            f"{REDIS}test_a_hash_is_read_and_left_alone[redis-result0]",
            f"{REDIS}test_a_hash_that_runs_is_waited_for_and_its_owner_settles_it[redis]",
        ),
        rows=(39, 83),
    ),
    Break(
        "a sweep removes records of a newer retrysafe from Redis",
        "backends/redis/packing.py",
        "  if record.format ~= 1 then return 'of a newer retrysafe' end\n",
        "",
        killed_by=(f"{REDIS}test_a_sweep_leaves_records_of_a_newer_retrysafe_alone[redis]",),
        rows=(83,),
    ),
    Break(
        "a script that Redis has forgotten is not loaded again",
        "backends/redis/client.py",
        'if code_of(reply) == "NOSCRIPT":',
        "if False:",
        killed_by=(f"{REDIS}test_a_server_without_our_scripts_is_given_them[sync]",),
        rows=(40,),
    ),
    Break(
        "a script that Redis has forgotten is not loaded again by async code",
        "backends/redis/async_client.py",
        'return await lane.ask(by_source(script)) if code_of(reply) == "NOSCRIPT" else reply',
        "return reply",
        killed_by=(f"{REDIS}test_a_server_without_our_scripts_is_given_them[async]",),
        rows=(40,),
    ),
    Break(
        "redirections of a Redis cluster are not followed",
        "backends/redis/client.py",
        "return code_of(reply) in _REDIRECTIONS",
        "return False",
        killed_by=(f"{REDIS}test_a_slot_that_moves_is_followed",),
        rows=(41,),
    ),
    Break(
        "the keys of one script are in several slots of a Redis cluster",
        "backends/redis/store.py",
        'made, kept = (b"retrysafe:quota:{" + allowance.holder.hex().encode() + b"}:" + name for name in _COUNTED)',
        'made, kept = (b"retrysafe:quota:" + allowance.holder.hex().encode() + b":" + name for name in _COUNTED)',
        killed_by=(f"{REDIS}test_what_one_script_touches_is_in_one_slot",),
        rows=(41,),
    ),
    Break(
        "on Redis the token of a takeover is the server's time",
        "backends/redis/store.py",
        "math.max(record.token + 1, now)",
        "now",
        killed_by=(
            f"{SERVER_CLOCK}test_a_jump_back_frees_no_key_and_gives_no_lower_token",
            f"{SERVER_CLOCK}test_a_jump_there_and_back_keeps_the_order_of_attempts",
        ),
        rows=(42, 61),
    ),
    Break(
        "a connection to Redis that was left between two replies is used again",
        "backends/redis/client.py",
        """        if not whole:
            connection.disconnect()
""",
        "",
        killed_by=(f"{REDIS}test_a_connection_that_was_left_between_two_replies_is_not_used_again",),
        rows=(43,),
    ),
    Break(
        "the reply to a cancelled request goes to the next one on the wire",
        "backends/redis/async_client.py",
        """            answer, _ = self._waiting.popleft()
            if not answer.done():
                answer.set_result(reply)""",
        """            answer, _ = self._waiting.popleft()
            while answer.done() and self._waiting:
                answer, _ = self._waiting.popleft()
            if not answer.done():
                answer.set_result(reply)""",
        killed_by=(f"{REDIS}test_cancelling_one_waiter_disturbs_no_other[redis]",),
        rows=(43,),
    ),
]

_DYNAMODB = [
    Break(
        "an attempt does not recognise the record that it has written itself",
        "protocol/procedures.py",
        "if met.attempt == request.attempt and met.state is State.RUNNING:",
        "if False:",
        killed_by=(
            f"{DYNAMODB}test_a_lost_claim_or_completion_is_recognised_as_ones_own[0-reply lost]",
            f"{DYNAMODB}test_a_lost_takeover_is_recognised_as_ones_own[reply lost]",
            f"{DYNAMODB}test_an_sdk_that_tries_again_by_itself_changes_nothing[0]",
        ),
        rows=(44,),
    ),
    Break(
        "a completion whose condition failed is not read back",
        "protocol/procedures.py",
        """    record = yield from ask(store.read(held.key))
    return (
        record is not None
        and (record.attempt, record.token)""",
        """    record = None if held else (yield from ask(store.read(held.key)))
    return (
        record is not None
        and (record.attempt, record.token)""",
        killed_by=(
            f"{DYNAMODB}test_a_lost_claim_or_completion_is_recognised_as_ones_own[1-reply lost]",
            f"{DYNAMODB}test_an_sdk_that_tries_again_by_itself_changes_nothing[1]",
        ),
        rows=(44,),
    ),
    Break(
        "on DynamoDB a key is forgotten only when the service has removed its item",
        "backends/dynamodb/store.py",
        'EffectiveState.FORGOTTEN: f"{_SETTLED} AND #tombstone_until <= :now",',
        'EffectiveState.FORGOTTEN: f"{_SETTLED} AND #tombstone_until <= :now AND attribute_not_exists(#ttl)",',
        killed_by=(f"{DYNAMODB}test_what_the_service_has_not_removed_yet_is_forgotten_all_the_same",),
        rows=(45,),
    ),
    Break(
        "a running record on DynamoDB has a time to live",
        "backends/dynamodb/store.py",
        """        else:
            self._removes.append("#ttl")""",
        """        else:
            self.set(ttl=_ttl(now + clocks.memory))""",
        killed_by=(f"{DYNAMODB}test_only_what_is_settled_has_a_time_to_live",),
        rows=(45,),
    ),
    Break(
        "the first claim on DynamoDB has no condition",
        "backends/dynamodb/store.py",
        'update = _Update("attribute_not_exists(key_hash)")',
        'update = _Update("attribute_not_exists(key_hash) OR attribute_exists(key_hash)")',
        killed_by=(f"{DYNAMODB}test_a_request_that_arrives_again_much_later_changes_nothing",),
        rows=(46,),
    ),
    Break(
        "a throttled call to DynamoDB is not made again",
        "backends/dynamodb/client.py",
        '        "ThrottlingException",\n',
        "",
        killed_by=(f"{DYNAMODB}test_a_service_that_asks_to_come_again_is_asked_again[ThrottlingException]",),
        rows=(47,),
    ),
    Break(
        "one renewal that fails costs the lease",
        "claims/lease.py",
        "if lease.until - clock() <= lease.seconds / 3:",
        "if True:",
        killed_by=(f"{DYNAMODB}test_a_throttled_renewal_does_not_lose_the_lease",),
        rows=(47,),
    ),
    Break(
        "DynamoDB is read eventually consistently",
        "backends/dynamodb/store.py",
        'arguments = {"TableName": self._name, "Key": _key(key), "ConsistentRead": True}',
        'arguments = {"TableName": self._name, "Key": _key(key), "ConsistentRead": False}',
        killed_by=(f"{DYNAMODB}test_every_read_is_consistent_and_nothing_rests_on_a_request_token",),
        rows=(48,),
    ),
    Break(
        "a claim that leaves no room for a result in its item runs all the same",
        "backends/dynamodb/store.py",
        "    if size > RESERVED - _GROWTH:",
        "    if False:",
        killed_by=(f"{DYNAMODB}test_a_fixed_part_that_is_too_large_is_refused_before_the_effect",),
        rows=(49,),
    ),
    Break(
        "a result may fill the whole item on DynamoDB",
        "backends/dynamodb/store.py",
        "largest_result=LARGEST_ITEM - RESERVED,",
        "largest_result=LARGEST_ITEM,",
        killed_by=(f"{DYNAMODB}test_the_largest_result_fits_and_one_byte_more_is_withheld",),
        rows=(49,),
    ),
]

_CLOCKS = [
    Break(
        "leases of threads are not renewed",
        "claims/claim.py",
        "            held.heartbeat.add(held)\n        return met\n",
        "        return met\n",
        killed_by=("tests/faults/test_heartbeat.py::test_work_longer_than_its_lease_keeps_its_key[sqlite]",),
        rows=(57,),
    ),
    Break(
        "on PostgreSQL the clock of a worker decides",
        "backends/sql/postgresql.py",
        'NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"',
        "NOW = f\"CAST({__import__('time').time_ns() // 1000} AS bigint)\"",
        killed_by=(f"{CLOCKS}test_a_workers_wall_clock_does_not_matter[postgresql-315360000.0]",),
        rows=(60, 62),
    ),
    Break(
        "the clock of a machine is taken for DynamoDB's",
        "backends/dynamodb/service_clock.py",
        "return local + (self._assumed if bounds is None else bounds.aged(local).least)",
        "return time.time_ns() // 1000",
        killed_by=(
            f"{DYNAMODB}test_the_services_clock_decides_not_the_machines",
            f"{DYNAMODB}test_a_workers_wall_clock_does_not_matter[3600.0]",
        ),
        rows=(60,),
    ),
    Break(
        "a worker measures its lease by its wall clock",
        "claims/lease.py",
        "return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)",
        "return time.time()",
        killed_by=(f"{CLOCKS}test_a_worker_knows_by_itself_that_its_lease_is_over[sqlite-315360000.0]",),
        rows=(61,),
    ),
    Break(
        "in SQL a late owner settles the record of another attempt",
        "backends/sql/statements.py",
        """            f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt')} "
            f"AND r.token = {self.p('token')} AND {allowed(event)}{stamp}",""",
        """            f"r.key_hash = {self.p('key')} AND {allowed(event)}{stamp}",""",
        killed_by=(
            f"{CLOCKS}test_a_worker_stopped_while_the_second_runs_cannot_finish_for_it[sqlite]",
            "tests/faults/test_peers_bugs.py::test_a_late_owner_cannot_flip_the_new_owners_record[sqlite-running-completes]",
        ),
        rows=(62, 64),
    ),
    Break(
        "a worker that was suspended believes in its lease for ever",
        "claims/lease.py",
        "return not self.lost and clock() < self.until",
        "return not self.lost",
        killed_by=(f"{CLOCKS}test_a_worker_knows_by_itself_that_its_lease_is_over[sqlite-0.0]",),
        rows=(64,),
    ),
    Break(
        "instants on PostgreSQL are of the session's time zone",
        "backends/sql/postgresql.py",
        "extract(epoch FROM clock_timestamp())",
        "extract(epoch FROM CAST(clock_timestamp() AS timestamp))",
        killed_by=(f"{CLOCKS}test_a_time_zone_that_changes_moves_no_instant[postgresql]",),
        rows=(63,),
    ),
    Break(
        "instants on MySQL are of the session's time zone",
        "backends/sql/mysql.py",
        'UTC_TIMESTAMP(6))"',
        'NOW(6))"',
        killed_by=(f"{CLOCKS}test_a_time_zone_that_changes_moves_no_instant[mysql]",),
        rows=(63,),
    ),
    Break(
        "instants on SQLite are of the machine's time zone",
        "backends/sql/sqlite.py",
        "julianday('now')",
        "julianday('now', 'localtime')",
        killed_by=(f"{CLOCKS}test_a_time_zone_that_changes_moves_no_instant[sqlite]",),
        rows=(63,),
    ),
]

_PAYLOADS = [
    Break(
        "the application's 400 is not stored",
        "http/policy.py",
        "PASSING = frozenset({401, 403, 408, 421, 425, 429})",
        "PASSING = frozenset({400, 401, 403, 408, 421, 425, 429})",
        killed_by=(f"{ASGI}test_r25_json_that_cannot_be_parsed[memory-False]",),
        rows=(65,),
    ),
    Break(
        "JSON without a canonical form uses its key up",
        "http/guard.py",
        'raise Refusal("request-invalid", f"Nothing was done. {error}") from error',
        "return None",
        killed_by=(f"{ASGI}test_r25_json_that_cannot_be_parsed[memory-True]",),
        rows=(65, 67, 68),
    ),
    Break(
        "a body is read however large it is",
        "http/bodies.py",
        """        if self.length > self._limit:
            self._refuse()
""",
        "",
        killed_by=(
            f"{ASGI}test_r12_a_request_over_the_limit_is_refused[memory-False]",
            "tests/http/test_bodies.py::test_r12_over_the_limit_is_refused_when_it_gets_there",
        ),
        rows=(66,),
    ),
    Break(
        "NaN and Infinity have a canonical form",
        "protocol/canonical.py",
        'raise NotCanonical(f"{name} is not JSON")',
        "return name",
        killed_by=(
            "tests/core/test_canonical.py::test_text_without_one_meaning_is_refused[NaN]",
            "tests/core/test_canonical.py::test_text_without_one_meaning_is_refused[Infinity]",
        ),
        rows=(67,),
    ),
    Break(
        "floats that are no numbers have a canonical form",
        "protocol/canonical.py",
        "    if not math.isfinite(value):",
        "    if False:",
        killed_by=("tests/core/test_canonical.py::test_what_has_no_canonical_form_is_refused[float0]",),
        rows=(67,),
    ),
    Break(
        "of two members with one name the last one counts",
        "protocol/canonical.py",
        "    if len(members) != len(pairs):",
        "    if False:",
        killed_by=(
            "tests/core/test_canonical.py::test_text_without_one_meaning_is_refused[duplicate members]",
            f'{GUARD}test_f3_json_without_a_canonical_form_is_refused_and_consumes_no_key[{{"a":1,"a":2}}]',
        ),
        rows=(68,),
    ),
    Break(
        "bodies are compared by what JSON says, though nobody asked for that",
        "http/guard.py",
        "meant = (self._canonical(request, body) if self.policy.canonical_json else None) or body.digest()",
        "meant = self._canonical(request, body) or body.digest()",
        killed_by=("tests/http/test_guard.py::test_f1_the_body_counts_byte_by_byte",),
        rows=(68,),
    ),
    Break(
        "keys are normalised",
        "protocol/keys.py",
        '    if not 1 <= len(text) <= LONGEST:\n        raise InvalidKey(f"A key has',
        '    text = unicodedata.normalize("NFC", text)\n'
        '    if not 1 <= len(text) <= LONGEST:\n        raise InvalidKey(f"A key has',
        killed_by=("tests/boundary/test_once.py::test_unicode_forms_are_two_keys",),
        rows=(69,),
    ),
    Break(
        "digests in fingerprints are cut",
        "protocol/fingerprint.py",
        "        out += part.digest\n",
        "        out += part.digest[:8] + bytes(24)\n",
        killed_by=("tests/core/test_fingerprint.py::test_the_layout_is_version_name_and_full_digest",),
        rows=(70,),
    ),
    Break(
        "fingerprints do not say of which version they are",
        "protocol/fingerprint.py",
        "    out = bytearray((version,))",
        "    out = bytearray((0,))",
        killed_by=("tests/core/test_fingerprint.py::test_the_layout_is_version_name_and_full_digest",),
        rows=(70,),
    ),
    Break(
        "the hashes of keys are cut",
        "protocol/keys.py",
        "        return outer.digest()\n",
        "        return outer.digest()[:8] + bytes(24)\n",
        killed_by=("tests/core/test_keys.py::test_stored_hashes_stay_as_they_are_for_ever",),
        rows=(70,),
    ),
    Break(
        "a stored pickle is loaded",
        "claims/codec.py",
        '            kind = f"{stored.media_type} version {stored.codec_version}"\n',
        '            if stored.media_type == "application/x-pickle":\n'
        '                return __import__("pickle").loads(stored.body)\n'
        '            kind = f"{stored.media_type} version {stored.codec_version}"\n',
        killed_by=(f"{UNREADABLE}test_a_pickle_is_never_loaded[sqlite]",),
        rows=(71,),
    ),
    Break(
        "a result of a later codec is read as if it were of this one",
        "claims/codec.py",
        "if (stored.media_type, stored.codec_version) != (MEDIA_TYPE, VERSION):",
        "if stored.media_type != MEDIA_TYPE:",
        killed_by=(
            f"{UNREADABLE}test_a_result_of_a_later_codec[sqlite]",
            f"{UNREADABLE}test_a_failure_of_a_later_codec[sqlite]",
        ),
        rows=(72,),
    ),
    Break(
        "an object is stored without looking whether it comes back",
        "claims/codec.py",
        "            if _OBJECT in body:",
        "            if False:",
        killed_by=(
            f"{OBJECTS}test_what_would_come_back_different_is_refused[Growing-type-str]",
            f"{OBJECTS}test_what_would_come_back_different_is_refused[Doubling-type-str]",
        ),
    ),
    Break(
        "a pydantic model is stored without looking whether it comes back",
        "claims/pydantic_models.py",
        "            found = difference(model, read(type(model), plain, by_name))",
        "            found = None",
        killed_by=(f"{OBJECTS}test_nobody_gets_a_result_that_a_retry_would_not_get[sync-keyed-<lambda>0]",),
    ),
    Break(
        "a field that was renamed is passed over when an old result is read",
        "claims/pydantic_models.py",
        "    found = _lost(plain, _dump(model, by_name))",
        "    found = None",
        killed_by=(f"{OBJECTS}test_what_the_class_of_today_would_lose_is_refused[renamed]",),
    ),
    Break(
        "a codec of the user's is believed",
        "claims/codec.py",
        "        found = difference(value, self._codec.decode(stored, annotation))",
        "        found = None",
        killed_by=(f"{OBJECTS}test_a_codec_of_the_users_is_held_to_its_word",),
    ),
    Break(
        "an answer that cannot be read is made again",
        "protocol/decisions.py",
        "    return _BY_STATE.get(state) or",
        "    if state is EffectiveState.COMPLETED and record.result is not None "
        "and record.result.codec_version != 1:\n"
        "        return Decision.TAKE\n"
        "    return _BY_STATE.get(state) or",
        killed_by=(f"{UNREADABLE}test_a_result_of_a_later_codec[sqlite]",),
        rows=(72,),
    ),
    Break(
        "a record in a state of a later version is no typed error",
        "protocol/transitions.py",
        """    try:
        return _STATES[stored]
    except KeyError:
        raise StoreMisconfigured(
            f"Its record is {stored!r}, which only a newer retrysafe understands: upgrade it here, too"
        ) from None
""",
        """    return _STATES[stored]
""",
        killed_by=(f"{UNREADABLE}test_a_state_of_a_later_version",),
        rows=(72,),
    ),
]

_CLIENTS = [
    Break(
        "another request with the same key is answered like the first",
        "protocol/decisions.py",
        "    if record.fingerprint != request.fingerprint and not agree(record.fingerprint, request.payload):",
        "    if False:",
        killed_by=(f"{ASGI}test_f1_f2_another_request_with_the_same_key_is_refused[sqlite-query]",),
        rows=(73,),
    ),
    Break(
        "the scope is no part of a key's identity",
        "protocol/keys.py",
        'map(_prefixed, ("lookup.v1", boundary, scope, operation))',
        'map(_prefixed, ("lookup.v1", boundary, "", operation))',
        killed_by=(
            "tests/core/test_keys.py::test_a_tenant_that_guesses_a_key_finds_nothing",
            f"{ASGI}test_k8_keys_of_two_principals_never_meet[sqlite]",
            "tests/boundary/test_terms.py::test_scopes_keep_tenants_apart",
        ),
        rows=(74,),
    ),
    Break(
        "a quota is not asked for in SQL",
        "backends/sql/store.py",
        "        if allowance is None:\n            return Ask(self.claim_query(request), reading.record)",
        "        if True:\n            return Ask(self.claim_query(request), reading.record)",
        killed_by=(
            "tests/boundary/test_quotas.py::test_a_flood_from_many_threads[sqlite]",
            "tests/http/test_safety.py::test_k11_a_client_over_its_quota_is_told_when_to_come_again",
        ),
        rows=(75,),
    ),
    Break(
        "a key is claimed before the body of its request is there",
        "http/asgi.py",
        """            if not await read_body(body, receive):
                return
""",
        """            early = guard.claim(request, key, body, found)
            await guard.entry.enter(early)
            if not await read_body(body, receive):
                return
            await guard.entry.leave(early, None)
""",
        killed_by=(f"{ASGI}test_r12_a_client_that_sends_slowly_keeps_no_key_meanwhile[sqlite]",),
        rows=(76,),
    ),
    Break(
        "a simultaneous duplicate is told of doubt",
        "protocol/decisions.py",
        "    EffectiveState.RUNNING: Decision.BUSY,",
        "    EffectiveState.RUNNING: Decision.DOUBT,",
        killed_by=(
            "tests/faults/test_duplicates.py::test_threads_are_told_that_the_first_is_running[sqlite-keyed]",
            f"{ASGI}test_r1_of_many_at_once_one_runs[sqlite]",
        ),
        rows=(77,),
    ),
    Break(
        "a duplicate waits without bound",
        "protocol/backoff.py",
        "        if left <= 0:\n            return None\n",
        "",
        killed_by=("tests/core/test_schedules.py::test_patience_ends_at_its_deadline",),
        rows=(77,),
    ),
]

_RETENTION = [
    Break(
        "a tombstone refuses nothing",
        "protocol/decisions.py",
        '"refuse": Decision.EXPIRED}',
        '"refuse": Decision.TAKE}',
        killed_by=("tests/boundary/test_terms.py::test_result_and_key_have_separate_clocks",),
        rows=(78,),
    ),
    Break(
        "a sweep takes records whose attempt may run",
        "protocol/transitions.py",
        "Transition.SWEEP: _rule(None, Guard.CLOCK, EffectiveState.FORGOTTEN),",
        "Transition.SWEEP: _rule(None, Guard.CLOCK, EffectiveState.FORGOTTEN, EffectiveState.RUNNING, "
        "EffectiveState.LAPSED),",
        killed_by=(f"{SWEEPING}test_only_forgotten_records_go_and_all_of_them[sqlite]",),
        rows=(79,),
    ),
    Break(
        "a sweep waits for records that others hold",
        "backends/sql/postgresql.py",
        'SKIP_LOCKED = " FOR UPDATE OF r SKIP LOCKED"',
        'SKIP_LOCKED = " FOR UPDATE OF r"',
        killed_by=(f"{SWEEPING}test_a_locked_record_is_passed_over",),
        rows=(80,),
    ),
    Break(
        "a sweep takes all that is forgotten in one statement",
        "backends/sql/statements.py",
        """f"WHERE {self.forgotten_now()} ORDER BY r.tombstone_until LIMIT {self.p('limit')}{self.SKIP_LOCKED})\"""",
        """f"WHERE {self.forgotten_now()} AND {self.p('limit')} > 0 ORDER BY r.tombstone_until{self.SKIP_LOCKED})\"""",
        killed_by=(f"{SWEEPING}test_only_forgotten_records_go_and_all_of_them[sqlite]",),
        rows=(80,),
    ),
    Break(
        "records are removed before they are archived",
        "admin/sweeper.py",
        """            self._archive(records)
            count.archived += len(records)
            gone = run(remove(self._store, records), client)
            count.removed += gone
""",
        """            gone = run(remove(self._store, records), client)
            count.removed += gone
            self._archive(records)
            count.archived += len(records)
""",
        killed_by=(
            f"{SWEEPING}test_what_cannot_be_archived_is_not_removed[sqlite]",
            f"{SWEEPING}test_killed_sweepers_lose_nothing_while_others_claim[sqlite-True]",
        ),
        rows=(81,),
    ),
]

_OPERATIONS = [
    Break(
        "a worker refuses a schema that is newer than its own",
        "protocol/migrating.py",
        "    if version < needed:\n        old",
        "    if version != needed:\n        old",
        killed_by=(
            f"{VERSIONS}test_a_worker_of_the_version_before_can_be_started_after_the_migration[sqlite]",
            f"{VERSIONS}test_a_worker_of_the_version_before_can_be_started_after_the_migration[mysql]",
        ),
        rows=(83,),
    ),
    Break(
        "a worker works on a schema that is older than its own",
        "backends/backend.py",
        "        yield from self.require_schema()\n        return (yield from examine(self.store))",
        "        return (yield from examine(self.store))",
        killed_by=(f"{VERSIONS}test_the_newer_version_waits_for_its_migration[postgresql]",),
        rows=(82,),
    ),
    Break(
        "work runs although its claim could not be written",
        "claims/modes.py",
        "        found = judged(request, put(store.claim(request), client, again=True))\n",
        """        try:
            found = judged(request, put(store.claim(request), client, again=True))
        except StoreUnavailable:
            from retrysafe.protocol.transitions import first_claim

            record = first_claim(request, 1)
            return Won(Ownership(request.key, request.attempt, 1, request.clocks, False), record, None)
""",
        killed_by=(
            "tests/faults/test_sql_faults.py::TestDiskFull::test_it_is_refused_before_the_effect[keyed]",
            f"{REDIS_KILLS}test_a_full_server_refuses_claims_and_forgets_none",
        ),
        rows=(84,),
    ),
    Break(
        "attempts are not counted before their effect",
        "backends/sql/store.py",
        'params |= {"attempts": started_before(seen) + 1,',
        'params |= {"attempts": started_before(seen),',
        killed_by=(f"{PROCESS}test_a_crash_loop_counts_every_attempt_before_its_effect[sqlite]",),
        rows=(85,),
    ),
    Break(
        "a forked child uses its parent's client",
        "backends/backend.py",
        '''        """The sync client of this process."""
        pid = os.getpid()
''',
        '''        """The sync client of this process."""
        pid = 0
''',
        killed_by=(f"{PROCESS}test_a_fork_gets_connections_and_a_heartbeat_of_its_own[postgresql-transactional]",),
        rows=(87,),
    ),
    Break(
        "a connection is lent to several threads",
        "backends/sql/drivers/own.py",
        """            connection = self._idle.pop()
            if self._driver.is_usable(connection):
                return connection
            self._driver.close(connection)""",
        """            connection = self._idle[-1]
            if self._driver.is_usable(connection):
                return connection
            self._idle.pop()
            self._driver.close(connection)""",
        killed_by=(f"{PROCESS}test_threads_share_no_connection[pymysql-transactional]",),
        rows=(88,),
    ),
    Break(
        "a claim that a cancelled caller has won is not given back",
        "claims/claim.py",
        """            if isinstance(outcome, Won):
                self._met(outcome)
            raise cancelled""",
        """            raise cancelled""",
        killed_by=("tests/faults/test_cancellation.py::test_cancelled_while_claiming_leaves_no_orphan[psycopg]",),
        rows=(89,),
    ),
    Break(
        "a cancelled caller does not wait for its completion",
        "claims/claim.py",
        """        _, cancelled = await run_to_completion(ending, at_exit=True)
        if cancelled is not None:
            raise cancelled
""",
        "        await ending\n",
        killed_by=(
            "tests/faults/test_cancellation.py::test_a_completion_that_has_to_wait_outlives_its_cancelled_caller",
        ),
        rows=(89,),
    ),
    Break(
        "tokens count from one, so that those of before a restore come again",
        "backends/sql/statements.py",
        """            f"t.now, 1, {self.p('effects')}, t.now +""",
        """            f"1, 1, {self.p('effects')}, t.now +""",
        killed_by=(
            f"{RESTORED}test_forgotten_work_runs_again_with_the_same_derived_key_and_a_higher_token",
            f"{RESTORED}test_an_attempt_of_before_the_restore_cannot_settle_what_was_claimed_since",
        ),
        rows=(90,),
    ),
    Break(
        "the token of a takeover is one more, so that those of before a restore come again",
        "backends/sql/statements.py",
        "token = {self.GREATEST}(r.token + 1, t.now)",
        "token = r.token + 1",
        killed_by=(f"{RESTORED}test_forgotten_work_runs_again_with_the_same_derived_key_and_a_higher_token",),
        rows=(90,),
    ),
    Break(
        "a store does not say what a restored backup costs",
        "backends/sql/sqlite.py",
        '            "a restored backup: records since then are gone, and what they guarded may run again",\n',
        "",
        killed_by=(f"{RESTORED}test_every_store_that_can_be_restored_says_what_that_costs[sqlite]",),
        rows=(90,),
    ),
]

_SIGNALS = [
    Break(
        "a claim that a signal kept from being left is joined by later ones",
        "claims/context.py",
        "self._claim = weakref.ref(claim)",
        "self._claim = lambda: claim",
        killed_by=(
            "tests/faults/test_signals.py::test_whatever_a_signal_interrupts_the_next_claim_is_served[transactional-1]",
        ),
    ),
]

BREAKS: list[Break] = [
    *_REDIS,
    *_DYNAMODB,
    *_CLOCKS,
    *_PAYLOADS,
    *_CLIENTS,
    *_RETENTION,
    *_OPERATIONS,
    *_SIGNALS,
]

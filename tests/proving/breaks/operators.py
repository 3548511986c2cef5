"""Breaks of what operators at night rely on: what they are shown, what they paste, and what asks before it acts."""

from __future__ import annotations

from tests.proving.breaks import Break

BENCH = "tests/cli/test_bench.py"
KEYS = "tests/operating/test_keys_command.py"
OFFICE = "tests/office/test_office.py::test_staff_operate_keys_in_the_admin[sqlite]"
RABBITMQ = "tests/messaging/test_rabbitmq_groups.py"
PROBLEMS = "tests/http/test_problems.py"

BREAKS = [
    Break(
        "keys release: a release that could be wrong needs no reason",
        "cli/keys.py",
        "    if not options.reason.strip():",
        "    if False:",
        killed_by=(
            f"{KEYS}::test_what_may_have_happened_is_released_only_with_a_reason_and_a_yes[sqlite-verb0]",
            f"{KEYS}::test_many_are_released_only_with_a_reason",
        ),
    ),
    Break(
        "keys: nothing is asked before the work may run again",
        "cli/keys.py",
        '    """Ask for a confirmation that was not given beforehand."""\n    if options.yes:',
        '    """Ask for a confirmation that was not given beforehand."""\n    if True:',
        killed_by=(
            f"{KEYS}::test_a_key_is_expired_only_when_that_is_confirmed[sqlite]",
            f"{KEYS}::test_what_may_have_happened_is_released_only_with_a_reason_and_a_yes[sqlite-verb0]",
        ),
    ),
    Break(
        "keys: a change takes the first record of a key that it finds",
        "cli/keys.py",
        'look: Look = "everywhere" if changes else "until found"',
        'look: Look = "sample"',
        killed_by=(f"{KEYS}::test_a_key_of_two_operations_is_changed_by_neither_guess_nor_luck",),
    ),
    Break(
        "keys: a change takes digits for the key that they are not",
        "cli/keys.py",
        "if not found and not changes and _is_hash(key):",
        "if not found and _is_hash(key):",
        killed_by=(f"{KEYS}::test_digits_that_are_no_key_change_nothing",),
    ),
    Break(
        "an attempt that died in doubt is reported as lapsed",
        "protocol/records.py",
        '    "external": EffectiveState.UNKNOWN,',
        '    "external": EffectiveState.LAPSED,',
        killed_by=tuple(
            f"{KEYS}::test_an_attempt_that_died_in_doubt_is_counted_and_listed_as_unknown[{store}]"
            for store in ("sqlite", "postgresql", "redis")
        ),
    ),
    Break(
        "unknown keys are listed without the attempts that died in doubt",
        "backends/sql/selection.py",
        "by_age=True, then=_LAPSED)",
        "by_age=True)",
        killed_by=tuple(
            f"{KEYS}::test_an_attempt_that_died_in_doubt_is_counted_and_listed_as_unknown[{store}]"
            for store in ("sqlite", "postgresql", "mysql")
        ),
    ),
    Break(
        "bench: a key that ran twice is not told",
        "admin/measuring.py",
        "enumerate(self._times) if times > 1)",
        "enumerate(self._times) if times > 255)",
        killed_by=(f"{BENCH}::test_a_key_that_ran_twice_fails_the_run",),
    ),
    Break(
        "bench: the records of any boundary are forgotten",
        "admin/measuring.py",
        '    if re.fullmatch(rf"{PREFIX}[0-9a-f]{{8}}", name) is None:',
        "    if False:",
        killed_by=(f"{BENCH}::test_records_of_others_are_never_forgotten",),
    ),
    Break(
        "bench: an interrupted run leaves its records",
        "cli/bench.py",
        "            _forget(measurement, options)\n            raise\n",
        "            raise\n",
        killed_by=(f"{BENCH}::test_a_run_that_is_interrupted_forgets_what_it_wrote[SIGINT]",),
    ),
    Break(
        "a command line that is shown is not quoted",
        "backends/commands.py",
        "        return shlex.quote(text)",
        "        return text",
        killed_by=(f"{KEYS}::test_a_hint_can_be_pasted_into_a_shell",),
    ),
    Break(
        "a command line that is shown has the store's password",
        "cli/opening.py",
        'naming(options.store, program) if "://" in options.store else Commands(program, quoted(options.store))',
        "Commands(program, quoted(options.store))",
        killed_by=(f"{KEYS}::test_a_hint_has_no_password_and_names_the_variable_that_has_it[postgresql]",),
    ),
    Break(
        "what is stored speaks to the terminal",
        "cli/rendering.py",
        "        print(plain(line))",
        "        print(line)",
        killed_by=(f"{KEYS}::test_what_is_stored_cannot_speak_to_the_terminal",),
    ),
    Break(
        "http: a problem shows all of a key's hash, of which derived keys are made",
        "claims/claim.py",
        "error.key = keys.redact(self._request.key)",
        "error.key = self._request.key.hex()",
        killed_by=(f"{PROBLEMS}::test_r3_a_problem_of_a_key_shows_its_first_digits_and_no_more[sqlite]",),
    ),
    Break(
        "console: a release takes no reason",
        "console/keys.py",
        'if outcome == "released" and not reason:',
        "if False:",
        killed_by=("tests/console/test_stories.py::test_a_release_takes_a_reason[sqlite]",),
    ),
    Break(
        "admin: an action is carried out for who has no right to it",
        "django/admin.py",
        "permissions=[verb.right])",
        "permissions=[])",
        killed_by=(OFFICE,),
    ),
    Break(
        "admin: a key that was used since it was shown is changed",
        "django/admin.py",
        "_version(seen) not in shown or ",
        "",
        killed_by=(OFFICE,),
    ),
    Break(
        "admin: a change takes no reason",
        "django/admin.py",
        "        if not reason:\n",
        "        if False:\n",
        killed_by=(OFFICE,),
    ),
    Break(
        "admin: a record can be deleted",
        "django/admin.py",
        '        """Nobody: a sweep removes what is forgotten."""\n        return False',
        '        """Nobody: a sweep removes what is forgotten."""\n        return True',
        killed_by=(OFFICE,),
    ),
    Break(
        "rabbitmq: a queue that is missing is a broker that is away",
        "messaging/brokers/rabbitmq/consumer.py",
        "        except ChannelNotFoundEntity as error:",
        "        except ZeroDivisionError as error:",
        killed_by=(f"{RABBITMQ}::test_a_queue_that_is_missing_is_told_at_once_and_found_when_it_is_declared",),
    ),
]

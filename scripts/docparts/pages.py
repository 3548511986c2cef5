"""All parts, and pages with their parts up to date."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from docparts import (
    architecture,
    checklist,
    commands,
    conformance,
    console,
    doctor,
    extras,
    faults,
    glossary,
    guarantees,
    http,
    integrations,
    mistakes,
    observing,
    outbox,
    performance,
    protocol,
    providers,
    reference,
    scanning,
    stores,
    testing,
    twice,
    webhooks,
)
from retrysafe.http.problems import PROBLEMS

PARTS: dict[str, Callable[[], str]] = {
    "api": reference.api,
    "files": architecture.files,
    "breaks": guarantees.breaks,
    "capabilities": stores.capabilities,
    "capability-fields": reference.capability_fields,
    "checker": guarantees.checker,
    "checklist": checklist.checklist,
    "commands": commands.commands,
    "conditional": reference.conditional,
    "client rules": conformance.client_rules,
    "conformance-failures": conformance.conformance_failures,
    "conformance-results": conformance.conformance_results,
    "conformance-rules": conformance.conformance_rules,
    "error-messages": reference.error_messages,
    "doctor checks": doctor.checks,
    "doctor setups": doctor.setups,
    "console pages": console.pages,
    "consumers": outbox.consumers,
    "errors": reference.errors,
    "extras": extras.extras,
    "extension-points": reference.extension_points,
    "faults": faults.faults,
    "faults-summary": faults.summary,
    "fixtures": testing.fixtures,
    "glossary": glossary.terms,
    "http-matrix": http.http_matrix,
    "http-matrix-versions": http.http_matrix_versions,
    "http options": http.http_options,
    "http integrations": integrations.integrations,
    "http client": reference.http_client,
    "inbox": outbox.inbox,
    "mistakes": mistakes.mistakes,
    "injected": guarantees.injected,
    "metrics": observing.instruments,
    "mutation": guarantees.mutation,
    "alerts": observing.alerts,
    "alerts without rows": observing.tables_tell,
    "events": observing.events,
    "operator": reference.operator,
    "outbox": outbox.names,
    "outcomes": protocol.outcomes,
    "performance aims": performance.aims,
    "performance chart": performance.chart,
    "performance limits": performance.limits,
    "performance rivals": performance.rivals,
    "performance rows": performance.rows,
    "performance run": performance.run,
    "problems": http.problems,
    "publishers": outbox.publishers,
    **{f"problem {code}": partial(http.problem, code) for code in PROBLEMS},
    "provider answers": providers.answers,
    "provider names": providers.names,
    "provider terms": providers.terms,
    "promises": guarantees.promises,
    "retries": guarantees.retries,
    "run": guarantees.run,
    "scan rules": scanning.rules,
    "schema": stores.schema,
    "state-diagram": protocol.state_diagram,
    "states": protocol.states,
    "store-guide": stores.store_guide,
    "testing": testing.names,
    "steps": protocol.steps,
    "transitions": protocol.transitions,
    **{f"twice on {name}": partial(twice.of_store, name) for name in ("redis",)},
    "twice-anywhere": twice.anywhere,
    "twice-by-mode": twice.by_mode,
    "twice-by-store": twice.by_store,
    "webhook answers": webhooks.answers,
    "webhook sender": webhooks.sending,
    "webhooks": webhooks.names,
}
_PART = re.compile(r"<!-- generated: ([^>]*?) -->\n(.*?)(<!-- end of generated part -->|\Z)", re.DOTALL)


def regenerated(page: str) -> str:
    """The text of a page with its generated parts as they should be."""

    def part(match: re.Match[str]) -> str:
        name, _, end = match.groups()
        if name not in PARTS:
            raise SystemExit(f"no generated part is called {name!r}; there are {', '.join(PARTS)}")
        if not end:
            raise SystemExit(f"the generated part {name!r} has no end: <!-- end of generated part -->")
        return f"<!-- generated: {name} -->\n\n{PARTS[name]().strip()}\n\n{end}"

    return _PART.sub(part, page)

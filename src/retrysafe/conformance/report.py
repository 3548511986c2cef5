"""The report of a conformance run: for people as Markdown, for programs as JSON and as JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from retrysafe.conformance.capabilities import Capabilities
from retrysafe.conformance.rules import KNOWN


class Verdict(StrEnum):
    """The result of one rule."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_VISIBLE = "not visible"


class Result(NamedTuple):
    """One rule on one server.

    Attributes:
        rule: The rule's ID, a key of `KNOWN`.
        verdict: What became of it.
        reason: Why it was skipped, or why it can't be seen from outside; with other verdicts, what was left out.
        expected: What should have come; of a rule that passed, what it asks for.
        came: What came instead; empty unless it failed.
        sent: The requests of the case and their answers, one line each.
        seconds: How long it took.
    """

    rule: str
    verdict: Verdict
    reason: str = ""
    expected: str = ""
    came: str = ""
    sent: Sequence[str] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        rule = KNOWN[self.rule]
        text = f"{self.rule} {self.verdict}: {rule.text} ({rule.source})"
        if self.verdict is not Verdict.FAILED:
            return f"{text} {self.reason}".rstrip()
        return "\n".join([text, f"expected: {self.expected}", f"came: {self.came}", "sent:", *self.sent])


class Report(NamedTuple):
    """The results of all rules on one server, or on a client, which has a command for an address."""

    address: str
    capabilities: Capabilities | None
    results: Sequence[Result]

    def of(self, verdict: Verdict) -> Iterator[Result]:
        return (result for result in self.results if result.verdict is verdict)

    @property
    def counts(self) -> dict[str, int]:
        return {verdict.value: sum(1 for _ in self.of(verdict)) for verdict in Verdict}

    @property
    def passed(self) -> bool:
        """True if no rule failed, those marked SHOULD included."""
        return not any(self.of(Verdict.FAILED))


def markdown(report: Report) -> str:
    """A table of all rules, then each failure with what was sent, expected and received."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    able, counts = report.capabilities, ", ".join(f"{n} {name}" for name, n in report.counts.items())
    if able is None:
        yield from ("# A client: HTTP conformance", "", f"{report.address}: {counts}.")
    else:
        named = " ".join(part for part in (able.name, able.version) if part) or "A server"
        on = f" on {able.server}" if able.server else ""
        yield from (f"# {named}{on}: HTTP conformance", "", f"{report.address}, {able.mode} mode: {counts}.")
    yield ""
    yield "| rule | verdict | what it asks for | source | remark |"
    yield "| --- | --- | --- | --- | --- |"
    for result in report.results:
        rule = KNOWN[result.rule]
        level = " (S)" if rule.should else ""
        cells = (f"{result.rule}{level}", result.verdict.value, rule.text, rule.source, _remark(result))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    for result in report.of(Verdict.FAILED):
        yield from ("", f"## {result.rule} failed", "", KNOWN[result.rule].text, "")
        yield from (f"- expected: {result.expected}", f"- came: {result.came}", "- sent:", "", "```text")
        yield from result.sent
        yield "```"


def _remark(result: Result) -> str:
    if result.verdict is Verdict.FAILED:
        return f"came: {result.came}"
    unseen = KNOWN[result.rule].unseen
    if result.verdict is Verdict.PASSED and unseen:
        return "; ".join(part for part in (result.reason, f"not seen: {unseen}") if part)
    return result.reason


def as_data(report: Report) -> dict[str, Any]:
    able = report.capabilities
    told = {} if able is None else {name: getattr(able, name) for name in ("name", "version", "server", "mode")}
    return {
        "address": report.address,
        **told,
        **({} if able is None else {"choices": dict(able.choices)}),
        "counts": report.counts,
        "results": [_result(result) for result in report.results],
    }


def _result(result: Result) -> dict[str, Any]:
    rule = KNOWN[result.rule]
    return {
        "rule": result.rule,
        "verdict": result.verdict.value,
        "level": "SHOULD" if rule.should else "MUST",
        "text": rule.text,
        "source": rule.source,
        "reason": result.reason,
        "expected": result.expected,
        "came": result.came,
        "sent": list(result.sent),
        "seconds": round(result.seconds, 4),
    }


def as_json(report: Report) -> str:
    return json.dumps(as_data(report), indent=2, ensure_ascii=False) + "\n"


def junit(report: Report) -> str:
    """The report as JUnit's XML: one suite, one test case per rule; what can't be seen counts as skipped."""
    counts, kind = report.counts, "client" if report.capabilities is None else "http"
    suite = ET.Element(
        "testsuite",
        name=f"retrysafe conformance {kind} {report.address}",
        tests=str(len(report.results)),
        failures=str(counts[Verdict.FAILED]),
        errors="0",
        skipped=str(counts[Verdict.SKIPPED] + counts[Verdict.NOT_VISIBLE]),
        time=f"{sum(result.seconds for result in report.results):.3f}",
    )
    for result in report.results:
        name = f"{result.rule} {KNOWN[result.rule].text}"
        case = ET.SubElement(
            suite, "testcase", classname=f"retrysafe.conformance.{kind}", name=name, time=f"{result.seconds:.3f}"
        )
        if result.verdict is Verdict.FAILED:
            failure = ET.SubElement(case, "failure", message=f"expected {result.expected}; came {result.came}")
            failure.text = str(result)
        elif result.verdict is not Verdict.PASSED:
            ET.SubElement(case, "skipped", message=f"{result.verdict}: {result.reason}")
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


FORMATS: Mapping[str, Callable[[Report], str]] = {"markdown": markdown, "json": as_json, "junit": junit}
"""The formats by the name that the command line has for them."""

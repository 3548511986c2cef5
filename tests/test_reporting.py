"""One test whose report, worker or child is lost is one failure under its name; all others have their results."""

from __future__ import annotations

from pathlib import Path

import pytest

PLUGIN = """
import ast
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if item.name == "test_makereport" and call.when == "call":
        raise ValueError("planted in makereport")
    if item.name == "test_unserializable" and call.when == "call":
        report.user_properties.append(("object", object()))
    return report

def pytest_runtest_logreport(report):
    if report.nodeid.endswith("test_logreport") and report.when == "call":
        raise ValueError("planted in logreport")

def pytest_runtest_logfinish(nodeid):
    if nodeid.endswith("test_logfinish"):
        raise ValueError("planted in logfinish")

def pytest_exception_interact(node):
    if node.name == "test_interact":
        raise ValueError("planted in interact")

@pytest.hookimpl(wrapper=True)
def pytest_report_from_serializable(data):
    report = yield
    if data["nodeid"].endswith("test_deserialize") and data["when"] == "call":
        raise ValueError("planted in from_serializable")
    return report
"""
TESTS = """
import ast, os, signal, sys, threading
import pytest

def test_makereport(): pass
def test_logreport(): pass
def test_logfinish(): pass
def test_deserialize(): pass
def test_unserializable(): pass
def test_interact(): raise LookupError("of the test itself")

def test_ast_error(monkeypatch):
    def parse(*arguments, **options):
        raise SystemError("AST constructor recursion depth mismatch (before=79, after=83)")
    ast.parse = parse
    raise LookupError("of the test itself")

def test_after_the_ast_error():
    from importlib import reload
    reload(ast)

def test_worker_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_child_hangs():
    if (child := os.fork()) == 0:
        threading.Event().wait()
    os.waitpid(child, 0)

@pytest.mark.parametrize("number", range(20))
def test_beside_them(number): pass
"""
FAILING = {
    "test_makereport": "planted in makereport",
    "test_logreport": "planted in logreport",
    "test_logfinish": "planted in logfinish",
    "test_deserialize": "planted in from_serializable",
    "test_unserializable": "The report of this test could not be made",
    "test_interact": "planted in interact",
    "test_ast_error": "AST constructor recursion depth mismatch",
    "test_worker_dies": "crashed while running",
    "test_child_hangs": "hung for 8 s",
}


@pytest.mark.one_of("the suite's own tools", of=2)
@pytest.mark.slow
def test_a_lost_test_is_one_failure_and_the_run_goes_on(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(TESTS, planted=PLUGIN)
    pytester.makeini("[pytest]\nfaulthandler_timeout = 10\nfaulthandler_exit_on_timeout = true")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{pytester.path}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = ("xdist.plugin", "tests.deadlines", "tests.forking", "tests.reporting", "planted")
    words = (word for name in plugins for word in ("-p", name))
    ended = pytester.runpytest_subprocess(*words, "-n", "2", "-p", "no:cacheprovider", timeout=200)
    told = ended.stdout.str()
    assert "INTERNALERROR" not in told
    failed = {line.split("::")[1].split()[0] for line in told.splitlines() if line.startswith(("FAILED", "ERROR"))}
    assert failed == FAILING.keys()
    for test, said in FAILING.items():
        assert said in told, f"{test}: {said!r} is not said"
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    assert ended.parseoutcomes()["passed"] >= 21  # those beside them, and the one after the error of ast

"""Stored numbers that count a retry too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrysafe.scan.effects import EffectKind
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.guards import in_guard, is_guarded, runs_once_known
from retrysafe.scan.rules.view import View
from retrysafe.scan.states import leaves_its_state

INCREMENT = Rule(
    "RS301",
    "An increment without a ledger",
    Severity.WARNING,
    "A retry adds again, and nothing in the row says what was added already. Adding in memory loses updates too, when "
    "two processes read the same number.",
    "Add in the transaction of a claim, or in that of a ledger row which insert_once() has created.",
    "how-to/sql-patterns.md",
    """
from django.db.models import F
from django.db import models


class Account(models.Model):
    balance = models.IntegerField()


def deposit(account, amount):
    Account.objects.filter(pk=account).update(balance=F("balance") + amount)
""",
    """
from django.db.models import F
from django.db import models, transaction


class Account(models.Model):
    balance = models.IntegerField()


class Deposit(models.Model):
    id = models.CharField(primary_key=True, max_length=64)


def deposit(account, amount, key):
    with transaction.atomic():
        _, created = Deposit.objects.get_or_create(id=key)
        if created:
            Account.objects.filter(pk=account).update(balance=F("balance") + amount)
""",
)


def check(view: View) -> Iterator[Finding]:
    """RS301."""
    for node in view.module.nodes:
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.Call):
            continue
        effect = view.effects.of_node(view.module, node)
        if effect is None or effect.kind is not EffectKind.INCREMENT:
            continue
        function = view.module.function_around(node)
        if function is not None and is_guarded(view.project, view.module, function):
            continue
        if in_guard(view.project, view.module, node) or runs_once_known(view.project, view.module, node):
            continue
        if leaves_its_state(view.project, view.module, node):
            continue
        yield finding(INCREMENT, view.module, node, f"A retry adds again: {effect.what}.")

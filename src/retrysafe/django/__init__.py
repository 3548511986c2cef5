"""The Django app: retrysafe's schema as Django migrations.

Add ``"retrysafe.django"`` to INSTALLED_APPS and run ``manage.py migrate retrysafe``. Boundaries take an
alias of DATABASES as ``store=`` and ``tx=`` with or without the app.
"""

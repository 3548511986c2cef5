"""`retrysafe demo`: payments, a bank, and everything that goes wrong between them, three ways at once.

Four workers per lane charge a mock bank under one seeded schedule of faults. The lanes differ in a
few lines (`lanes`): *unsafe* charges, *naive* checks a key and sets it afterwards, *retrysafe* guards
the charge with a boundary. In the end the bank's own ledger file is audited against the intents.
"""

"""The demo's fourth lane: a shop of three services, whose orders become messages, and what is made of each of them.

*orders* writes an order and its event in one transaction; two *relays* publish the events to a broker that is a SQLite
file; two *inventory* and two *mail* consumers handle them. All of them but the broker are killed where it hurts most,
and messages come twice. In the end the tables and the mailbox are audited against the orders.
"""

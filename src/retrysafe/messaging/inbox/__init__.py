"""The inbox: a message is handled once."""

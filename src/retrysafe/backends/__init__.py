"""Stores and their clients, one folder per kind, and how a URL or an object of the user's leads to one."""

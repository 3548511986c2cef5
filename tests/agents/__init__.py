"""Tool calls of agents, with the official SDKs and scripted models."""

"""Tool calls of agents: each intent of a model has its effect once, however often the call is made."""

"""Django: a project with a shop, its own tests run by Django's runner, and ours of the executor."""

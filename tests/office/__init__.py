"""Django: a project with the admin, whose staff operate keys; run by Django's runner, and by ours for its commands."""

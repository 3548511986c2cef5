"""Publishers: a module for each kind of broker, imported when it is chosen."""

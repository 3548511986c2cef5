"""The console, through its real application, on real stores."""

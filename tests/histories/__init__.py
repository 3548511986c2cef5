"""Recorded histories and the checker of them: the checker put to the proof, and then the stores."""

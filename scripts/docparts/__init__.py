"""The generated parts of the documentation: each module makes the parts of a page or two.

A part is a function without arguments that returns Markdown; `docparts.pages` knows them by name.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

"""Makes the helpers beside the tests importable (the suite runs in importlib mode)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

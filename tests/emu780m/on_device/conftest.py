"""Only for Python on the emulated device, which tools/run_780m.sh starts and `make test-780m` runs these with."""

import os

collect_ignore_glob = [] if "EMU_CHIP" in os.environ else ["test_*.py"]

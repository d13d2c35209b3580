"""Ray's workers run at the priority of the test, not at the low one that Ray gives them."""

import os

os.environ["RAY_worker_niceness"] = "0"

import sys

from vkprefill.cli.main import main

sys.exit(main())

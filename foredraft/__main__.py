"""``python -m foredraft`` is the command line."""

import sys

from foredraft.cli.main import main

sys.exit(main())

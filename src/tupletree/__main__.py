"""`python -m tupletree` is the `tupletree` command."""

import sys

from tupletree.cli.main import main

sys.exit(main())

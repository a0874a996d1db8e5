"""`python -m ptc_kernel`, the same as `ptc-kernel`."""

import sys

from ptc_kernel.cli import main

sys.exit(main())

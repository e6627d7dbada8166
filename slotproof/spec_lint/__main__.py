"""``python -m slotproof.spec_lint FOLDER_OR_FILE…``."""

import sys

from slotproof.spec_lint import main

sys.exit(main(sys.argv[1:]))

"""Fetches a page with urllib, which reads proxy variables."""

import sys
import urllib.request

sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())

"""Fetches a page with requests, which has a trust store of its own."""

import sys

import requests

answer = requests.get(sys.argv[1])
answer.raise_for_status()
sys.stdout.write(answer.text)

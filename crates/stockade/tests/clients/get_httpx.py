"""Fetches a page with httpx, which reads every proxy variable there is."""

import sys

import httpx

answer = httpx.get(sys.argv[1], timeout=None)
answer.raise_for_status()
sys.stdout.write(answer.text)

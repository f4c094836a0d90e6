#!/usr/bin/env python3
"""Fetches one source package, as this machine's pip is configured, into the current folder, without running its setup.py.

usage: fetch_sdist.py NAME VERSION      (the caller checks the sha256)
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import urllib.parse
import urllib.request


def index() -> str:
    configured = os.environ.get("PIP_INDEX_URL") or subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False).stdout.strip()
    if configured:
        return configured
    from pip._internal.models.index import PyPI  # pip's own default

    return str(PyPI.simple_url)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, version = sys.argv[1:]
    base = index().rstrip("/") + f"/{name}/"
    request = urllib.request.Request(base, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    page = json.load(urllib.request.urlopen(request, timeout=60))
    wanted = f"{name}-{version}.tar.gz"
    for file in page["files"]:
        if file["filename"] == wanted:
            data = urllib.request.urlopen(urllib.parse.urljoin(base, file["url"]), timeout=300).read()
            pathlib.Path(wanted).write_bytes(data)
            return
    sys.exit(f"the index has no {wanted}")


main()

#!/usr/bin/env bash
# Makes a virtual environment: venv.sh PYTHON FOLDER. Says what to do where that cannot work.
set -euo pipefail

python=$1
folder=$2

if ! command -v "$python" >/dev/null; then
    echo "octavo needs Python 3.11 or newer, and there is no $python here." >&2
    echo "  On Debian or Ubuntu: sudo apt-get install -y python3 python3-venv" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "octavo needs Python 3.11 or newer; $python is $("$python" -V 2>&1)." >&2
    echo "  Name another one: make PYTHON=python3.12 ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "$python cannot make virtual environments." >&2
    echo "  On Debian or Ubuntu: sudo apt-get install -y python3-venv" >&2
    exit 1
fi
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
if ! command -v c++ >/dev/null && ! command -v g++ >/dev/null && ! command -v clang++ >/dev/null; then
    echo "No C++ compiler: the install will work without compiled kernels, and slower." >&2
    echo "  On Debian or Ubuntu: sudo apt-get install -y g++ (about 250 MB), then make again." >&2
fi

#!/bin/sh
# Installs into a container, in the versions of constraints.txt and with the check of hashes.txt, except for PyTorch from
# INDEX, whose files have other hashes. Run beside both and setup.cfg.
#   install.sh libraries [INDEX]   what xbench needs; PyTorch from INDEX, if one is given
#   install.sh xbench              xbench itself
set -eu

case $1 in
libraries)
    awk '/^[^ ]/ { found = /^pip==/ } found' hashes.txt >pip.txt
    python -m pip install --requirement pip.txt
    if [ -n "${2-}" ]; then
        # Without what it needs: the index has that in other versions.
        grep -E '^(torch|torchvision)==' constraints.txt |
            xargs python -m pip install --no-deps --index-url "$2"
    fi
    python "$(dirname "$0")/requirements.py" >requirements.txt
    python -m pip install --constraint hashes.txt --requirement requirements.txt
    ;;
xbench)
    python -m pip install --no-deps --build-constraint hashes.txt .
    ;;
*)
    echo "install.sh knows 'libraries' and 'xbench', not '$1'" >&2
    exit 2
    ;;
esac

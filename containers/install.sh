#!/bin/sh
# Installs into a container, in the versions of constraints.txt; run beside constraints.txt and setup.cfg.
#   install.sh libraries [INDEX]   what xbench needs; PyTorch from INDEX, if one is given
#   install.sh xbench              xbench itself
set -eu

case $1 in
libraries)
    python -m pip install --upgrade --constraint constraints.txt pip
    if [ -n "${2-}" ]; then
        # Without what it needs: the index has that in other versions.
        grep -E '^(torch|torchvision)==' constraints.txt |
            xargs python -m pip install --no-deps --index-url "$2"
    fi
    python -c '
import configparser
setup = configparser.ConfigParser()
setup.read("setup.cfg")
print(setup["options"]["install_requires"])' >requirements.txt
    python -m pip install --constraint constraints.txt --requirement requirements.txt
    ;;
xbench)
    python -m pip install --no-deps --build-constraint constraints.txt .
    ;;
*)
    echo "install.sh knows 'libraries' and 'xbench', not '$1'" >&2
    exit 2
    ;;
esac

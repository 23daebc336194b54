"""Print what setup.cfg asks for, and what the named extras add. pip can check hashes of these, but not of a folder."""

import configparser
import sys

setup = configparser.ConfigParser()
setup.read("setup.cfg")
print(setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in sys.argv[1:]))

"""xbench: does a vision-language model look at the lesion, or only guess the label?"""

__version__ = "0.1.0"

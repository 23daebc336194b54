"""First words of some notes in a run's results, for writers of notes and for the report."""

INPUT_NOTE = "what goes into the network looks wrong"  # mean and standard deviation do not fit the pixels
EXPLORATORY_NOTE = "the maps are exploratory"  # not its authors' own
SUPERVISED_NOTE = "the model is supervised"  # then the datasets whose labels it was trained on
CUT_OFF_NOTE = "a phrase was cut off"  # it is longer than the model reads
DOUBT_NOTE = "the predictions look wrong"  # they contradict their declaration or themselves

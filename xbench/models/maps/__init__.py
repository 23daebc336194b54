"""Models that draw saliency maps, a file each."""

"""Rules of ours beside the papers': what they gain on fresh seeds, and where they do not."""

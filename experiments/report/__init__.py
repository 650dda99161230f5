"""Results as pages of Markdown, the guide to methods among them, and the folder of published results."""

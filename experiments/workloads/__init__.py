"""What experiments query: test functions, images and victims, metrics, controllers, language models and prompts."""

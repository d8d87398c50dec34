"""The Hugging Face hub, of which huggingface_hub fetches files into its cache."""

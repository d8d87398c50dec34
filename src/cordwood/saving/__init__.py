"""The inside of save: the rendezvous, and saves in the background, after a commit, in handlers."""

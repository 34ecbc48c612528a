"""For all tests. That it lies here puts this folder on the import path, where `support` is found."""

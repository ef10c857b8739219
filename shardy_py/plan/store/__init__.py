"""Plans as JSON text and files, with a version; reading one runs no code. In readers, `data` is JSON data of the file."""

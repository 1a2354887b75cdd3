"""What everything else stands on: options, files, processes, and the private parts of torch."""

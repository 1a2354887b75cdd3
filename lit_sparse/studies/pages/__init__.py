"""Tables, figures and statistics from rows."""

"""From a call to the variant that serves it, for entries, called functions and code after graph breaks."""

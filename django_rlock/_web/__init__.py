"""The decorator, and the code that it shares with the middleware: requests, transactions around views, and
responses."""

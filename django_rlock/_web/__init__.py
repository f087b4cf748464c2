"""What the decorator and the middleware share: requests, transactions around views, and responses."""

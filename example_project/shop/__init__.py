"""The flash sale: a stock of moon cakes in Redis, orders in the database, and three ways to sell them."""

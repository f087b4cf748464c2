"""The data in Redis: the names of keys and channels, and the Lua scripts that read and change them."""

"""Commands for operators. They run without system checks: a project that is broken can still free its locks."""

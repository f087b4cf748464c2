"""The wheel in fresh projects: ``python -m tests.smoke`` builds the wheel and installs it as they do."""

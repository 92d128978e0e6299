"""What people run: `specfit-chat`, `specfit-batch`, `specfit-bench`."""

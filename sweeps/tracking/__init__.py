"""MLflow, brought up to date from one thread of the driver."""

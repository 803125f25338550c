"""A search: Optuna's samplers and pruners for one proposal at a time, objectives and limits, its answer."""

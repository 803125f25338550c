"""A sweep's folder: the ledger, the history of reports, who may write there."""

"""One trial: a PyTorch training run that can stop and go on.

Nothing is imported here, so that a driver which only describes trials need not load torch.
"""

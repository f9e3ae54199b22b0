"""AdEMAMix in trainers of others: a module each, for those that need more than its constructor.

Importing this package loads no trainer. docs/integrations.md has an example for each, with the versions it was tested
with.
"""

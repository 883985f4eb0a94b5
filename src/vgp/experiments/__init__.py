"""The paper's experiments: one row of a table is one small configuration; train, evaluate, tabulate."""

"""From records to tables, figures and verdicts; reads files only and never imports torch.

    python -m dgc_repro.report results/dynamic/table1/quick

rebuilds a published folder from its own records and prints it.
"""

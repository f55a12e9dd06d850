"""Methods of this package beside the code of their authors: a module for each family. Importing one registers
its rows in `case.CASES`."""

"""Networks of the reproduced papers, one a file, built from public blocks."""

"""Causes of findings in SGLang: of each a file that tells it, and a module that repairs it at run time."""

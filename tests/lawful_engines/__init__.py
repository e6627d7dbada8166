"""Five lawful engines in plain Python, in styles of the field that are neither SGLang's nor vLLM's, each with one
planted bug of one line in ``planted.toml``.
"""

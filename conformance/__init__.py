"""The law held against running code: each call goes to the law and to an engine, and the two are compared after it."""

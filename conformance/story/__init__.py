"""A trace told to a person: its operations as calls, what each of them changed, and the state after it as a picture."""

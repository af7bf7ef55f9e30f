"""The screen of `robust top`. Pure."""

"""What an artifact depends on besides its guards: untraced code, operators, files of tensor subclasses."""

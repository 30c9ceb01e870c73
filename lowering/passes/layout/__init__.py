"""Passes that choose strides: channels-last convolutions and what surrounds them, and the innermost dimension of other temporaries."""

"""Passes that choose strides: channels-last convolutions and what surrounds them."""

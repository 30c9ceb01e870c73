"""GPU passes over convolutions: stems, patches, depthwise ones, and where their biases and the layout of their weights go."""

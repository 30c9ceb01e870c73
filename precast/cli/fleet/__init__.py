"""Commands about stores beyond this machine: remotes, bundles, keys and trust."""
